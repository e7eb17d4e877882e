"""The policies that need no model, and what a spec refuses."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

from vla_ros.core.action_space import ActionKind, end_effectors, joints
from vla_ros.core.clock import ManualClock
from vla_ros.core.plain import info_of
from vla_ros.core.types import STAGES, Instruction, Observation, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import InvalidAction, Policy, PolicyRefused, PolicySpec, load_policy

CLOCK = ManualClock()


def seen(stamp: int) -> Observation:
    return Observation(stamp, 1, 1, np.zeros((4, 4, 3), np.uint8))


def act(policy: Policy, stamp: int) -> np.ndarray:
    inference = policy.step(seen(stamp), Timeline(1).mark("queue", 2), CLOCK)
    assert inference is not None
    assert inference.stamp_ns == stamp
    assert [name for name, _ in inference.timeline.marks] == list(STAGES[1:-1])
    assert inference.actions.shape == (1, 7)
    assert inference.actions.dtype == np.float64
    return inference.actions[0]


def replay(tmp_path, rows: np.ndarray, loop: bool = True) -> Policy:
    np.save(tmp_path / "rows.npy", rows)
    path = str(tmp_path / "rows.npy")
    policy = load_policy(PolicySpec("replay", replay_file=path, replay_loop=loop))
    policy.reset(Instruction("go", 0))
    return policy


def test_zero_does_not_move_and_keeps_the_gripper_open() -> None:
    policy = load_policy(PolicySpec("zero"))
    policy.reset(Instruction("go", 0))
    assert act(policy, 1).tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_wiring_policies_load_neither_torch_nor_a_simulator() -> None:
    code = (
        "import sys; from vla_ros.policies import *; load_policy(PolicySpec('zero'));"
        "from vla_ros.runtime.worker.executor import Executor;"
        "heavy = ('torch', 'mujoco', 'rclpy', 'vla_ros.engine.engine');"
        "sys.exit(any(m in sys.modules for m in heavy))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_replay_loops_and_rewinds(tmp_path) -> None:
    rows = np.arange(21.0).reshape(3, 7)
    policy = replay(tmp_path, rows)
    assert [act(policy, n)[0] for n in range(1, 6)] == [0, 7, 14, 0, 7]
    policy.reset(Instruction("go", 1))
    assert act(policy, 6)[0] == 0


def test_replay_gives_a_frame_sent_again_the_same_row(tmp_path) -> None:
    policy = replay(tmp_path, np.arange(21.0).reshape(3, 7))
    assert [act(policy, n)[0] for n in (1, 1, 2, 2, 3)] == [0, 0, 7, 7, 14]


def test_replay_without_loop_stays_with_the_last_gripper(tmp_path) -> None:
    policy = replay(tmp_path, np.full((2, 7), 0.25), loop=False)
    act(policy, 1)
    act(policy, 2)
    assert act(policy, 3).tolist() == [0, 0, 0, 0, 0, 0, 0.25]


def test_replay_reads_npz(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", actions=np.ones((2, 7), np.float32))
    policy = load_policy(PolicySpec("replay", replay_file=str(tmp_path / "a.npz")))
    policy.reset(Instruction("go", 0))
    assert act(policy, 1).tolist() == [1] * 7
    assert policy.info.action_rate_hz == 0.0


@pytest.mark.parametrize("hz", [30, 12.5, np.array([50.0])])
def test_replay_knows_the_rate_that_its_file_says(tmp_path, hz) -> None:
    np.savez(tmp_path / "a.npz", actions=np.ones((2, 7)), action_rate_hz=hz)
    policy = load_policy(PolicySpec("replay", replay_file=str(tmp_path / "a.npz")))
    assert policy.info.action_rate_hz == float(np.asarray(hz).item())


@pytest.mark.parametrize("hz", ["30", 0.0, np.nan, [1.0, 2.0]])
def test_a_rate_that_is_none_is_refused(tmp_path, hz) -> None:
    np.savez(tmp_path / "a.npz", actions=np.ones((2, 7)), action_rate_hz=hz)
    with pytest.raises(PolicyRefused, match="one number of Hz is wanted"):
        load_policy(PolicySpec("replay", replay_file=str(tmp_path / "a.npz")))


def test_replayed_nan_is_no_action_and_the_next_row_is(tmp_path) -> None:
    rows = np.ones((3, 7))
    rows[1, 6] = np.nan
    policy = replay(tmp_path, rows)
    act(policy, 1)
    with pytest.raises(InvalidAction, match="row 1"):
        act(policy, 2)
    act(policy, 3)


ARM = joints(ActionKind.JOINT_POSITION, ("a", "claw", "b"), ("claw",))


def test_replay_has_rows_of_any_space_and_stays_at_the_last_place(tmp_path) -> None:
    np.save(tmp_path / "arm.npy", np.array([[0.1, 0.0, 0.2], [0.3, 1.0, 0.4]]))
    for kind, rest in ((ARM.kind, [0.3, 1.0, 0.4]), (ActionKind.JOINT_DELTA, [0.0, 1.0, 0.0])):
        space = replace(ARM, kind=kind)
        given = {"replay_file": str(tmp_path / "arm.npy"), "replay_loop": False}
        policy = load_policy(PolicySpec("replay", action_space=space, **given))
        policy.reset(Instruction("go", 0))
        said = [policy.step(seen(n), Timeline(0), CLOCK).actions.tolist() for n in (1, 2, 3)]
        assert said == [[[0.1, 0.0, 0.2]], [[0.3, 1.0, 0.4]], [rest]]
        assert policy.info.action_space == space
    with pytest.raises(PolicyRefused, match=r"holds \[2, 3\]: it must be \[N, 7\], or .*x y z rx"):
        load_policy(PolicySpec("replay", replay_file=str(tmp_path / "arm.npy")))


def test_replay_repeats_chunks_and_stays_at_the_last_place_of_the_last(tmp_path) -> None:
    rows = np.arange(12.0).reshape(2, 2, 3)
    np.save(tmp_path / "chunks.npy", rows)
    given = {"replay_file": str(tmp_path / "chunks.npy"), "replay_loop": False}
    policy = load_policy(PolicySpec("replay", action_space=ARM, **given))
    assert policy.info.chunk_length == 2
    policy.reset(Instruction("go", 0))
    said = [policy.step(seen(n), Timeline(0), CLOCK).actions.tolist() for n in (1, 2, 3)]
    assert said == [*rows.tolist(), [[9.0, 10.0, 11.0]] * 2]


def test_zero_stays_where_the_joints_were_when_the_task_began() -> None:
    """It finds them by name in a state that has others too, in an order of its own."""
    policy = load_policy(PolicySpec("zero", action_space=ARM, joint_names=("b", "claw", "c", "a")))
    assert policy.info.state_dim == 4
    policy.reset(Instruction("go", 0))
    for number, state in ((1, (-0.5, 0.1, 3.0, 0.5)), (2, (-0.6, 0.2, 3.0, 0.6))):  # it sags
        observation = replace(seen(number), proprio=np.array(state))
        said = policy.step(observation, Timeline(0), CLOCK)
        assert said.actions[0, list(ARM.motion)].tolist() == [0.5, -0.5]
    policy.reset(Instruction("go on", 1))
    with pytest.raises(InvalidAction, match="no state of 4 joints"):
        policy.step(seen(3), Timeline(0), CLOCK)
    for names in ((), ("claw", "b")):
        with pytest.raises(PolicyRefused, match=r"by name: joint_names .* must have 'a'"):
            load_policy(PolicySpec("zero", action_space=ARM, joint_names=names))


def test_zero_moves_no_gripper_and_says_so_to_the_loop() -> None:
    policy = load_policy(PolicySpec("zero"))
    assert not policy.info.moves_grippers
    assert not info_of(asdict(policy.info)).moves_grippers
    assert load_policy(PolicySpec("scripted")).info.moves_grippers


def test_zero_in_spaces_without_places() -> None:
    moving = replace(ARM, kind=ActionKind.JOINT_DELTA)
    said = load_policy(PolicySpec("zero", action_space=moving)).step(seen(4), Timeline(0), CLOCK)
    assert said.actions.tolist() == [[0.0, 1.0, 0.0]]
    poses = end_effectors(ActionKind.END_EFFECTOR_POSE)
    with pytest.raises(PolicyRefused, match="a place to go to in action_space end_effector_pose"):
        load_policy(PolicySpec("zero", action_space=poses))


def test_replay_refuses_what_is_not_actions(tmp_path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((3, 8)))
    np.save(tmp_path / "empty.npy", np.zeros((0, 7)))
    np.save(tmp_path / "text.npy", np.array([["a"] * 7]))
    np.savez(tmp_path / "other.npz", other=np.zeros((3, 7)))
    (tmp_path / "bad.npy").write_bytes(b"no array at all")
    (tmp_path / "nil.npy").write_bytes(b"")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 broken")
    with (tmp_path / "pickle.npy").open("wb") as file:
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    names = "wide.npy empty.npy text.npy other.npz bad.npy nil.npy bad.npz pickle.npy none.npy"
    for name in names.split():
        with pytest.raises(PolicyRefused, match=name):
            load_policy(PolicySpec("replay", replay_file=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "magic"}, "zero, scripted, replay, vla, lerobot"),
        ({"name": "lerobot"}, "needs a checkpoint"),
        ({"name": "vla"}, "needs a checkpoint"),
        ({"name": "replay"}, "needs replay_file"),
        ({"action_scale": (1.0,) * 5}, "action_scale"),
        ({"action_scale": (1.0, 1.0, 1.0, 1.0, 1.0, float("nan"))}, "action_scale"),
        ({"action_scale": (0.0,) * 6}, "action_scale"),
        ({"warmup_size": (0, 256)}, "warmup_size"),
        ({"delay_frames": -1}, "delay_frames"),
    ],
)
def test_spec_refuses(fields: dict, words: str) -> None:
    with pytest.raises(PolicyRefused, match=words):
        PolicySpec(**fields)


def test_spec_travels() -> None:
    spec = PolicySpec("vla", engine=EngineOptions("random:small", gamma=3))
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_scripted_needs_ground_truth_and_a_task_it_knows() -> None:
    policy = load_policy(PolicySpec("scripted"))
    policy.reset(Instruction("sing a song", 0))
    with pytest.raises(InvalidAction, match="ground truth"):
        act(policy, 1)


def test_a_delay_gives_the_policy_older_observations(tmp_path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(21.0).reshape(3, 7))
    spec = PolicySpec("replay", replay_file=str(tmp_path / "rows.npy"), delay_frames=2)
    policy = load_policy(spec)
    assert policy.info.pipeline_depth == 3
    for epoch in range(2):
        policy.reset(Instruction("go", epoch))
        said = [policy.step(seen(n), Timeline(1), CLOCK) for n in range(1, 6)]
        assert [one and one.stamp_ns for one in said] == [None, None, 1, 2, 3]
        assert [one.actions[0, 0] for one in said if one] == [0, 7, 14]
