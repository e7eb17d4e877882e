"""The classes of failed demos, of traces that show each."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

PATH = Path(__file__).resolve().parents[3] / "benchmarks" / "failures.py"
SPEC = importlib.util.spec_from_file_location("failures", PATH)
assert SPEC is not None and SPEC.loader is not None
failures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(failures)

NAMES = ["red_cube", "green_cube", "plate", "gripper"]


def trace(cube: list[tuple[float, float, float]], green: tuple[float, float] = (0.1, 0.1)):
    """The red cube's way; the hand above it, the plate elsewhere."""
    poses = np.zeros((len(cube), 4, 7))
    poses[:, 0, :3] = cube
    poses[:, 1, :2] = green
    poses[:, 2, :2] = (-0.1, -0.2)
    poses[:, 3, :3] = np.add(cube, (0.0, 0.0, 0.05))
    return {"names": np.array(NAMES), "poses": poses}


LYING = (0.0, 0.0, 0.021)


@pytest.mark.parametrize(
    ("cube", "green", "name"),
    [
        ([LYING] * 10, (0.046, 0.0), "never lifted, beside another cube"),
        ([LYING] * 10, (0.1, 0.1), "never lifted, alone"),
        ([LYING, (0, 0, 0.11), LYING, LYING], (0.1, 0.1), "dropped"),
        ([LYING, (0, 0, 0.11), (-0.1, -0.2, 0.025)], (0.1, 0.1), "other"),
        ([LYING, (0.4, 0.0, 0.021)], (0.1, 0.1), "out of reach"),
    ],
)
def test_a_failure_is_of_the_class_that_its_trace_shows(cube, green, name) -> None:
    assert failures.class_of(trace(cube, green))[0] == name


def test_of_a_drop_the_height_is_named() -> None:
    falls = [LYING, (0, 0, 0.11), LYING, (0, 0, 0.07), LYING]
    assert failures.class_of(trace(falls)) == ("dropped", "2 times, from 11 cm at the most")
