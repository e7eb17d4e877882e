"""A flow policy behind load_engine, as the policy of a worker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.engine import CLOCK, images
from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionKind, action_space_of
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.registry import write_folder
from vla_ros.policies.base import InvalidAction, PolicyRefused, PolicySpec
from vla_ros.policies.vla import VlaPolicy
from vla_ros.runtime.worker.worker import warm_up

SPEC = PolicySpec(
    "vla",
    engine=EngineOptions("random:smolvla-small"),
    warmup_count=2,
    action_scale=(0.05,) * 3 + (0.5,) * 3,
)
FRONT, WRIST = images(2, still=0.0)


def test_load_engine_looks_at_the_checkpoint() -> None:
    assert load_engine(EngineOptions("random:pi05-small")).info.decoding == "flow"
    token = load_engine(EngineOptions("random:small"))
    assert (token.info.decoding, token.cameras, token.info.state_dim) == ("speculative", 1, 0)


def test_options_of_flow_policies_are_refused_for_token_policies() -> None:
    with pytest.raises(ValueError, match="camera_map, flow_steps: these options are for flow"):
        load_engine(EngineOptions("random:small", flow_steps=2, camera_map="a=main"))


def test_what_auto_would_draft_with_is_no_obstacle() -> None:
    """An evaluation in lock-step turns adaptive drafts off, whoever acts."""
    asked = EngineOptions("random:smolvla-small", adaptive_draft=False, gamma=3)
    assert isinstance(load_engine(asked), Engine)


def test_the_policy_is_warmed_up_with_a_state_and_acts() -> None:
    policy = VlaPolicy(SPEC)
    ready = warm_up(policy, SPEC, 1, CLOCK)
    assert ready.info.state_dim == 9
    policy.reset(Instruction("pick up the red cube", 1))
    observation = Observation(1, 1, 1, FRONT, WRIST, np.zeros(9))
    answer = policy.step(observation, Timeline(0), CLOCK)
    assert answer is not None
    assert answer.actions.shape == (10, 7)
    assert np.abs(answer.actions[:, :3]).max() < 0.05
    assert answer.actions[:, 6].min() >= 0
    assert answer.actions[:, 6].max() <= 1
    for lacking in (
        Observation(2, 2, 2, FRONT, WRIST),
        Observation(2, 2, 2, FRONT, None, np.zeros(9)),
    ):
        with pytest.raises(
            InvalidAction, match=r"needs 9 values of robot state|needs a wrist image"
        ):
            policy.step(lacking, Timeline(0), CLOCK)


def test_what_cannot_be_loaded_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"type": "pi0", "chunk_size": "many"}')
    with pytest.raises(PolicyRefused, match=r"config.json: chunk_size is 'many'"):
        VlaPolicy(PolicySpec("vla", engine=EngineOptions(str(tmp_path))))


@pytest.mark.parametrize(("dim", "names"), [(6, 6), (14, 14)])
def test_actions_of_another_width_are_joints_in_the_units_of_their_data(
    tmp_path: Path, dim: int, names: int
) -> None:
    config = replace(PRESETS["smolvla-small"], action_dim=dim, action_width=16)
    write_folder(tmp_path, config, seed=2)
    spec = PolicySpec("vla", engine=EngineOptions(str(tmp_path)), warmup_count=1)
    policy = VlaPolicy(spec)
    space = policy.info.action_space
    assert space.kind is ActionKind.JOINT_POSITION
    assert space.names == tuple(f"joint_{i}" for i in range(names))
    assert f"{dim} numbers an action, as its data have them" in policy.info.conventions
    warm_up(policy, spec, 1, CLOCK)
    policy.reset(Instruction("pick up the red cube", 1))
    observation = Observation(1, 1, 1, FRONT, WRIST, np.zeros(9))
    said = policy.step(observation, Timeline(0), CLOCK)
    engine = load_engine(EngineOptions(str(tmp_path)))
    engine.reset("pick up the red cube")
    unscaled = engine.step(observation, Timeline(0), CLOCK)
    assert said is not None
    assert unscaled is not None
    assert said.actions.shape == (10, dim)
    assert np.array_equal(said.actions, unscaled.actions)
    with pytest.raises(PolicyRefused, match=rf"actions have {dim} numbers: leave it out"):
        VlaPolicy(replace(spec, action_scale=(1.0,) * 6))


def test_joints_are_called_what_the_folder_calls_them() -> None:
    names = ("shoulder", "elbow", "wrist", "claw")
    assert action_space_of(4, names).names == names
    assert action_space_of(4, ("a", "a", "b", "c")).names[0] == "joint_0"
    assert action_space_of(7, names) == END_EFFECTOR_DELTA


def test_joints_of_a_checkpoint_in_degrees_become_radians(tmp_path: Path) -> None:
    """LeRobot's SO-101: five joints in degrees and a gripper from 0 to 100."""
    config = replace(PRESETS["smolvla-small"], action_dim=6, action_width=16, state_dim=6)
    write_folder(tmp_path, config, seed=2)
    spec = PolicySpec("vla", engine=EngineOptions(str(tmp_path)), warmup_count=1)
    told = replace(
        spec,
        state_units=("deg",) * 5 + ("0..100=-0.2..1.8",),
        action_units=("deg",) * 5 + ("0..100",),
    )
    joints = np.array([0.1, -0.2, 0.3, -0.4, 0.5, 0.8])  # rad, the gripper half open
    degrees = np.array([*np.degrees(joints[:5]), 50.0])
    answers, middles = [], []
    for which, state in ((spec, degrees), (told, joints)):
        policy = VlaPolicy(which)
        middles.append(policy.info.state_middle)
        policy.reset(Instruction("pick up the red cube", 1))
        said = policy.step(Observation(1, 1, 1, FRONT, WRIST, state), Timeline(0), CLOCK)
        assert said is not None
        answers.append(said.actions)
    theirs, ours = answers
    assert np.allclose(middles[1][:5], np.radians(middles[0][:5]))
    assert middles[1][5] == pytest.approx(-0.2 + 0.02 * middles[0][5])
    assert np.allclose(ours[:, :5], np.radians(theirs[:, :5]), rtol=1e-5)
    assert np.allclose(ours[:, 5], theirs[:, 5] / 100, rtol=1e-5)
    with pytest.raises(PolicyRefused, match="action_units has 2 units, the checkpoint 6 values"):
        VlaPolicy(replace(spec, action_units=("deg", "deg")))
    seven = PolicySpec("vla", engine=EngineOptions("random:smolvla-small"), action_units=("deg",))
    with pytest.raises(PolicyRefused, match="x in deg, wanted m; y in deg"):
        VlaPolicy(seven)
