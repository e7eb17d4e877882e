"""Rotations of the expert."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.sim.expert import axis_angle, downward, matrix, upright_yaw


def about(axis, angle):
    axis = np.asarray(axis, float) / np.linalg.norm(axis)
    return (*(np.sin(angle / 2) * axis), np.cos(angle / 2))


unit = st.tuples(*[st.floats(-1, 1)] * 3).filter(lambda v: np.linalg.norm(v) > 0.1)


@given(axis=unit, angle=st.floats(0.0, np.pi - 1e-3))
def test_axis_angle_undoes_matrix(axis, angle):
    vector = axis_angle(matrix(about(axis, angle)))
    assert vector == pytest.approx(angle * np.array(axis) / np.linalg.norm(axis), abs=1e-6)


@pytest.mark.parametrize("axis", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)])
def test_half_a_turn_has_a_length(axis):
    vector = axis_angle(matrix(about(axis, np.pi)))
    assert np.linalg.norm(vector) == pytest.approx(np.pi)


@given(yaw=st.floats(-10, 10))
def test_a_cube_looks_the_same_after_a_quarter_turn(yaw):
    found = upright_yaw(about((0, 0, 1), yaw))
    assert -np.pi / 4 - 1e-9 <= found <= np.pi / 4 + 1e-9
    quarters = (found - yaw) / (np.pi / 2)
    assert quarters == pytest.approx(round(quarters), abs=1e-6)


def test_a_cube_on_its_side_has_a_yaw_too():
    rolled = matrix(about((0, 0, 1), 0.3)) @ matrix(about((0, 1, 0), np.pi / 2))
    w = np.sqrt(1 + np.trace(rolled)) / 2
    q = [rolled[2, 1] - rolled[1, 2], rolled[0, 2] - rolled[2, 0], rolled[1, 0] - rolled[0, 1]]
    assert upright_yaw([*(np.array(q) / (4 * w)), w]) == pytest.approx(0.3, abs=1e-6)


@given(yaw=st.floats(-3, 3))
def test_downward_points_down(yaw):
    assert downward(yaw)[:, 2] == pytest.approx([0, 0, -1])
    assert np.linalg.det(downward(yaw)) == pytest.approx(1.0)
