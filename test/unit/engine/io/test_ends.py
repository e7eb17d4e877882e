"""Statistics whose ends are exchanged turn every motion round: each reader refuses them by name."""

from __future__ import annotations

import numpy as np
import pytest

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.ends import check_ends
from vla_ros.engine.io.tokens import read_normalizer
from vla_ros.policies.base import PolicyRefused
from vla_ros.policies.conventions import conventions_from

LOW, HIGH = [-0.02, -0.03, -0.01, 0.0, 0.0, -0.1, 0.0], [0.02, 0.03, 0.01, 0.0, 0.0, 0.1, 1.0]


def stats(low=LOW, high=HIGH, **more):
    return {"robot": {"action": {"q01": low, "q99": high, **more}}}


def test_openvlas_are_refused_with_the_places():
    with pytest.raises(CheckpointError, match="q01 is above q99 in values 0, 1, 2, 5, 6 "):
        read_normalizer(stats(HIGH, LOW), None)
    one = [*HIGH[:1], *LOW[1:]]
    with pytest.raises(CheckpointError, match=r"q01 is above q99 in value 0 "):
        read_normalizer(stats(one, [*LOW[:1], *HIGH[1:]]), None)
    mask = [True] * 6 + [False]
    masked = read_normalizer(stats([*LOW[:6], 1.0], [*HIGH[:6], 0.0], mask=mask), None)
    assert masked.low[6] == 1.0, "what is not scaled may be anything"


def test_a_deviation_is_not_below_zero_and_rows_are_looked_at():
    check_ends([1.0, 1.0], [0.0, 0.5], ("mean", "std"), "here")
    with pytest.raises(CheckpointError, match="here: std is below 0 in value 1 "):
        check_ends([0.0, 0.0], [1.0, -0.5], ("mean", "std"), "here")
    with pytest.raises(CheckpointError, match="min is above max in values 0, 1 "):
        check_ends(np.eye(2), np.zeros((2, 2)), ("min", "max"), "here")


def test_what_never_moves_is_said_and_no_position_at_all_is_doubted():
    found = conventions_from(stats())
    assert "rx, ry never move" in str(found) and found.doubt == ""
    still = conventions_from(stats([0.0] * 7, [0.0] * 7))
    assert "never moved a position" in still.doubt


@pytest.mark.parametrize("value", [None, "fast", [[1.0]]])
def test_no_numbers_are_a_line(value):
    with pytest.raises(PolicyRefused, match="q01 and q99 are no lists of numbers"):
        conventions_from(stats([value] * 7))
