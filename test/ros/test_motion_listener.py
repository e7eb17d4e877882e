"""The judge of motion in a graph: what it hears, whose limits it knows, what it finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from geometry_msgs.msg import TwistStamped
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from support.motion_listener import MotionListener
from support.wait import wait_until
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common import qos

TEST = Path(__file__).parents[1]


def speaker(ros, kind, topic):
    """Something that publishes such a message beside the node."""
    publisher = ros.publisher(kind, topic, qos.ACTION)
    ros.wait_for_subscriber(publisher)
    return publisher.publish


def twist(ros, x):
    message = TwistStamped()
    message.header.stamp = ros.node.get_clock().now().to_msg()
    message.twist.linear.x = x
    return message


@pytest.mark.unjudged
def test_limits_that_change_while_the_node_runs_are_known(start_policy, ros, ros_domain):
    rig = start_policy(policy="zero", outputs=["twist"], velocity_limits=[1.0] * 6)
    with MotionListener(ros_domain) as listener:
        rig.bring_up()
        say = speaker(ros, TwistStamped, "policy/twist")

        def judged():
            say(twist(ros, 0.5))
            return sum(listener.settle(0.2).judged.values())

        wait_until(lambda: judged() > 10, 20.0, "messages that are judged")
        assert not listener.judge.broken
        assert ros.set_parameter("/policy", "velocity_limits", [0.2] * 6) == (True, "")
        wait_until(lambda: judged() and listener.judge.broken, 20.0, "the lower limit")
        assert set(listener.judge.breaks) == {("twist", "speed")}
        assert "x 0.5/s after 0.5; allowed 0.2" in listener.judge.broken[0]


@pytest.mark.unjudged
def test_a_second_writer_is_found_on_a_topic_of_another_name(spawn_node, ros, ros_domain):
    joints = {
        "policy": "zero", "outputs": ["trajectory"], "action_space": "joint_position",
        "action_names": ["a"], "joint_names": ["a"], "bounds_low": [-1.0], "bounds_high": [1.0],
        "stale_action": "hold", "velocity_limits": [1.0],
    }  # fmt: skip
    names = {"~/joint_trajectory": "arm/joint_trajectory"}
    spawn_node("policy", joints, remappings=names)
    with MotionListener(ros_domain, remappings=names) as listener:
        ros.bring_up("/policy")
        points = [JointTrajectoryPoint(positions=[0.1], velocities=[0.0])]
        points[0].time_from_start.nanosec = 50_000_000
        message = JointTrajectory(joint_names=["a"], points=points)
        one, other = (speaker(ros, JointTrajectory, "arm/joint_trajectory") for _ in range(2))

        def found():
            one(message)
            other(message)
            return listener.settle(0.2).breaks

        wait_until(found, 20.0, "two writers")
        assert set(listener.judge.breaks) == {("joint_trajectory", "writers")}


def test_as_a_program_it_prints_what_it_judged(start_policy, ros_env):
    rig = start_policy(outputs=["twist"], velocity_limits=[10.0] * 6)
    rig.bring_up("reach")
    words = [sys.executable, "-m", "support.motion_judge", "--seconds", "3", "--json"]
    env = {**ros_env, "PYTHONPATH": os.pathsep.join((str(TEST), ros_env["PYTHONPATH"]))}
    with rig.filming():
        rig.expect(State.RUNNING)
        done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["judged"]["twist POLICY"] > 0 and found["broken"] == []
