"""Distances between rotations, against those of rotation matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vla_ros.core import rotation

VECTORS = arrays(np.float64, 3, elements=st.floats(-4.0, 4.0))


def matrix(vector):
    """Rodrigues' formula."""
    angle = np.linalg.norm(vector)
    x, y, z = vector / angle if angle > 1e-12 else (0.0, 0.0, 1.0)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def distance(a, b):
    """Angle between two matrices, from the chord: exact also for small ones."""
    return 2 * np.arcsin(min(1.0, np.linalg.norm(a - b) / np.sqrt(8)))


@given(VECTORS, VECTORS, st.floats(0.0, 3.2))
def test_way_and_towards_are_those_of_matrices(start, goal, most):
    a, b = matrix(start), matrix(goal)
    assert matrix(rotation.turned(start, goal)) == pytest.approx(a @ b, abs=1e-9)
    assert a @ matrix(rotation.relative(start, goal)) == pytest.approx(b, abs=1e-9)
    apart = distance(a, b)
    assert np.linalg.norm(rotation.relative(start, goal)) == pytest.approx(apart, abs=1e-5)
    reached = matrix(rotation.towards(start, goal, most))
    assert distance(a, reached) == pytest.approx(min(apart, most), abs=1e-5)
    assert distance(reached, b) == pytest.approx(max(0.0, apart - most), abs=1e-5)
