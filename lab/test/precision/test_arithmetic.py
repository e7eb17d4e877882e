"""Indices told from rows, margins of flips, displacements, and what thresholds say of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionKind, joints
from vla_ros_lab.precision.compare import compare, differences, moved_rows, relative_error, surer
from vla_ros_lab.precision.judge import Thresholds, allowed, judge
from vla_ros_lab.precision.watch import (
    SIDE,
    Choices,
    EngineTrace,
    Stage,
    StageLayout,
    gripper_choices,
)

MOST = Thresholds(0.05)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(2, 40), st.integers(0, 3), st.data())
def test_a_row_that_was_swapped_is_told_and_rounding_is_not(
    seed: int, count: int, first: int, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(count + first, 24, generator=generator)
    used = table[first:].bfloat16().float()
    assert moved_rows(used, table, first) == []
    place = data.draw(st.integers(0, count - 1))
    other = data.draw(st.integers(0, count + first - 1).filter(lambda i: i != first + place))
    used[place] = table[other].bfloat16()
    (moved,) = moved_rows(used, table, first)
    assert (moved.position, moved.right, moved.found) == (place, first + place, other)
    assert 0.9 < moved.margin <= 1.0


def test_equal_rows_of_a_table_are_one_and_the_same() -> None:
    table = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert moved_rows(table, table) == []


def test_more_rows_than_a_block() -> None:
    table = torch.randn(1200, 8, generator=torch.Generator().manual_seed(1))
    used = table.clone()
    used[1100] = table[3]
    assert [(m.position, m.found) for m in moved_rows(used, table)] == [(1100, 3)]


def test_relative_error() -> None:
    assert relative_error(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, 0.0]])) == 0.5
    assert relative_error(torch.zeros(1, 2), torch.zeros(1, 2)) == 0.0
    assert relative_error(torch.ones(1, 2), torch.zeros(1, 2)) == float("inf")
    assert relative_error(torch.tensor([[float("nan")]]), torch.ones(1, 1)) == float("inf")


def test_differences_in_mm_degrees_and_opening() -> None:
    right = np.array([[0.0, 0, 0, 0, 0, np.pi - 0.05, 1.0], [0.01, 0.02, 0, 0, 0, 0, 0.0]])
    told = np.array([[0.003, 0.004, 0, 0, 0, -np.pi + 0.05, 0.9], [0.01, 0.02, 0, 0.1, 0, 0, 0.0]])
    mm, degrees, opening = differences(told, right, END_EFFECTOR_DELTA)
    assert mm == pytest.approx(5.0)
    assert degrees == pytest.approx(np.degrees(0.1))  # by the shorter side round
    assert opening == pytest.approx(0.1)
    arm = joints(ActionKind.JOINT_POSITION, ("a", "b", "g"), ("g",))
    found = differences(np.array([[0.1, 0.0, 1.0]]), np.array([[0.0, -0.2, 1.0]]), arm)
    assert found == (0.0, pytest.approx(np.degrees(0.2)), 0.0)


def told(logits: list[list[float]], action: list[float], error: float = 0.0) -> EngineTrace:
    rows = torch.tensor(logits)
    values = torch.ones(3, 4) * (1 + error)
    actions = np.array([action])
    tokens = Choices("tokens (argmax)", rows.argmax(1), logits=rows)
    return EngineTrace(
        (Stage("vision", values, StageLayout()), Stage("layer 0", values)),
        (tokens, *gripper_choices(actions, END_EFFECTOR_DELTA)),
        (),
        tuple(tokens.picked.tolist()),
        actions,
    )


STILL = [0.0] * 6
OPEN, CLOSED = [*STILL, 1.0], [*STILL, 0.0]


def test_a_close_call_may_flip_and_a_clear_one_may_not() -> None:
    right = [told([[1.0, 1.02, 0.0]], OPEN), told([[5.0, 0.0, 0.0]], OPEN)]
    close = [told([[1.0, 0.99, 0.0]], CLOSED), right[1]]
    found = compare(right, close, END_EFFECTOR_DELTA)
    flip, side = found.flips
    chances = torch.tensor([1.0, 1.02, 0.0]).softmax(0)
    both = float(chances[1] + chances[0])
    assert flip.margin == pytest.approx(float(chances[1] - chances[0]) / both, abs=1e-6)
    assert flip.gap == pytest.approx(0.02, abs=1e-6)
    assert side.name == SIDE
    assert side.margin == flip.margin  # as sure as the token behind it
    assert found.agreement == 0.5
    assert found.displacement.gripper == 1.0
    assert judge(found, MOST).passed
    assert judge(found, MOST).judged == 1  # displacements, of the other frame alone
    assert not judge(found, replace(MOST, agreement=0.9)).passed
    assert len(judge(found, replace(MOST, margin=0.0)).reasons) == 3  # token, side, opening
    clear = compare(right, [right[0], told([[0.0, 5.0, 0.0]], OPEN)], END_EFFECTOR_DELTA)
    (reason,) = judge(clear, MOST).reasons
    assert "1 flipped where the reference was sure, by up to 0.99 (frame 1" in reason


def test_a_flip_far_away_is_no_close_call_where_many_bins_share_the_probability() -> None:
    """Soft bins: the surest of 256 has 0.07, so no difference of probabilities is ever above it.
    A fault that turns the arm round is found all the same, and a neighbor may still win."""
    bins = torch.arange(256.0)

    def soft(middle: float) -> list[float]:
        return (-((bins - middle) ** 2) / (2 * 5.7**2)).tolist()

    right = told([soft(100.2)], OPEN)
    assert float(torch.tensor(soft(100.2)).softmax(0).max()) < 0.08
    near = told([soft(101.4)], OPEN)
    assert judge(compare([right], [near], END_EFFECTOR_DELTA), MOST).passed
    far = told([soft(130)], [0.05, 0, 0, 0, 0, 0, 1.0])
    (reason,) = judge(compare([right], [far], END_EFFECTOR_DELTA), MOST).reasons[:1]
    assert "flipped where the reference was sure, by up to 1.00" in reason


def test_of_int4_a_clear_flip_in_a_hundred_may_be_and_two_may_not() -> None:
    """What flips so is let through with the displacement that follows; other formats: none."""
    formats = ("decoder=int4,head=int8", "int8", "")
    clear = [allowed("float32", each).clear for each in formats]
    assert clear == [0.01, 0.0, 0.0]
    int4 = replace(MOST, clear=clear[0])
    sure, turned = [[5.0, 0.0, 0.0]] * 10, [[5.0, 0.0, 0.0]] * 9 + [[0.0, 5.0, 0.0]]
    right = [told(sure, OPEN)] * 10  # a hundred tokens
    for count, passes in ((1, True), (2, False)):
        one = told(turned, [0.05, 0, 0, 0, 0, 0, 1.0])
        found = compare(right, [one] * count + right[count:], END_EFFECTOR_DELTA)
        assert judge(found, int4).passed == passes
        assert not judge(found, MOST).passed
    assert "0.3 is the most, or 1 % of them" in judge(found, int4).reasons[0]
    assert any("50 mm" in reason for reason in judge(found, int4).reasons)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=2))
def test_of_two_alone_the_margin_is_the_difference_of_their_probabilities(row: list[float]) -> None:
    chances = torch.tensor(row, dtype=torch.float64).softmax(0)
    assert surer(row[0] - row[1]) == pytest.approx(float(chances[0] - chances[1]), abs=1e-9)


def test_a_side_without_a_token_behind_it_is_as_sure_as_it_is_far_from_the_middle() -> None:
    row = [[5.0, 0.0, 0.0]]
    near = compare([told(row, [*STILL, 0.55])], [told(row, [*STILL, 0.45])], END_EFFECTOR_DELTA)
    assert judge(near, MOST).passed
    far = compare([told(row, OPEN)], [told(row, CLOSED)], END_EFFECTOR_DELTA)
    assert len(judge(far, MOST).reasons) == 2  # the side, and the opening


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ([0.02, 0, 0, 0, 0, 0, 1.0], "20 mm, 10 is the most"),
        ([0, 0, 0, 0.5, 0, 0, 1.0], "28.6 degrees"),
        ([0, 0, 0, 0, 0, 0, float("nan")], "opening"),
    ],
)
def test_what_is_too_far_is_said(moved: list[float], said: str) -> None:
    row = [[5.0, 0.0, 0.0]]
    found = compare([told(row, OPEN)], [told(row, moved)], END_EFFECTOR_DELTA)
    assert any(said in reason for reason in judge(found, MOST).reasons)


def test_a_stage_over_its_limit_names_the_first() -> None:
    row = [[5.0, 0.0, 0.0]]
    found = compare([told(row, OPEN)], [told(row, OPEN, 0.08)], END_EFFECTOR_DELTA)
    (reason,) = judge(found, MOST).reasons
    assert "2 of 2 stages are off by more than 0.05; the first is vision, by 0.08" in reason


@pytest.mark.parametrize(
    "wrong", [{"error": -1.0}, {"error": 1, "agreement": 2.0}, {"error": 1, "clear": 1.5}]
)
def test_thresholds_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give 0"):
        Thresholds(**wrong)
