"""LeRobot's families trained by LeRobot itself: `lerobot-train` in its environment, on an export.

It draws evenly from a data set: corrections weigh no more there.
"""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

from vla_ros.core.errors import UserError
from vla_ros.data.lerobot.dataset import Reader, is_dataset
from vla_ros.data.lerobot.older import refuse_older
from vla_ros.engine.io.files import write_json
from vla_ros.policies.lerobot.allowed import check_folder
from vla_ros.policies.lerobot.checkpoint import folder_of
from vla_ros_lab.train.options import PARENT, LeRobotRun, claim, parent_of, recipe_json, verify

RUN, RECORD_FILE, POLICY = "lerobot", "training.json", "policy"
_LAST = Path(RUN) / "checkpoints" / "last"
_MODULE = "lerobot.scripts.lerobot_train"
_MACHINE = ("steps", "device", "gpus")  # which may differ from sitting to sitting
_LAUNCH = "accelerate.commands.launch"


def command(run: LeRobotRun, out: Path, python: str) -> list[str]:
    """The program that trains, or goes on where the last sitting's checkpoint is."""
    words = [python, "-I", "-m"]
    if run.gpus > 1:
        words += [_LAUNCH, "--multi_gpu", f"--num_processes={run.gpus}", "-m"]
    words.append(_MODULE)
    last = out / _LAST / "pretrained_model" / "train_config.json"
    if last.is_file():
        words += [f"--config_path={last.absolute()}", "--resume=true", f"--steps={run.steps}"]
        return words
    data = Path(run.data).absolute()
    source = "path" if "/" in run.policy or Path(run.policy).is_dir() else "type"
    where = Path(run.policy).absolute() if Path(run.policy).is_dir() else run.policy
    saved = max(1, min(1000, run.steps // 4))
    words += [
        f"--policy.{source}={where}",
        "--policy.push_to_hub=false",
        f"--policy.device={run.device}",
        f"--dataset.repo_id=local/{data.name}",
        f"--dataset.root={data}",
        f"--dataset.eval_split={run.validation}",
        f"--eval_steps={saved if run.validation else 0}",
        f"--output_dir={(out / RUN).absolute()}",
        f"--steps={run.steps}",
        f"--batch_size={run.batch}",
        f"--seed={run.seed}",
        f"--save_freq={saved}",
        f"--log_freq={min(100, saved)}",
    ]
    return words + [f"--{one}" for one in run.more]


def train(run: LeRobotRun, out: Path, python: str, threads: int | None = None) -> Path:
    """Train on so many ``threads``; its lines come out as they are. Returns the checkpoint. The
    same again, with more steps or after a stop, goes on. UserError: no data set, another recipe,
    or LeRobot failed."""
    if not is_dataset(Path(run.data)):
        raise UserError(
            f"{run.data} is no LeRobotDataset: make one with `vla-ros export --lerobot`"
        )
    refuse_older(Path(run.data))
    begun = replace(run, policy=_checked(run.policy))
    out.mkdir(parents=True, exist_ok=True)
    recipe = {n: value for n, value in recipe_json(run).items() if n not in _MACHINE}
    verify(recipe, out)
    claim(recipe, out, run.policy if Path(run.policy).is_dir() else "")
    words = command(begun, out, python)
    print(" ".join(words), flush=True)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    if threads:
        env["OMP_NUM_THREADS"] = str(threads)
    status = subprocess.run(words, env=env, stdin=subprocess.DEVNULL).returncode
    if status:
        raise UserError(f"LeRobot's trainer ended with status {status}, see above{_saved(out)}")
    policy = out / POLICY
    policy.unlink(missing_ok=True)
    policy.symlink_to((_LAST / "pretrained_model").as_posix())
    record = {"step": run.steps, "data_sha256": digest(Path(run.data)), "command": words}
    record |= {PARENT: parent_of(out), "options": asdict(run)}
    write_json(out / RECORD_FILE, record)
    return policy


def _saved(out: Path) -> str:
    """What is left after a failure."""
    if not (out / _LAST).exists():
        return "; nothing was saved yet"
    return f"; what it saved is in {out / RUN}, and the same command goes on from there"


def held_out(python: str, data: Path, share: float, asked: bool) -> float:
    """The share of each task's episodes to hold out. LeRobot rounds it up, so that of a task with
    one episode nothing is left to learn: none is held out then. UserError: it was ``asked`` for."""
    if not share:
        return share
    with Reader(python, data) as there:
        tasks = there.info.tasks
    lost = sum(count - math.ceil(count * share) < 1 for count in tasks)
    if not lost:
        return share
    why = (
        f"{data}: of {lost} of {len(tasks)} tasks LeRobot would hold out every episode"
        f" (eval_split {share:g}, rounded up; {sum(tasks)} episodes)"
    )
    if asked:
        raise UserError(f"{why}: --validation 0, or record more episodes")
    print(f"{why}: none is held out", flush=True)
    return 0.0


def _checked(policy: str) -> str:
    """The family, or the folder of a checkpoint (a commit's of the hub), in which nothing runs.
    UserError: it names code."""
    if "/" not in policy and not Path(policy).is_dir():
        return policy
    folder = folder_of(policy)
    check_folder(folder)
    return str(folder.absolute())


def digest(dataset: Path) -> str:
    """SHA-256 over every file of a data set, by its name."""
    whole = hashlib.sha256()
    for path in (path for path in sorted(dataset.rglob("*")) if path.is_file()):
        whole.update(path.relative_to(dataset).as_posix().encode())
        with path.open("rb") as stream:
            while part := stream.read(1 << 20):
                whole.update(part)
    return whole.hexdigest()
