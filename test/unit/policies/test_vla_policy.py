"""The engine as a policy: units, errors, options. A random small model on one thread."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: no vla policy here")

from vla_ros.core import STAGES, Inference, Instruction, Observation, Timeline
from vla_ros.policies import InvalidAction, PolicyRefused, PolicySpec, load_policy
from vla_ros.policies.vla import VlaPolicy, engine_options
from vla_ros.timing import SystemClock

CLOCK = SystemClock()
SCALE = (0.05, 0.05, 0.05, 0.5, 0.5, 0.5)
TASK = Instruction("pick up the red cube and place it on the plate", 0)


def load(**fields) -> VlaPolicy:
    policy = load_policy(
        PolicySpec("vla", checkpoint="random:small", num_threads=1, seed=1, **fields)
    )
    assert isinstance(policy, VlaPolicy)
    return policy


def step(policy: VlaPolicy) -> Inference | None:
    image = np.random.default_rng(3).integers(0, 256, (60, 80, 3), np.uint8)
    now = CLOCK.steady_ns()
    return policy.step(Observation(5, now, now, image), Timeline(now).mark("queue", now), CLOCK)


def test_actions_are_scaled_into_metres_and_radians() -> None:
    plain, scaled = load(), load(action_scale=SCALE)
    for policy in (plain, scaled):
        policy.reset(TASK)
    one, other = step(plain), step(scaled)
    assert one is not None
    assert other is not None
    assert one.tokens == other.tokens
    assert len(one.tokens) == 7
    assert np.abs(one.actions[0, :6]).max() > 0
    np.testing.assert_allclose(other.actions[:, :6], one.actions[:, :6] * SCALE)
    assert other.actions[0, 6] == one.actions[0, 6]
    assert 0 <= one.actions[0, 6] <= 1
    assert [name for name, _ in one.timeline.marks] == list(STAGES[1:-1])
    assert plain.info.dtype == "float32"


def test_task_that_the_model_cannot_take_makes_invalid_results_until_the_next() -> None:
    policy = load()
    with pytest.raises(InvalidAction, match="no instruction"):
        step(policy)
    policy.reset(Instruction("word " * 5000, 0))
    with pytest.raises(InvalidAction, match="tokens"):
        step(policy)
    policy.reset(TASK)
    assert step(policy) is not None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": "magic"}, "schedule is 'magic'"),
        ({"dtype": "int8"}, "dtype"),
        ({"schedule_options": {"colour": 1}}, "colour"),
        ({"schedule_options": {"device": "cuda"}}, "device"),
        ({"schedule_options": {"gamma": 0}}, "gamma"),
        ({"unnorm_key": "nowhere"}, "nowhere"),
    ],
)
def test_unusable_configuration_is_refused(fields: dict, words: str) -> None:
    with pytest.raises(PolicyRefused, match=words):
        load(**fields)


def test_missing_checkpoint_is_refused(tmp_path) -> None:
    with pytest.raises(PolicyRefused):
        load_policy(PolicySpec("vla", checkpoint=str(tmp_path / "nowhere"), num_threads=1))


def test_spec_fields_reach_the_engine() -> None:
    spec = PolicySpec(
        "vla", checkpoint="random:small", schedule="speculative", dtype="bfloat16", seed=4,
        schedule_options={"drafter": "temporal", "gamma": 3}, cuda_graphs=False,
    )  # fmt: skip
    options = engine_options(spec)
    assert (options.schedule, options.gamma, options.dtype) == ("speculative", 3, "bfloat16")
    assert (options.seed, options.cuda_graphs, options.unnorm_key) == (4, False, None)
