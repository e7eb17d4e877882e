"""What a policy would command against what a person does, number by number."""

import numpy as np
import pytest

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionKind, end_effectors, joints
from vla_ros.core.clock import SECOND
from vla_ros.runtime.shadow import ShadowComparison

ARM = joints(ActionKind.JOINT_POSITION, ("a", "b", "g"), ("g",))
DELTA = joints(ActionKind.JOINT_DELTA, ("a", "b", "g"), ("g",))
T = SECOND // 20


def test_targets_are_compared_and_what_the_person_does_not_say_is_nan():
    shadow = ShadowComparison(ARM, 0.3)
    assert shadow.compare(np.array([0.5, 0.0, 1.0]), 0) is None
    shadow.given(np.array([0.2, 0.1, np.nan]), 0, positions=True)
    away = shadow.compare(np.array([0.5, 0.0, 1.0]), T)
    np.testing.assert_allclose(away, [0.3, -0.1, np.nan])
    np.testing.assert_allclose(shadow.means(T), [0.3, 0.1, np.nan])
    assert shadow.line(T) == "0.3 rad (a)"


def test_a_person_who_is_silent_is_not_compared():
    shadow = ShadowComparison(ARM, 0.3)
    shadow.given(np.zeros(3), 0, positions=True)
    assert shadow.compare(np.ones(3), 6 * T) is not None
    assert shadow.compare(np.ones(3), 7 * T) is None


def test_targets_make_displacements_from_one_command_to_the_next():
    shadow = ShadowComparison(DELTA, 0.3)
    shadow.given(np.array([1.0, 2.0, 0.5]), 0, positions=True)
    assert shadow.compare(np.zeros(3), 0) is None
    shadow.given(np.array([1.01, 2.0, 0.75]), T, positions=True)
    away = shadow.compare(np.array([0.03, 0.0, 0.5]), T)
    np.testing.assert_allclose(away, [0.02, 0.0, -0.25])  # an opening is no displacement


def test_a_measured_position_is_where_the_command_before_was_to_lead():
    shadow = ShadowComparison(ARM, 0.3, late=True)
    shadow.given(np.zeros(3), 0, positions=True)
    assert shadow.compare(np.array([0.1, 0.0, 0.0]), 0) is None
    shadow.given(np.array([0.08, 0.0, 0.0]), T, positions=True)
    away = shadow.compare(np.array([0.9, 0.9, 0.9]), T)
    np.testing.assert_allclose(away, [0.02, 0.0, 0.0])


def test_rotations_of_poses_differ_by_the_shorter_way():
    shadow = ShadowComparison(end_effectors(ActionKind.END_EFFECTOR_POSE), 0.3)
    shadow.given(np.array([0, 0, 0, 0, 0, np.pi - 0.01, 0.0]), 0, positions=True)
    away = shadow.compare(np.array([0, 0, 0, 0, 0, -np.pi + 0.01, 0.0]), 0)
    assert abs(away[5]) == pytest.approx(0.02)


def test_means_are_of_the_last_seconds_and_each_unit_has_a_line():
    shadow = ShadowComparison(END_EFFECTOR_DELTA, 0.3, seconds=2)
    for second, x in enumerate((1.0, 0.02, 0.04)):
        shadow.given(np.zeros(7), second * SECOND)
        shadow.compare(np.array([x, 0, 0, 0, 0, 0.5, 0.25]), second * SECOND)
    assert shadow.line(2 * SECOND) == "0.03 m (x), 0.5 rad (rz), 0.25 (gripper)"
    assert shadow.line(9 * SECOND) == ""
