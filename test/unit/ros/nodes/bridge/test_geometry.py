"""CameraInfo and transforms, against the image: a cube falls on its own pixels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("mujoco")

from vla_ros.ros.common.convert import stamp_of
from vla_ros.ros.nodes.bridge.convert import camera_info, fixed_transforms, moving_transforms
from vla_ros.sim.env import AGENTVIEW, OPTICAL_FRAMES, WORLD, WRIST
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.gl import NoRenderer
from vla_ros.sim.scene import CUBE_HALF

SIZE = 256
COLORS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0)}


@pytest.fixture(scope="module")
def table():
    try:
        made = EnvConfig(image_size=SIZE)()
    except NoRenderer as error:
        pytest.skip(str(error))
    yield made
    made.close()


def matrix(transform):
    q, t = transform.transform.rotation, transform.transform.translation
    x, y, z, w = q.x, q.y, q.z, q.w
    out = np.eye(4)
    out[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    out[:3, 3] = t.x, t.y, t.z
    return out


def in_world(transforms, name):
    """Follow the tree up, as tf2 does."""
    parents = {t.child_frame_id: t for t in transforms}
    out = np.eye(4)
    while name != WORLD:
        out, name = matrix(parents[name]) @ out, parents[name].header.frame_id
    return out


def projected(point, camera, info):
    """Column and row, by CameraInfo's K, of a point in the world."""
    x, y, z, _ = np.linalg.inv(camera) @ [*point, 1.0]
    assert z > 0, "in front of the camera"
    u, v, w = np.array(info.k).reshape(3, 3) @ [x, y, z]
    return u / w, v / w


def colored(image, color):
    """Pixels of a cube's color, whichever light its sides are in: bool [height, width]."""
    strong = image.astype(int)
    on = [strong[..., i] for i in range(3) if COLORS[color][i]]
    off = [strong[..., i] for i in range(3) if not COLORS[color][i]]
    return np.min(on, axis=0) > 1.8 * np.max(off, axis=0) + 20


def corners(pose):
    """The eight of a cube, in the world: a quaternion turns v into v + 2 q x (q x v + w v)."""
    *q, w = pose.quaternion
    for signs in itertools.product((-1, 1), repeat=3):
        v = CUBE_HALF * np.array(signs)
        yield pose.position + v + 2 * np.cross(q, np.cross(q, v) + w * v)


@pytest.mark.parametrize("camera", [AGENTVIEW, WRIST])
def test_a_cube_is_projected_onto_its_own_pixels(table, camera):
    geometry, found = table.spec.geometry, 0
    for state in range(4):
        seen = table.reset("pick_red_cube", state)
        for _ in range(6):  # the wrist camera moves, the others see the arm move
            seen = table.step([0.3, -0.5, -0.2, 0.2, 0.1, -0.6, -1]).observation
        moving = moving_transforms(geometry, seen.links, 5_000_000_007)
        assert {stamp_of(t.header.stamp) for t in moving} == {5_000_000_007}
        pose = in_world([*fixed_transforms(geometry), *moving], OPTICAL_FRAMES[camera])
        info = camera_info(geometry.fovy[camera], SIZE)
        for color in COLORS:
            pixels = colored(seen.images[camera], color)
            rows, columns = np.nonzero(pixels)
            inside = len(rows) and rows.min() > 4 and rows.max() < SIZE - 5
            if not inside or columns.min() <= 4 or columns.max() >= SIZE - 5:
                continue  # the edge of the image, or something before it
            across = max(np.ptp(rows), np.ptp(columns)) + 1
            if len(rows) < 0.5 * across**2:
                continue  # half hidden by the hand
            found += 1
            cube = seen.poses[f"{color}_cube"]
            column, row = projected(cube.position, pose, info)
            assert pixels[round(row), round(column)], (camera, color)
            ends = np.array([projected(corner, pose, info) for corner in corners(cube)])
            # Pixel n reaches from n - 0.5 to n + 0.5.
            seen_ends = columns.min() - 0.5, columns.max() + 0.5, rows.min() - 0.5, rows.max() + 0.5
            lows, highs = ends.min(axis=0), ends.max(axis=0)
            expected = lows[0], highs[0], lows[1], highs[1]
            assert seen_ends == pytest.approx(expected, abs=1.0), (camera, color)
    assert found >= 6, found


def test_the_camera_s_matrix_is_that_of_its_field_of_view():
    info = camera_info(np.radians(90.0), 101)
    assert info.k[0] == info.k[4] == pytest.approx(50.5)
    assert (info.k[2], info.k[5]) == (50.0, 50.0)
    assert (info.width, info.height, list(info.d)) == (101, 101, [0.0] * 5)
    assert np.array_equal(np.array(info.p).reshape(3, 4)[:, :3].ravel(), info.k)
