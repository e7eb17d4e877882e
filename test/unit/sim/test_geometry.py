"""The robot's description says what the simulation does: read as URDF, moved by its joints."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("mujoco")

from vla_ros.sim.env import OPTICAL_FRAMES, WORLD
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.gl import NoRenderer


@pytest.fixture(scope="module")
def table():
    try:
        made = EnvConfig(image_size=16)()
    except NoRenderer as error:
        pytest.skip(str(error))
    yield made
    made.close()


def numbers(text):
    return np.array(text.split(), float)


def turn(axis, angle):
    x, y, z = axis
    across = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * across + (1 - np.cos(angle)) * across @ across


def placed(position, rotation):
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = rotation, position
    return out


def origin(joint):
    element = joint.find("origin")
    roll, pitch, yaw = numbers(element.get("rpy"))
    rotation = turn((0, 0, 1), yaw) @ turn((0, 1, 0), pitch) @ turn((1, 0, 0), roll)
    return placed(numbers(element.get("xyz")), rotation)


def forward(urdf, joints):
    """Every link's place in the world, by URDF's rules."""
    places, waiting = {WORLD: np.eye(4)}, urdf.findall("joint")
    while waiting:
        joint = next(j for j in waiting if j.find("parent").get("link") in places)
        waiting.remove(joint)
        moved = np.eye(4)
        if joint.get("type") != "fixed":
            axis, value = numbers(joint.find("axis").get("xyz")), joints[joint.get("name")]
            low, high = (float(joint.find("limit").get(key)) for key in ("lower", "upper"))
            assert low - 1e-3 <= value <= high + 1e-3  # limits are soft
            if joint.get("type") == "revolute":
                moved = placed(np.zeros(3), turn(axis, value))
            else:
                moved = placed(axis * value, np.eye(3))
        parent = places[joint.find("parent").get("link")]
        places[joint.find("child").get("link")] = parent @ origin(joint) @ moved
    return places


def matrix(pose):
    x, y, z, w = pose.quaternion
    angle = 2 * np.arctan2(np.linalg.norm([x, y, z]), w)
    axis = np.array([x, y, z]) / max(np.linalg.norm([x, y, z]), 1e-12)
    return placed(pose.position, turn(axis, angle))


def test_the_joints_of_a_state_put_every_link_where_the_simulation_has_it(table):
    urdf = ElementTree.fromstring(table.spec.geometry.urdf)
    names = [link.get("name") for link in urdf.findall("link")]
    assert len(set(names)) == len(names) == len(urdf.findall("joint")) + 1, "a tree"
    seen = table.reset("pick_red_cube", 3)
    for step in range(12):
        moving = {j.get("name") for j in urdf.findall("joint") if j.get("type") != "fixed"}
        assert moving == set(seen.joint_names), "as in joint_states"
        joints = dict(zip(seen.joint_names, seen.joint_positions, strict=True))
        places = forward(urdf, joints)
        for name in ("gripper", "finger_left", "finger_right"):
            assert places[name] == pytest.approx(matrix(seen.poses[name]), abs=1e-5), name
        for name, pose in seen.links.items():
            parent = table.spec.geometry.parents[name]
            assert places[parent] @ matrix(pose) == pytest.approx(places[name], abs=1e-5)
        action = [0.4, -0.6, 0.3, 0.5, -0.4, 0.8, 1 if step > 5 else -1]
        seen = table.step(action, render=False).observation


def test_every_fixed_frame_is_in_the_description_too(table):
    urdf, geometry = ElementTree.fromstring(table.spec.geometry.urdf), table.spec.geometry
    fixed = {j.find("child").get("link"): j for j in urdf.findall("joint[@type='fixed']")}
    assert set(fixed) == {frame.name for frame in geometry.fixed}
    assert set(fixed) >= {"base_link", "hand", "gripper", *OPTICAL_FRAMES.values()}
    for frame in geometry.fixed:
        assert fixed[frame.name].find("parent").get("link") == frame.parent
        assert origin(fixed[frame.name]) == pytest.approx(matrix(frame.pose), abs=1e-6)
    parents = {frame.name: frame.parent for frame in geometry.fixed}
    assert parents["main_camera_optical_frame"] == "base_link"
    assert parents["wrist_camera_optical_frame"] == "hand"


def test_the_arm_can_be_seen(table):
    urdf = ElementTree.fromstring(table.spec.geometry.urdf)
    bare = {link.get("name") for link in urdf.findall("link") if link.find("visual") is None}
    assert bare == {WORLD, "gripper", *OPTICAL_FRAMES.values()}
    link3 = next(link for link in urdf.findall("link") if link.get("name") == "link3")
    kinds = [v.find("geometry")[0].tag for v in link3.findall("visual")]
    assert kinds == ["cylinder", "sphere", "sphere"] * 2, "two capsules"
