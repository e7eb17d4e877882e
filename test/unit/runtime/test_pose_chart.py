"""Poses as displacements from an anchor: there and back, and limits that hold for the arm too."""

from __future__ import annotations

import numpy as np
import pytest

from vla_ros.core import rotation
from vla_ros.runtime.door import Door, TrajectoryCourse
from vla_ros.runtime.limiter import Leash, Reach
from vla_ros.runtime.pose_chart import PoseChart

PERIOD_NS = 50_000_000
REACH = Reach(
    *(np.full(6, sign * np.inf) for sign in (-1, 1)), np.full(6, 0.1), np.full(6, np.inf),
    *(np.full(6, np.inf) for _ in range(3)), True, (), (),
)  # fmt: skip
DOWN = np.array([0.4, -0.1, 0.3, np.pi, 0.0, 0.0])


def same(one, other):
    """The same pose: positions, and the angle between the rotations."""
    assert np.allclose(one[:3], other[:3], atol=1e-9)
    assert float(np.linalg.norm(rotation.relative(one[3:], other[3:]))) < 1e-7


@pytest.mark.parametrize("seed", range(5))
def test_a_pose_is_found_again_by_its_displacement(seed):
    random = np.random.default_rng(seed)
    chart = PoseChart(2)
    chart.of(np.concatenate((DOWN, -DOWN)))
    for _ in range(20):
        pose = random.normal(size=12)
        found = chart.pose(chart.of(pose))
        same(found[:6], pose[:6])
        same(found[6:], pose[6:])


def test_displacements_add_up_as_rotations_along_the_base_s_axes():
    """A quarter around x, then one around y: not what the sum of the vectors is."""
    chart = PoseChart(1)
    chart.of(DOWN)
    quarter = np.pi / 2
    steps = np.array([[0.1, 0, 0, quarter, 0, 0], [0, 0.2, 0, 0, quarter, 0]])
    rows = chart.added(np.zeros(6), steps)
    base = [np.array([quarter, 0.0, 0.0]), np.array([0.0, quarter, 0.0])]
    wanted = rotation.turned(base[1], rotation.turned(base[0], DOWN[3:]))
    same(chart.pose(rows[1]), np.array([0.5, 0.1, 0.3, *wanted]))


def test_rows_end_before_a_rotation_has_another_shorter_way():
    chart = PoseChart(1)
    steps = np.tile([0.0, 0, 0, 0, 0, 0.4], (12, 1))
    rows = chart.added(np.zeros(6), steps)
    assert len(rows) == 6
    assert np.allclose(rows[:, 5], 0.4 * np.arange(1, 7))


def test_another_anchor_leaves_the_course_where_it_is():
    """Poses and velocities of a plan that is followed, whatever they are counted from."""
    chart, course, door = PoseChart(1), TrajectoryCourse(), Door()
    chart.of(DOWN)
    rows = chart.added(np.zeros(6), np.tile([0.01, 0, 0, 0.06, 0.05, 0.02], (15, 1)))
    measured = Leash(np.zeros(6), np.full(6, np.inf))
    assert course.follow(rows, REACH, PERIOD_NS, PERIOD_NS, 2.0, measured) is not None
    instants = PERIOD_NS * np.arange(1, 15) + 7_000_000

    def seen():
        found = [course.at(int(at), PERIOD_NS, REACH, None) for at in instants]
        ahead = [course.at(int(at) + 1_000_000, PERIOD_NS, REACH, None) for at in instants]
        return [(chart.pose(one.at), chart.pose(two.at)) for one, two in zip(found, ahead)]  # noqa: B905

    before = seen()
    late = course.at(int(instants[-1]), PERIOD_NS, REACH, None)
    assert np.linalg.norm(late.at[3:]) > 0.7
    moved = chart.move_to(late.at, course, door)
    assert not moved.any()
    # Between two points the cubic is another one in other numbers, by less than a milliradian.
    for (one, one_ahead), (other, other_ahead) in zip(before, seen(), strict=True):
        assert np.abs(one[:3] - other[:3]).max() < 1e-9
        assert np.linalg.norm(rotation.relative(one[3:], other[3:])) < 1e-3
        turned = rotation.relative(rotation.relative(one[3:], one_ahead[3:]),
                                   rotation.relative(other[3:], other_ahead[3:]))  # fmt: skip
        assert np.linalg.norm(turned) < 2e-4


@pytest.mark.parametrize("seed", range(5))
def test_the_arm_turns_no_faster_than_its_rotation_vector_changes(seed):
    random = np.random.default_rng(seed)
    chart = PoseChart(1)
    chart.of(DOWN)
    for _ in range(50):
        at, rate = random.normal(size=6), random.normal(size=6)
        at[3:] *= random.uniform(0, 2.4) / np.linalg.norm(at[3:])
        ahead = chart.pose(at + 1e-5 * rate)
        angle = np.linalg.norm(rotation.relative(chart.pose(at)[3:], ahead[3:]))
        assert angle / 1e-5 <= np.linalg.norm(rate[3:]) * (1 + 1e-4)
