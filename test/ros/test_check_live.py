"""`vla-ros check --live`: a running robot that somebody else drives, recorded and then checked."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("rosbags", reason="rosbags is not installed")
pytest.importorskip("torch", reason="torch is not installed: no vla policy here")
pytest.importorskip("mujoco", reason="mujoco is not installed: no tabletop here")

from sensor_msgs.msg import JointState

from support.nodes import Program, run_cli
from support.wait import repeating
from vla_ros.data.bags import Bag
from vla_ros.ros.common import qos

FLOW = "shipped:tabletop-flow"


@pytest.mark.long
def test_a_graph_without_a_robot_is_refused_in_one_line(ros, ros_env):
    person = ros.publisher(JointState, "teleop/joints", qos.ACTION)
    with repeating(lambda: person.publish(JointState(name=["a"], position=[0.0])), 0.1):
        code, out, err = run_cli("check", FLOW, "--live", "5", env=ros_env, timeout=300.0)
    assert (code, out) == (2, "")
    line = err.strip().splitlines()[-1]
    assert "no camera images on /image or /image/compressed: -r image=TOPIC" in line
    assert "no commands of a person on /policy/action: -r policy/action=TOPIC" in line
    assert "there are /teleop/joints (sensor_msgs/msg/JointState)" in line
    assert "no state on /joint_states or /end_effector_pose" in line
    assert "no instruction on /instruction: give --instruction TEXT" in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give DATA (bags, or one LeRobotDataset), or --live SECONDS"),
        (("bag", "--live", "5"), "give DATA (bags, or one LeRobotDataset), or --live SECONDS"),
        (("bag", "--out", "kept"), "--out keeps the bag of --live"),
    ],
)
def test_data_or_live_and_not_both(words, says, ros_env):
    code, _, err = run_cli("check", FLOW, *words, env=ros_env)
    assert code == 2 and says in err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_robot_that_the_expert_drives_fits(ros_env, tmp_path):
    """The expert is the person here: to the policy that is asked it is somebody else."""
    words = [sys.executable, "-m", "vla_ros", "up", "sim", "-p", "policy.policy=scripted"]
    graph = Program("up", words, ros_env)
    kept = tmp_path / "kept"
    try:
        graph.wait_for_log("everything is running", timeout=60.0)
        more = ("--out", str(kept), "--json", "--budget", "30", "--frames", "12")
        code, out, err = run_cli("check", FLOW, "--live", "30", *more, env=ros_env, timeout=800.0)
    finally:
        graph.end(20.0)
    print(out, err, sep="\n")
    found = json.loads(out.strip().splitlines()[-1])
    assert code == 0, err
    assert not found["parameters"]
    with Bag(kept) as bag:
        assert {"/image", "/policy/action"} <= {topic.name for topic in bag.topics if topic.count}
