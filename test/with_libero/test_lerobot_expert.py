"""A LeRobot folder whose weights give the expert's actions solves what the expert solves.

The actions are in LIBERO's units with LIBERO's gripper, 1 closed and -1 open, as data sets of
LIBERO have them. Units, order or the gripper's side read otherwise anywhere between the folder and
the simulator, and the episode is lost.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: no vla policy here")

from safetensors.torch import load_file, save_file

from vla_ros.cli.eval import plan_of, setup_of, variants_of
from vla_ros.cli.main import make_parser
from vla_ros.core.types import Command, CommandKind
from vla_ros.data.episodes.play import DirectRunner
from vla_ros.data.episodes.records import Job, Record
from vla_ros.engine.families.act import PRESETS
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.models.act import Act, View
from vla_ros.sim.commands import environment_action
from vla_ros.sim.libero.expert import LiberoExpert

SUITE, TASK, SIZE, MOST = "libero_object", "libero_object/0", 64, 160
WIDTH = 256  # of the decoder: more than there are actions, so that any can be given


def experts_actions(start) -> np.ndarray:
    """Float [n, 7]: what the simulator is given until the expert has solved the task."""
    environment = start(SUITE, SIZE)
    task = next(one for one in environment.spec.tasks if one.name == TASK)
    observation = environment.reset(TASK, 0, seed=0, render=False)
    expert, given = LiberoExpert(task.instruction), []
    for number in range(MOST):
        command = Command(CommandKind.POLICY, expert.act(observation.poses), number, 0, 0, 0)
        given.append(environment_action(command, 1.0, environment.spec))
        step = environment.step(given[-1], render=False)
        observation = step.observation
        if step.success:
            return np.array(given)
    raise AssertionError(f"the expert has not solved {TASK} in {MOST} steps")


def trained_on_libero(path: Path, horizon: int) -> Path:
    """A random ACT as LeRobot saves it after training on LIBERO; its chunk is the episode."""
    names = ("image", "image2")
    views = tuple(View(f"observation.images.{name}", SIZE, SIZE) for name in names)
    config = replace(PRESETS["act-small"], horizon=horizon, state_dim=8, cameras=names, views=views,
                     width=WIDTH, heads=32, mlp=1024, decoder_layers=1)  # fmt: skip
    write_folder(path, config, seed=5)
    one = torch.ones(7)
    stats = {"mean": 0 * one, "std": one, "min": -one, "max": one, "q01": -one, "q99": one}
    for file in path.glob("policy_p*processor*.safetensors"):
        stored = load_file(file) | {f"action.{n}": v for n, v in stats.items()}
        save_file({n: v.clone() for n, v in stored.items()}, file)
    raw = json.loads((path / "config.json").read_text()) | {"n_action_steps": horizon}
    (path / "config.json").write_text(json.dumps(raw))
    dataset = {"repo_id": "HuggingFaceVLA/libero"}
    (path / "train_config.json").write_text(
        json.dumps({"env": {"type": "libero"}, "dataset": dataset})
    )
    return path


def teach(folder: Path, rows: torch.Tensor, actions: np.ndarray) -> None:
    """Make the head give ``actions`` [n, 7] for the decoder's first ``rows`` [n, WIDTH]."""
    tensors = {n: v.clone() for n, v in load_file(folder / "model.safetensors").items()}
    found = torch.linalg.lstsq(rows.double(), torch.from_numpy(actions)).solution
    tensors["model.action_head.weight"] = found.T.float().contiguous()
    tensors["model.action_head.bias"] = torch.zeros(7)
    save_file(tensors, folder / "model.safetensors")


def played(folder: Path, steps: int) -> Record:
    words = ["eval", "--suite", SUITE, "--checkpoint", str(folder), "--image-size", str(SIZE)]
    words += ["--max-steps", str(steps), "--no-ros", "--tasks", "0", "--dtype", "float32"]
    args = make_parser("eval")[0].parse_args(words)
    plan = plan_of(setup_of(args), variants_of(args), [TASK], 1)
    (variant,) = plan.variants
    with DirectRunner(plan.setup, (variant,)) as direct:
        return direct.play(Job(variant.label, TASK, 0, 0), variant)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_experts_actions_solve_its_task_out_of_a_lerobot_folder(start, tmp_path, monkeypatch):
    actions = experts_actions(start)
    folder = trained_on_libero(tmp_path / "act", len(actions))
    decoded: list[torch.Tensor] = []
    velocities = Act.velocities

    def kept(self, suffixes, step):
        inner = self._decoded

        def decode(x):
            decoded.append(inner(x).float().clone())
            return decoded[-1]

        self._decoded = decode
        try:
            return velocities(self, suffixes, step)
        finally:
            self._decoded = inner

    monkeypatch.setattr(Act, "velocities", kept)
    assert not played(folder, 1).success
    teach(folder, decoded[-1][0], actions)
    monkeypatch.setattr(Act, "velocities", velocities)
    record = played(folder, len(actions) + 5)
    assert record.error == ""
    assert record.success, record.reason
