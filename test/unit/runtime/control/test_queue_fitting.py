"""S where it is left open: as many actions of a chunk as the age limit allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from unit.runtime.control.test_queue import H, Line
from vla_ros.core.types import PolicyInfo
from vla_ros.data.episodes.play import chunking_of
from vla_ros.data.episodes.records import Variant
from vla_ros.runtime.control.queue import Chunking, Execution
from vla_ros.runtime.safety import Limits

ASKED_FOR_ALL = [Execution.SYNC, Execution.ASYNC, Execution.RTC]


def policy(length=H, depth=1):
    return PolicyInfo("p", chunk_length=length, pipeline_depth=depth)


@given(
    length=st.integers(2, 60),
    depth=st.integers(1, 4),
    inference_ms=st.integers(0, 400),
    late=st.integers(0, 6),
    age_ms=st.integers(110, 3000),
    rate=st.sampled_from([5.0, 10.0, 20.0, 50.0]),
    execution=st.sampled_from(ASKED_FOR_ALL),
)
def test_it_is_the_most_that_is_fresh_enough_and_no_fewer_than_come_late(
    length, depth, inference_ms, late, age_ms, rate, execution
):
    assume(age_ms / 1e3 > 1 / rate)
    limits = Limits(control_rate_hz=rate, camera_rate_hz=rate, max_age_s=age_ms / 1e3)
    info, inference_s = policy(length, depth), inference_ms / 1e3
    found = Chunking(execution, delay_frames=late).fitted(limits, info, inference_s)
    kept = found.replan_interval
    assert 1 <= kept <= length
    met = found.least_age_s(limits, info, inference_s) <= limits.max_age_s
    needed = late + math.ceil(inference_s * rate - 1e-6)
    if kept < length:
        assert found.least_age_s(limits, info, inference_s, kept + 1) > limits.max_age_s
    if not met:  # then nobody can: fewer would end before the next is there
        assert kept == (1 if execution is Execution.SYNC else min(length, max(1, needed)))
    if execution is not Execution.SYNC:
        assert kept >= min(length, needed)


@pytest.mark.parametrize(
    ("chunking", "length"),
    [
        (Chunking(replan_interval=7), H),
        (Chunking(Execution.ENSEMBLE), H),
        (Chunking(), 1),
    ],
)
def test_what_was_given_stays_and_so_do_ensembles_and_single_actions(chunking, length):
    assert chunking.fitted(Limits(max_age_s=0.2), policy(length), 0.1) is chunking


def test_an_evaluation_executes_as_the_node_in_lock_step():
    """0.3 s hold a camera period and five actions; of those, two come late."""
    limits = Limits(max_age_s=0.3)
    whole = Chunking(delay_frames=2).fitted(limits, policy(), 0.0)
    assert whole.replan_interval == 3
    assert chunking_of(Variant("v", delay_frames=2), limits, policy()) == whole
    with pytest.raises(ValueError, match=r"up to 0\.45 s old, the limit is 0\.3 s"):
        chunking_of(Variant("v", replan_interval=8), limits, policy())


def test_the_actions_of_a_chunk_that_is_too_long_for_the_limit_are_never_too_old():
    line = Line(2, max_age_s=0.35, fit=True)
    said = line.run(40)
    assert all(isinstance(s, tuple) for s in said[2:]), "it never stands still"
    assert max(place for _, place in said[2:]) < H - 1
    ages = [(c.published_ns - c.stamp_ns) / 1e9 for c in line.bench.out.commands]
    assert 0.2 < max(ages[2:]) <= 0.35


def test_s_follows_a_limit_that_changes_while_it_runs():
    line = Line(0)
    line.run(2 * H)
    control = line.bench.control
    control.execute_by(Chunking().fitted(Limits(max_age_s=0.2), policy(), 0.0))
    said = line.run(4 * H)[H:]
    assert {place for _, place in said} == {0, 1, 2}


def test_a_limit_that_leaves_room_for_one_action_gets_one():
    info = PolicyInfo("p", chunk_length=8)
    assert Chunking().fitted(Limits(max_age_s=0.11), info, 0.0).replan_interval == 1
    assert Chunking().fitted(Limits(max_age_s=0.11), policy(2), 0.0).replan_interval == 1
    late = Chunking(delay_frames=1).fitted(Limits(max_age_s=0.11), info, 0.06)
    assert late.replan_interval == 3, "that many come too late, whatever the limit says"
