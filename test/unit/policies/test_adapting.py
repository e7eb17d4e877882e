"""A policy behind an adaptation answers a robot of other conventions as it answers its own data."""

from dataclasses import replace

import numpy as np
import pytest

from vla_ros.core.adaptation import (
    ActionAdaptation,
    Adaptation,
    ImageAdaptation,
    ValueAdaptation,
)
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicyRefused, PolicySpec, load_policy
from vla_ros.policies.sessions import SessionRequest, open_session, step_together

FLOW = PolicySpec("vla", EngineOptions("shipped:tabletop-flow", dtype="float32", num_threads=1))
CLOCK = SystemClock()
ADAPTATION = Adaptation(
    {"main": ImageAdaptation(colors="bgr", rotate=90)},
    ValueAdaptation((1, 0, 2, 3, 4, 5, 6, 7), (-1.0,) + (1.0,) * 7, (0.1,) + (0.0,) * 7),
    ActionAdaptation(ValueAdaptation(factor=(1, 1, 1, 1, 1, 1, -1), offset=(0,) * 6 + (1,)), "z90"),
)


def observation(stamp=5):
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (128, 128, 3), dtype=np.uint8)
    state = np.array([0.1, -0.2, 0.9, 3.1, 0.0, 0.0, 0.03, -0.03])
    return Observation(stamp, stamp, CLOCK.steady_ns(), image, proprio=state)


def robots(seen):
    """What a robot of the other conventions shows of the same scene."""
    theirs = ADAPTATION.images["main"].undo(seen.image)
    return replace(seen, image=theirs, proprio=ADAPTATION.state.undo(seen.proprio))


def answer(policy, seen):
    now = CLOCK.steady_ns()
    return policy.step(seen, Timeline(now).mark("queue", now), CLOCK).actions


@pytest.fixture(scope="module")
def plain():
    return load_policy(FLOW)


@pytest.fixture(scope="module")
def other():
    return load_policy(replace(FLOW, adaptation=ADAPTATION))


def test_the_same_scene_of_another_robot_gets_the_same_motion(plain, other):
    for policy in (plain, other):
        policy.reset(Instruction("reach the red cube", 1))
    seen = observation()
    own, theirs = answer(plain, seen), answer(other, robots(seen))
    assert np.allclose(ADAPTATION.action.undo(theirs, plain.info.action_space), own, atol=1e-6)
    assert np.allclose(theirs[:, 0], -own[:, 1], atol=1e-6)
    assert np.allclose(theirs[:, 6], 1 - own[:, 6], atol=1e-6)


def test_sessions_are_behind_it_too(plain, other):
    sessions = [open_session(other) for _ in range(2)]
    for one in (plain, *sessions):
        one.reset(Instruction("reach the red cube", 1))
    seen = robots(observation())
    now = CLOCK.steady_ns()
    requests = [SessionRequest(s, seen, Timeline(now).mark("queue", now)) for s in sessions]
    want = ADAPTATION.action.apply(answer(plain, observation()), plain.info.action_space)
    for got in step_together(requests, CLOCK):
        assert np.allclose(got.actions, want, atol=1e-5)


def test_it_is_said(plain, other):
    assert "adapted: cameras.main.colors bgr" in other.info.conventions
    assert plain.info.conventions in other.info.conventions
    if plain.info.state_middle:
        back = ADAPTATION.state.apply(np.array(other.info.state_middle))
        assert np.allclose(back, plain.info.state_middle)


def test_what_does_not_fit_is_refused_in_a_line():
    wrong = Adaptation(state=ValueAdaptation(factor=(1.0, -1.0)))
    with pytest.raises(PolicyRefused, match="state_factor has 2 values: give 8"):
        load_policy(replace(FLOW, adaptation=wrong))
