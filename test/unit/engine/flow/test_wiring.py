"""A flow policy behind load_engine, as the policy of a worker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.engine import CLOCK, images
from vla_ros.core import Instruction, Observation, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.flow.engine import FlowEngine
from vla_ros.executor.serve import warm_up
from vla_ros.policies.base import InvalidAction, PolicyRefused, PolicySpec
from vla_ros.policies.vla import VlaPolicy

SPEC = PolicySpec(
    "vla", checkpoint="random:smolvla-small", warmup_count=2, action_scale=(0.05,) * 3 + (0.5,) * 3
)
FRONT, WRIST = images(2, still=0.0)


def test_load_engine_looks_at_the_checkpoint() -> None:
    assert isinstance(load_engine(EngineOptions("random:pi05-small")), FlowEngine)
    token = load_engine(EngineOptions("random:small"))
    assert isinstance(token, Engine)
    assert (token.cameras, token.info.state_dim) == (1, 0)


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
        VlaPolicy(PolicySpec("vla", checkpoint=str(tmp_path)))
