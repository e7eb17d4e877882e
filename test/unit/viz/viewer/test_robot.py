"""A description's links, where the simulation itself says they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.hostile import bounded
from vla_ros.viz.robot_model import place_of, read, wxyz_of

unit = st.tuples(*[st.floats(-1, 1)] * 4).filter(lambda q: np.linalg.norm(q) > 0.1)


@given(unit)
def test_a_rotation_survives_the_way_through_its_matrix(xyzw):
    rotation = place_of((0, 0, 0), xyzw)[:3, :3]
    assert np.allclose(rotation @ rotation.T, np.eye(3))
    w, x, y, z = wxyz_of(rotation)
    assert w >= 0
    assert np.allclose(place_of((0, 0, 0), (x, y, z, w))[:3, :3], rotation)


def test_the_tabletops_arm_is_where_the_simulation_says():
    pytest.importorskip("mujoco")
    from vla_ros.sim.tabletop import Tabletop

    env = Tabletop(image_size=64)
    try:
        seen = env.reset("pick_red_cube", 3, render=False)
        for _ in range(5):
            seen = env.step([0.5, -0.3, -0.4, 0.2, 0.1, 0.6, 1.0], render=False).observation
        robot = read(env.spec.geometry.urdf)
    finally:
        env.close()
    joints = dict(zip(seen.joint_names, seen.joint_positions.tolist(), strict=True))
    places = robot.places(joints)
    hand = seen.poses["gripper"]
    assert np.allclose(places["gripper"][:3, 3], hand.position, atol=1e-6)
    for link, pose in seen.links.items():
        parent = env.spec.geometry.parents[link]
        local = np.linalg.inv(places[parent]) @ places[link]
        assert np.allclose(local, place_of(pose.position, pose.quaternion), atol=1e-6)
    assert any(robot.shapes[link] for link in seen.links)


@pytest.mark.parametrize(
    ("urdf", "says"),
    [
        ("<robot", "not XML"),
        ("<robot><link name='a'/><link name='b'/></robot>", "2 roots"),
        (
            "<robot><link name='a'/><joint name='j'><parent link='x'/><child link='y'/></joint>"
            "</robot>",
            "hangs on nothing",
        ),
        (
            "<robot><link name='a'/><joint name='j'><parent link='a'/><child link='b'/>"
            "<origin xyz='1 2'/></joint></robot>",
            "3 numbers",
        ),
        (
            "<robot><link name='a'/>"
            + "<joint name='j'><parent link='a'/><child link='b'/></joint>" * 2
            + "</robot>",
            "link b hangs on two joints",
        ),
        (
            "<robot><link name='a'/><joint name='j'><parent link='b'/><child link='b'/></joint>"
            "</robot>",
            "j hangs on nothing",
        ),
    ],
)
def test_what_is_no_robot_is_refused_in_words(urdf, says):
    with pytest.raises(ValueError, match=says):
        read(urdf)


def chain(count: int) -> str:
    """So many joints, the last first."""
    links = "".join(f'<link name="l{i}"/>' for i in range(count + 1))
    joints = [
        f'<joint name="j{i}"><parent link="l{i}"/><child link="l{i + 1}"/></joint>'
        for i in range(count)
    ]
    return f"<robot>{links}{''.join(reversed(joints))}</robot>"


def test_joints_in_any_order_come_each_after_the_one_above():
    joints = read(chain(1_999)).joints
    assert [joint.name for joint in joints] == [f"j{i}" for i in range(1_999)]


def test_a_long_chain_is_refused_before_its_joints_are_looked_at():
    """20,000 joints took half a minute, in which the page's STOP was not heard."""
    program = (
        "import sys\nfrom vla_ros.viz.robot_model import read\n"
        "try: read(sys.stdin.read())\nexcept ValueError as e: print(e)"
    )
    assert "20,001 links" in bounded(program, given=chain(20_000), cpu_s=15)
