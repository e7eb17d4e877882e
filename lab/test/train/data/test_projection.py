"""Against the renderer: at the pixel of a cube's center the image has the cube's color."""

import numpy as np
import pytest

pytest.importorskip("h5py", exc_type=ImportError)
pytest.importorskip("mujoco")

from vla_ros.core.types import Pose
from vla_ros.sim.factory import EnvConfig
from vla_ros_lab.train.collect import OBJECTS, Projection

SIZE = 256
CHANNELS = {"red_cube": (0,), "green_cube": (1,), "blue_cube": (2,), "yellow_cube": (0, 1)}


@pytest.fixture(scope="module")
def environment():
    environment = EnvConfig("tabletop", SIZE, True)()
    yield environment
    environment.close()


def is_of(pixel, cube):
    strong = CHANNELS[cube]
    weak = [channel for channel in range(3) if channel not in strong]
    return min(pixel[list(strong)].astype(int)) > 1.6 * max(pixel[weak].astype(int))


@pytest.mark.parametrize("state", range(4))
def test_cubes_are_where_they_are_seen(environment, state):
    seen = environment.reset("pick_red_cube", state)
    places = Projection(SIZE)("agentview", seen.poses, OBJECTS)
    for name, (x, y) in zip(OBJECTS, places, strict=True):
        assert 0 <= x < SIZE and 0 <= y < SIZE
        if name in CHANNELS:
            assert is_of(seen.images["agentview"][int(y), int(x)], name), name


def test_the_wrist_camera_moves_with_the_hand(environment):
    seen = environment.reset("reach_red_cube", 0)
    project = Projection(SIZE)
    found = 0
    for push in ((0, 0, 0), (0.5, 0, -0.3), (0, 0.5, 0), (0, -0.5, 0)):
        for _ in range(5):
            seen = environment.step(np.array([*push, 0, 0, 0.3, -1.0])).observation
        for name, (x, y) in zip(OBJECTS, project("wrist", seen.poses, OBJECTS), strict=True):
            if name in CHANNELS and 4 <= x < SIZE - 4 and 4 <= y < SIZE - 4:
                assert is_of(seen.images["wrist"][int(y), int(x)], name), (push, name)
                found += 1
    assert found >= 4


def test_what_is_behind_the_camera_is_nowhere():
    poses = {"gripper": Pose((0, 0, 0.3), (1, 0, 0, 0)), "far": Pose((5, 0, 3), (0, 0, 0, 1))}
    places = Projection(SIZE)("agentview", poses, ("far", "gripper"))
    assert np.isnan(places[0]).all() and np.isfinite(places[1]).all()
