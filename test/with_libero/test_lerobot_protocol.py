"""LIBERO as `lerobot-eval` does it: ours beside LeRobot's own environment code, number by number.

What the network of a folder that was trained on LIBERO is shown, and what the simulator is given
of its actions, are LeRobot's: images, state, units and the gripper's side.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: no vla policy here")

from safetensors.torch import load_file, save_file

from support.engine import tiny_config
from support.releases import oft_statistics
from vla_ros.cli.eval import plan_of, setup_of, variants_of
from vla_ros.cli.main import make_parser
from vla_ros.data.episodes.plan import Plan
from vla_ros.data.episodes.play import DirectRunner
from vla_ros.data.episodes.records import Job
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.models.preparation import LerobotPreparation
from vla_ros.policies.load import lerobot_python
from vla_ros.sim import episode
from vla_ros.sim.libero.assets import find_assets
from vla_ros.sim.libero.suites import find_package

SUITE, TASK, SIZE, STEPS, EXECUTED = "libero_object", 0, 64, 7, 5
KINDS = ("pi0", "pi05", "smolvla")
LOOP = Path(__file__).with_name("lerobot_loop.py")


def trained_on_libero(path: Path, kind: str) -> Path:
    """A random folder as LeRobot saves it after training on LIBERO, with LIBERO's statistics."""
    cameras = ("image", "image2")
    config = replace(PRESETS[f"{kind}-small"], state_dim=8, action_dim=7, cameras=cameras)
    write_folder(path, config, seed=5)
    ends = np.array([0.94] * 3 + [0.3] * 3 + [1.0])
    stats = {"mean": 0 * ends, "std": ends / 3, "min": -ends, "max": ends}
    stats |= {"q01": -ends, "q99": ends}
    stats["std"][6] = 0.99
    for file in path.glob("policy_p*processor*.safetensors"):
        stored = load_file(file)
        more = {f"action.{n}": torch.tensor(v, dtype=torch.float32) for n, v in stats.items()}
        save_file(stored | more, file)
    (path / "train_config.json").write_text(
        json.dumps({"env": {"type": "libero"}, "dataset": {"repo_id": "HuggingFaceVLA/libero"}})
    )
    raw = json.loads((path / "config.json").read_text()) | {"n_action_steps": EXECUTED}
    (path / "config.json").write_text(json.dumps(raw))
    return path


def oft(path: Path) -> Path:
    config = replace(tiny_config(towers="fused"), parallel=True, chunk=EXECUTED, proprio_dim=8,
                     images=2)  # fmt: skip
    (stats,) = oft_statistics(7, 8).values()
    write_random(path, config, seed=3, stats={f"{SUITE}_no_noops": stats})
    return path


def played(folder: Path) -> Plan:
    """An episode of STEPS actions, straight on the policy; its plan."""
    words = ["eval", "--suite", SUITE, "--checkpoint", str(folder), "--image-size", str(SIZE)]
    words += ["--max-steps", str(STEPS), "--no-ros", "--tasks", str(TASK)]
    args = make_parser("eval")[0].parse_args(words)
    setup = setup_of(args)
    plan = plan_of(setup, variants_of(args), [f"{SUITE}/{TASK}"], 1)
    (variant,) = plan.variants
    with DirectRunner(plan.setup, (variant,)) as direct:
        record = direct.play(Job(variant.label, f"{SUITE}/{TASK}", 0, 0), variant)
    assert record.error == ""
    return plan


@pytest.fixture
def watched(monkeypatch):
    """What the network is shown, what it answers, and what the simulator is given."""
    seen: dict[str, list] = {"images": [], "state": [], "answers": [], "sent": []}
    inputs, finish, act = LerobotPreparation.inputs, Engine.finish, episode.environment_action

    def shown(self, images, state):
        seen["images"].append([np.array(image) for image in images])
        seen["state"].append(state.numpy().copy())
        return inputs(self, images, state)

    def answered(self, decoded):
        made = finish(self, decoded)
        seen["answers"].append(made.actions.copy())
        return made

    def given(*args):
        action = act(*args)
        seen["sent"].append(action.copy())
        return action

    monkeypatch.setattr(LerobotPreparation, "inputs", shown)
    monkeypatch.setattr(Engine, "finish", answered)
    monkeypatch.setattr(episode, "environment_action", given)
    return seen


def lerobots(actions: np.ndarray, tmp_path: Path) -> dict[str, np.ndarray]:
    """LeRobot's own loop over ``actions`` [n, 7]; skips where it cannot run."""
    python = lerobot_python()
    if not python.is_file():
        pytest.skip("LeRobot's environment is not there: vla-ros lerobot setup")
    package, out = find_package(), tmp_path / "theirs.npz"
    config = tmp_path / "libero"
    config.mkdir(exist_ok=True)
    folders = {"benchmark_root": package, "bddl_files": package / "bddl_files",
               "init_states": package / "init_files", "datasets": tmp_path,
               "assets": find_assets(package)}  # fmt: skip
    (config / "config.yaml").write_text("".join(f"{k}: {v}\n" for k, v in folders.items()))
    env = os.environ | {"LIBERO_CONFIG_PATH": str(config), "HF_HUB_OFFLINE": "1"}
    env.pop("PYTHONPATH", None)
    found = subprocess.run([python, "-c", "import lerobot.envs.libero"], env=env,
                           capture_output=True, text=True)  # fmt: skip
    if found.returncode:
        pytest.skip("LIBERO is not installed in LeRobot's environment, two commands of minutes:"
                    f" {python} -m pip install --no-deps -r requirements/libero.txt, and"
                    f" {python} -m pip install mujoco==3.3.2 numba easydict future matplotlib"
                    f" ({found.stderr.strip()[-100:]})")  # fmt: skip
    np.save(tmp_path / "actions.npy", actions.astype(np.float32))
    assets = str(find_assets(package))
    words = [SUITE, str(TASK), assets, str(SIZE), str(tmp_path / "actions.npy"), str(out)]
    subprocess.run([python, str(LOOP), *words], env=env, check=True, timeout=300)
    with np.load(out) as file:
        return dict(file)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_the_network_sees_and_the_simulator_gets_what_lerobot_eval_gives(
    kind, tmp_path, watched, capsys
):
    folder = trained_on_libero(tmp_path / kind, kind)
    plan = played(folder)
    rows = np.concatenate([chunk[:EXECUTED] for chunk in watched["answers"][-2:]])[:STEPS]
    theirs = lerobots(rows, tmp_path)
    first = watched["images"][-2:]
    for place, at in ((0, 0), (1, EXECUTED)):  # the frames that it is asked about
        for camera, name in enumerate(("image", "image2")):
            ours = first[place][camera].astype(np.float32) / 255
            assert np.array_equal(ours, theirs[name][at]), (name, at)
        state = watched["state"][-2:][place]
        assert np.abs(state - theirs["state"][at]).max() < 2e-6  # float32 in both
    sent, wanted = np.array(watched["sent"][-STEPS:]), np.clip(theirs["sent"], -1, 1)
    assert np.abs(sent - wanted).max() < 1e-15
    assert np.array_equal(np.sign(sent[:, 6]), np.sign(theirs["sent"][:, 6]))
    assert plan.setup.executed == EXECUTED
    rows_said = "\n".join(plan.setup.conventions)
    assert "gripper: 1 closed, -1 open (LIBERO's protocol (train_config.json))" in rows_said
    assert "orientation of images: mirrored (LIBERO's protocol (train_config.json))" in rows_said
    with capsys.disabled():
        off = np.abs(watched["state"][-2] - theirs["state"][0]).max()
        print(f"\n{kind}: images equal, state to {off:.1e},"
              f" actions to {np.abs(sent - wanted).max():.1e}")  # fmt: skip


@pytest.mark.timeout(600)
def test_openvla_oft_sees_the_same_frames_and_turns_its_gripper_round(
    tmp_path, watched, monkeypatch
):
    """Its data have 1 open and 0 closed; its loop makes 2 g - 1, takes the sign and negates it."""
    from vla_ros.engine.models.robot_side import TokenSide

    seen, prepare = [], TokenSide.prepare

    def shown(self, observation):
        seen.append((observation.image.copy(), observation.proprio.copy()))
        return prepare(self, observation)

    monkeypatch.setattr(TokenSide, "prepare", shown)
    played(oft(tmp_path / "oft"))
    rows = np.concatenate([c[:EXECUTED] for c in watched["answers"][-2:]])[:STEPS]
    published = rows.copy()
    published[:, 6] = -np.sign(2 * rows[:, 6] - 1)
    theirs = lerobots(published, tmp_path)
    for (image, state), at in zip(seen[-2:], (0, EXECUTED), strict=True):
        flipped = image[:, ::-1].astype(np.float32) / 255
        assert np.array_equal(flipped, theirs["image"][at])
        assert np.abs(state - theirs["state"][at]).max() < 2e-6
    sent, wanted = np.array(watched["sent"][-STEPS:]), np.clip(theirs["sent"], -1, 1)
    assert np.abs(sent[:, :6] - wanted[:, :6]).max() < 1e-6  # theirs is float32
    assert np.array_equal(np.sign(sent[:, 6]), np.sign(wanted[:, 6]))
