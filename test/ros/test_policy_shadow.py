"""Shadow mode: a person drives, the policy thinks beside, and nothing of ours moves anything."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import TwistStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from support.motion_listener import MotionListener
from support.policy_client import moves
from support.wait import repeating, wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.msg import ActionCommand, MonitorReport
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import to_time

JOINTS = ["shoulder", "elbow"]
WANTED, GIVEN = (0.5, 0.25), (0.2, -0.1)  # by the policy and by the person, rad
ARM = {
    "policy": "replay",
    "shadow": True,
    "shadow_topic": "teleop/joints",
    "outputs": ["positions", "trajectory", "joint_state"],
    "action_space": "joint_position",
    "action_names": JOINTS,
    "joint_names": JOINTS,
    "bounds_low": [-3.0] * 2,
    "bounds_high": [3.0] * 2,
    "velocity_limits": [2.0] * 2,
    "stale_action": "hold",
    "detect_frozen": False,
    "clamp_limit": 1000,
}


class Arm:
    """A stub of an arm that obeys whoever commands it: the person, and every output of ours."""

    def __init__(self, ros) -> None:
        self.position = np.zeros(2)
        self.ours: list[object] = []  # that came from the policy node
        self._lock = threading.Lock()
        self._states = ros.publisher(JointState, "joint_states", qos.STATE)
        self._person = ros.publisher(JointState, "teleop/joints", qos.ACTION)
        listen = ros.node.create_subscription
        listen(JointState, "teleop/joints", self._obey, qos.ACTION)
        listen(Float64MultiArray, "policy/positions", self._move, qos.ACTION)
        listen(JointState, "policy/joint_commands", self._move, qos.ACTION)
        listen(ActionCommand, "policy/action", self._move, qos.ACTION)

    def _obey(self, message: JointState) -> None:
        with self._lock:
            self.position += 0.3 * (np.array(message.position) - self.position)

    def _move(self, message: object) -> None:
        self.ours.append(message)

    def drive(self) -> None:
        """The person commands, and the arm reports where it is."""
        now = to_time(time.time_ns())
        given = JointState(name=JOINTS, position=list(GIVEN))
        here = JointState(name=JOINTS, position=self.position.tolist())
        given.header.stamp = here.header.stamp = now
        self._person.publish(given)
        self._states.publish(here)


def started(start_policy, tmp_path, **given):
    rows = np.tile([*WANTED], (50, 1))
    return start_policy(replay_file=moves(tmp_path, rows), **(ARM | given))


def published(ros):
    """Topics that the policy node has a publisher of."""
    found = ros.node.get_publisher_names_and_types_by_node("policy", "/")
    return {name for name, _ in found}


def test_a_person_drives_and_nothing_of_ours_moves_anything(
    start_policy, spawn_node, ros, ros_domain, tmp_path
):
    bag = tmp_path / "bag"
    recorder = spawn_node("recorder", {"output": str(bag), "flight": False, "min_free_mb": 0})
    spawn_node("monitor")
    rig, arm = started(start_policy, tmp_path), Arm(ros)
    shadow = ros.inbox(ActionCommand, "policy/shadow/action", qos.ACTION)
    away = ros.inbox(JointState, "policy/shadow/difference", qos.ACTION)
    health = ros.inbox(DiagnosticArray, "/diagnostics", 100)
    reports = ros.inbox(MonitorReport, "monitor/report", qos.REPORT)
    with MotionListener(ros_domain) as listener, repeating(arm.drive, 0.02):
        rig.bring_up("reach")
        with rig.filming():
            status = rig.expect(lambda s: s.state == State.RUNNING and "differs" in s.reason)
            wait_until(lambda: len(away) > 60, 20.0, "differences")
            wait_until(lambda: reports.last.command_rate_hz > 5, 20.0, "the monitor's figures")
            wait_until(
                lambda: any(
                    one.name == "monitor: policy" and "SHADOW: nothing of ours" in one.message
                    for array in health.messages
                    for one in array.status
                ),
                10.0,
                "the monitor's line",
            )
        outputs = published(ros)
    assert ros.change_state("/policy", "deactivate")
    recorder.signal(signal.SIGINT)
    assert recorder.wait() == 0
    # What the person does happens, and nothing else.
    np.testing.assert_allclose(arm.position, GIVEN, atol=1e-3)
    assert not arm.ours
    assert not len(rig.commands)
    assert not listener.judge.finish()
    assert not sum(listener.judge.judged.values())
    ours = {name.removeprefix("/policy/") for name in outputs if name.startswith("/policy/")}
    assert ours & {"shadow/action", "shadow/difference"} == {"shadow/action", "shadow/difference"}
    assert not ours & {"action", "twist", "positions", "joint_trajectory", "joint_commands"}
    assert not list(status.outputs)
    # What it would have done, held by the limits to where the person has the arm, and by how much.
    last = [m for m in shadow.messages if m.kind == CommandKind.POLICY][-1]
    np.testing.assert_allclose(last.action, WANTED, atol=1e-6)
    np.testing.assert_allclose(away.last.position, np.subtract(WANTED, GIVEN), atol=1e-6)
    assert list(away.last.name) == JOINTS
    assert "differs from the person by 0." in status.reason
    log = rig.node.log
    assert "SHADOW: ~/shadow/action alone" in log  # the table at configure
    assert "compared with" in log and "teleop/joints" in log
    from vla_ros.data.bags import Bag

    with Bag(bag) as kept:
        count = {topic.name: topic.count for topic in kept.topics}
    assert count["/policy/shadow/action"] > 40
    assert count["/policy/shadow/difference"] > 40
    assert not count.get("/policy/action")


def test_without_a_topic_the_measured_movement_counts_and_takeovers_are_refused(
    start_policy, ros, tmp_path
):
    rig, arm = started(start_policy, tmp_path, shadow_topic=""), Arm(ros)
    away = ros.inbox(JointState, "policy/shadow/difference", qos.ACTION)
    with repeating(arm.drive, 0.02):
        rig.bring_up("reach")
        person = ros.publisher(JointState, "policy/takeover/joint_states", qos.EVENT)
        with rig.filming():
            rig.expect(State.RUNNING)
            wait_until(lambda: len(away) > 20, 20.0, "differences")
            ros.wait_for_subscriber(person)
            person.publish(JointState(name=JOINTS, position=list(GIVEN)))
            rig.node.wait_for_log("in the shadow nothing of ours moves the robot")
    assert all(s.state != State.TAKEOVER for s in rig.status.messages)
    np.testing.assert_allclose(away.last.position, np.subtract(WANTED, GIVEN), atol=0.01)


def test_a_joystick_s_velocity_is_compared_over_one_control_period(start_policy, ros, tmp_path):
    rows = np.tile([0.01, 0, 0, 0, 0, 0, 1.0], (50, 1))
    rig = start_policy(
        policy="replay", replay_file=moves(tmp_path, rows), shadow=True, outputs=["twist"],
        shadow_topic="joy/twist", velocity_limits=[1.0] * 6, detect_frozen=False,
    )  # fmt: skip
    away = ros.inbox(JointState, "policy/shadow/difference", qos.ACTION)
    joystick = ros.publisher(TwistStamped, "joy/twist", qos.ACTION)

    def say() -> None:
        message = TwistStamped()
        message.twist.linear.x = 0.1
        joystick.publish(message)

    rig.bring_up("reach")
    with rig.filming():
        rig.expect(lambda s: "nobody publishes on joy/twist" in s.reason)
        with repeating(say, 0.02):
            wait_until(lambda: len(away) > 20, 20.0, "differences")
    np.testing.assert_allclose(away.last.position[:6], [0.01 - 0.1 * 0.05, 0, 0, 0, 0, 0])
    assert np.isnan(away.last.position[6])  # nothing says what the person's gripper does
    assert "/policy/twist" not in published(ros)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mode": "lockstep", "use_sim_time": True}, "shadow is for mode 'realtime'"),
        ({"action_chunk_service": True}, "whoever asks for a chunk executes it"),
        ({}, "take that remapping away"),
    ],
)
def test_what_would_let_it_out_is_refused(spawn_node, ros, tmp_path, given, says):
    values = {"policy": "zero", "shadow": True, "shadow_topic": "", **given}
    renamed = {} if given else {"~/shadow/action": "policy/action"}
    node = spawn_node("policy", values, remappings=renamed)
    assert not ros.change_state("/policy", "configure")
    node.wait_for_log(says)


def test_it_is_settled_at_configure(start_policy, ros):
    rig = start_policy(policy="zero", shadow=True)
    rig.bring_up()
    accepted, reason = ros.set_parameter("/policy", "shadow", False)
    assert not accepted and "shadow" in reason
