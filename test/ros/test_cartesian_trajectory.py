"""Chunks of displacements as plans of poses, at a model of ros2_controllers' cartesian controller;
the judge of motion listens to every one of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from std_srvs.srv import Trigger

from support.cartesian_controller import CartesianController
from support.foreign_server import ForeignServer
from support.motion_poses import angle_between, poses_of
from support.wait import wait_until
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common.convert import stamp_of

HOME = (0.4, -0.1, 0.3)
DOWN = (1.0, 0.0, 0.0, 0.0)  # x y z w: the gripper looks down, where an axis-angle has pi
NODE = {
    "policy": "remote",
    "outputs": ["cartesian_trajectory"],
    "joint_delta_from": "commanded",
    "velocity_limits": [0.2, 0.2, 0.2, 4.0, 4.0, 4.0],
    "action_rate_hz": 20.0,
    "replan_interval": 6,
    "max_age_s": 1.5,
    "leash_s": 0.5,
}


def chunk(count=12):
    """Along x and around z, 20 rad a metre; then around y too."""
    rows = np.zeros((count, 7))
    rows[:, 0], rows[:, 5], rows[:, 6] = 0.002, 0.04, 1.0
    return rows


@pytest.fixture
def names(tmp_path):
    """What the server calls its camera and its instruction."""
    table = tmp_path / "names.yaml"
    table.write_text("images: {main: image}\n")
    return {"policy_options": [f"names={table}"], "action_scale": [1.0] * 6}


def gone(arm, rig, way):
    """Wait until the arm has gone so far along x, m."""
    state = lambda: f"{arm.poses[-1]} {arm.refused} {rig.status.last.reason}"  # noqa: E731
    wait_until(lambda: arm.poses and arm.poses[-1][1][0] > HOME[0] + way, 40.0, state)


def turned_about_z(angle):
    """DOWN, turned in the base frame: quaternion x y z w."""
    return np.array([np.cos(angle / 2), np.sin(angle / 2), 0.0, 0.0])


@pytest.mark.long
@pytest.mark.parametrize("limits", [{}, {"acceleration_limits": [0.4] * 3 + [8.0] * 3}])
@pytest.mark.parametrize("added_to", ["commanded", "measured"])
def test_an_arm_follows_the_poses_that_displacements_lead_to(start_policy, names, limits, added_to):
    with ForeignServer(lambda message: {"actions": chunk()}) as server:
        given = NODE | names | limits | {"joint_delta_from": added_to, "checkpoint": server.url}
        rig = start_policy(**given)
        rig.bring_up("turn the screw")
        arm = CartesianController(rig.ros, HOME, DOWN)
        try:
            rig.camera()
            rig.expect(State.RUNNING, 30.0)
            gone(arm, rig, 0.1)
            assert rig.ros.call(Trigger, "policy/stop").success
            wait_until(lambda: stamp_of(arm.messages[-1].header.stamp) == 0, 10.0, "a stop")
            stopped = next(
                number for number, message in enumerate(arm.messages)
                if stamp_of(message.header.stamp) == 0
            )  # fmt: skip
            rested = len(arm.poses)
            wait_until(lambda: len(arm.poses) > rested + 150, 20.0, "a while")
        finally:
            arm.end()
    assert not any(stamp_of(m.header.stamp) for m in arm.messages[stopped:]), "stops, then silence"
    assert not arm.refused
    assert max(len(message.points) for message in arm.messages) >= 4, "chunks, not single poses"
    for _, place, turn in arm.poses[::10]:
        way = place[0] - HOME[0]
        assert np.abs(place[1:] - HOME[1:]).max() < 1e-6
        assert angle_between(turn, turned_about_z(20.0 * way)) < 0.02
    last = arm.messages[-1].points[-1].transforms[0].translation
    assert last.x == pytest.approx(arm.poses[-1][1][0], abs=1e-4)
    steps = np.diff([place[0] for _, place, _ in arm.poses[rested + 50 :]])
    assert np.abs(steps).max(initial=0.0) < 1e-9, "it stands"


def test_displacements_beyond_the_limits_are_held_to_them(start_policy, names):
    """The judge of motion sees it too: a third faster than the arm may be."""
    with ForeignServer(lambda message: {"actions": chunk()}) as server:
        slow = {"velocity_limits": [0.03] * 3 + [0.6] * 3, "clamp_tolerance": 0.5}
        rig = start_policy(**NODE | names | slow, checkpoint=server.url)
        rig.bring_up("turn the screw")
        arm = CartesianController(rig.ros, HOME, DOWN)
        try:
            rig.camera()
            gone(arm, rig, 0.05)
        finally:
            arm.end()
    for message in arm.messages:
        times, places, turns = poses_of(message)
        speeds = np.diff(places[:, 0]) / np.diff(times)
        assert np.abs(speeds).max(initial=0.0) < 0.0301
        turned = [angle_between(one, other) for one, other in pairwise(turns)] / np.diff(times)
        assert turned.max(initial=0.0) < 0.601
    assert any(len(message.points) > 4 for message in arm.messages)


def test_nothing_moves_while_the_pose_is_unknown(start_policy, names):
    with ForeignServer(lambda message: {"actions": chunk()}) as server:
        rig = start_policy(**NODE | names, checkpoint=server.url)
        rig.bring_up("turn the screw")
        rig.camera()
        rig.node.wait_for_log("action blocked: a place to go to needs to know where the robot is:"
                              " nothing fresh on measured_pose", 20.0)  # fmt: skip
    assert not any(np.any(message.action[:6]) for message in rig.commands.messages)


@pytest.mark.parametrize(
    ("given", "because"),
    [
        ({"joint_delta_from": ""}, "end_effector_delta need joint_delta_from"),
        (
            {"action_space": "end_effector_pose", "stale_action": "hold", "bounds_low": [-1.0] * 6,
             "bounds_high": [1.0] * 6},
            "the cartesian_trajectory output needs action_space end_effector_delta",
        ),
    ],
)  # fmt: skip
def test_what_it_cannot_express_is_refused(start_policy, given, because):
    rig = start_policy(**NODE | {"policy": "zero"} | given)
    assert not rig.ros.change_state("/policy", "configure")
    rig.expect(lambda s: because in s.reason)
