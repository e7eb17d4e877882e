"""The cloud of a depth camera in the page: a real publisher, sensor_msgs_py, a real browser."""

from __future__ import annotations

import io
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("viser", reason="viser is not installed: make view")
point_cloud2 = pytest.importorskip(
    "sensor_msgs_py.point_cloud2", reason="sensor_msgs_py is not installed"
)

from PIL import Image
from sensor_msgs.msg import PointCloud2, PointField
from std_msgs.msg import Header, String

from support.browser import browser, missing
from support.wait import repeating, wait_until
from vla_ros.ros.common.qos import LATCHED
from vla_ros.ros.nodes.view.cloud import MOST_POINTS, CloudReader

#: The camera stands 0.5 m over the root and looks down: its z is the root's -z.
ROBOT = """<robot name="r"><link name="base_link"/><link name="eye"/>
<joint name="mount" type="fixed"><parent link="base_link"/><child link="eye"/>
<origin xyz="0.1 0 0.5" rpy="3.14159265358979 0 0"/></joint></robot>"""
DOWN = np.array([[1, 0, 0, 0.1], [0, -1, 0, 0], [0, 0, -1, 0.5], [0, 0, 0, 1]], float)
FIELDS = [
    PointField(name=name, offset=4 * at, datatype=PointField.FLOAT32, count=1)
    for at, name in enumerate(("x", "y", "z", "rgb"))
]
GREEN = 0x0010E010


def cloud(frame="eye", side=300, color=GREEN):
    """A square of 0.6 m, 0.3 m in front of the camera, with one point that was not measured."""
    across = np.linspace(-0.3, 0.3, side)
    x, y = np.meshgrid(across, across)
    z = np.full_like(x, 0.3)
    z[1, 1] = np.nan
    rgb = np.full(x.size, color, np.uint32).view(np.float32)
    points = np.stack([x.ravel(), y.ravel(), z.ravel(), rgb], -1).astype(np.float32)
    message = point_cloud2.create_cloud(Header(frame_id=frame), FIELDS, points)
    message.header.stamp.sec = 7
    return message


def test_few_points_are_read_in_the_frame_of_the_root_and_what_is_no_cloud_is_refused(ros):
    warned, now = [], [0]
    reader = CloudReader(ros.node, "points", lambda: now[0], warned.append)
    publisher = ros.publisher(PointCloud2, "points")
    wait_until(lambda: publisher.get_subscription_count(), 10, "the reader")

    def shown(message):
        publisher.publish(message)
        return wait_until(lambda: reader._raw and reader.cloud({"eye": DOWN}), 10, lambda: warned)

    found = shown(cloud())
    assert found.stamp_ns == 7_000_000_000
    assert MOST_POINTS / 2 < len(found.points) == len(found.colors) <= MOST_POINTS
    assert np.isfinite(found.points).all() and (found.colors == (0x10, 0xE0, 0x10)).all()
    np.testing.assert_allclose(found.points[:, 2], 0.2, atol=1e-6)
    np.testing.assert_allclose(found.points[:, 0].min(), -0.2, atol=1e-6)
    assert reader.cloud({"eye": DOWN}) is None  # that one stays
    now[0] = 3_000_000_000
    assert not len(reader.cloud({"eye": DOWN}).points)  # the camera is gone

    short, padded, flat = cloud(), cloud(), cloud()
    short.point_step, padded.row_step, flat.fields = 9, padded.row_step + 4, FIELDS[:2]
    for message, why in (
        (short, "do not fit, or have padding"),
        (padded, "do not fit, or have padding"),
        (flat, "it has no float32 x, y, z, but x, y"),
        (cloud("lens"), "its frame 'lens' is no link of robot_description"),
    ):
        before = len(warned)
        publisher.publish(message)
        wait_until(lambda: reader._raw, 10, "the cloud")
        assert reader.cloud({"eye": DOWN}) is None
        (line,) = warned[before:]
        assert line.startswith("no cloud of points is shown: ") and why in line
    assert len(shown(cloud()).points)


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
def test_the_cloud_stands_in_the_page(ros, spawn_node, tmp_path):
    view = spawn_node("view", {"point_cloud": "points"})
    ros.publisher(String, "robot_description", LATCHED).publish(String(data=ROBOT))
    publisher = ros.publisher(PointCloud2, "points")
    found = wait_until(lambda: re.search(r"http://\S+", view.log), 60, lambda: view.log)
    picture = tmp_path / "page.png"

    def green(page):
        page.picture(picture)
        pixels = np.asarray(Image.open(io.BytesIO(picture.read_bytes())).convert("RGB"), int)
        red, light, blue = np.moveaxis(pixels[:, 440:-440], -1, 0)  # between the panels
        return int(((light > 150) & (red < 90) & (blue < 90)).sum())

    with browser() as page:
        page.open(found[0])
        canvas = "!!document.querySelector('canvas')"
        wait_until(lambda: page.run(canvas), 120, "the 3-D part", every=0.5)
        with repeating(lambda: publisher.publish(cloud(side=150)), 0.3):
            wait_until(lambda: green(page) > 500, 240, lambda: view.log, every=1.0)
        if kept := os.environ.get("VLA_ROS_KEEP_PICTURES"):
            shutil.copy(picture, Path(kept) / "cloud.png")
        wait_until(lambda: green(page) == 0, 120, "a page without the cloud", every=1.0)
