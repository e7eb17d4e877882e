"""Demonstrations of LIBERO: which episodes, where things appear, and what does not go together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("h5py")
pytest.importorskip("torch")

from vla_ros.cli.main import main
from vla_ros.core.errors import UserError
from vla_ros.core.types import Pose
from vla_ros.sim.env import EnvSpec, Task
from vla_ros.sim.libero.environment import CameraPose
from vla_ros_lab.train.collect import ShardReport
from vla_ros_lab.train.collect_libero import OBJECTS, episodes_of, pixels_of, tasks_of
from vla_ros_lab.train.options import CollectOptions

PUT = "pick up the {} and place it in the basket"


def spec_of(*instructions: str) -> EnvSpec:
    tasks = (Task(f"libero_object/{n}", text, 50, 280, ()) for n, text in enumerate(instructions))
    return EnvSpec("libero", tuple(tasks), ("agentview",), 256)


SPEC = spec_of(PUT.format("milk"), "open the drawer", PUT.format("ketchup"))


def test_every_task_that_the_expert_knows_has_its_turn_and_the_first_states_none() -> None:
    options = CollectOptions(demonstrations=190, suite="libero_object", per_shard=20)
    played = [e for n in range(options.shard_count) for e in episodes_of(options, SPEC, n)]
    assert len(played) == 190
    assert [e.task for e in played[::20]] == ["libero_object/0", "libero_object/2"] * 5
    assert {e.initial_state for e in played} == set(range(10, 50))
    milk = Counter(e.initial_state for e in played if e.task == "libero_object/0")
    assert set(milk.values()) == {2, 3}  # 100 of 40 states
    assert {e.max_steps for e in played} == {280} and {e.seed for e in played} == {0}


def test_a_suite_of_which_the_expert_knows_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="the scripted expert knows none of this suite's tasks"):
        tasks_of(spec_of("open the drawer", "turn on the stove"))


def test_a_suite_s_shards_are_libero_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make(options: CollectOptions, _: Path, number: int) -> ShardReport:
        made.append((options.suite, number))
        return ShardReport(0, 0, 0)

    monkeypatch.setattr("vla_ros_lab.train.collect_libero.make_shard", make)
    monkeypatch.setattr("vla_ros.data.episodes.plan.world_of", lambda *_: None)  # is installed
    words = ("--out", str(tmp_path), "--suite", "libero_object", "--demos", "20")
    assert main(["collect", *words]) == 0
    assert made == [("libero_object", 0), ("libero_object", 1)]


def test_things_appear_where_the_camera_looks() -> None:
    """From 1 m above the origin, looking down: world x is to the right, world y up."""
    eye = CameraPose(np.array([0.0, 0.0, 1.0]), np.eye(3), float(np.radians(90)))
    lie = {
        "milk_1": (0, 0, 0),
        "butter_1": (0.5, 0, 0),
        "basket_1": (0, 0.5, 0),
        "gripper": (0, 0, 2),
    }
    poses = {name: Pose(tuple(map(float, at)), (0, 0, 0, 1)) for name, at in lie.items()}
    found = dict(zip(OBJECTS, pixels_of(eye, poses, OBJECTS, 128), strict=True))
    assert np.allclose(found["milk_1"], (64, 64))
    assert np.allclose(found["butter_1"], (96, 64)) and np.allclose(found["basket_1"], (64, 32))
    assert np.isnan(found["gripper"]).all() and np.isnan(found["plate_1"]).all()


OBJECT = ["--suite", "libero_object"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([*OBJECT, "--tasks", "reach"], "--tasks: of the tabletop alone"),
        ([*OBJECT, "--two-ways"], "--two-ways: of the tabletop alone"),
        ([*OBJECT, "--wrist"], "--wrist: of the tabletop alone"),
        ([*OBJECT, "--crowded"], "--crowded: of the tabletop alone"),
        (["--suite", "object"], "libero has no suite 'object'"),
    ],
)
def test_options_of_the_tabletop_and_a_suite_that_is_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert main(["collect", "--out", str(tmp_path / "set"), *words]) == 2
    assert line in capsys.readouterr().err
    assert not (tmp_path / "set").exists()
