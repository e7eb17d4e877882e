"""The monitor node, as a process, against topics that the test fills."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("rclpy")

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import TwistStamped
from rclpy.node import Node
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, TimeReference

from support.timing import QUIET, bound, judge
from support.wait import wait_until
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.pixels import BadMessage
from vla_ros.core.types import STAGES
from vla_ros.msg import ActionCommand, MonitorReport, PolicyStatus
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of, to_time
from vla_ros.ros.common.serialized import header_stamp

RATE_HZ = 20.0
OK, WARN, ERROR = b"\x00", b"\x01", b"\x02"


class Robot(threading.Thread):
    """Camera and policy in one: real messages of 20 images and actions a second, as its attributes
    say."""

    def __init__(self, node: Node) -> None:
        super().__init__(daemon=True)
        self.age_ms = 80.0  # observation to publication
        self.kind = ActionCommand.KIND_POLICY
        self.state = PolicyStatus.STATE_RUNNING
        self.image_delay_ms = 5.0  # stamp to publication; negative: from the future
        self.frozen_stamp: int | None = None
        self.sending = True
        self.commands_an_action = 1
        self.skip = 0  # commands that are numbered and never published
        self.sent = 0
        self.captured = 0  # CUDA graphs, in service
        self.outputs: list[str] = []
        self.sequence = 0
        self._camera = node.create_publisher(TimeReference, "policy/camera", qos.REPORT)
        self._actions = node.create_publisher(ActionCommand, "policy/action", qos.ACTION)
        self._status = node.create_publisher(PolicyStatus, "policy/status", qos.STATUS)
        self._over = threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        tick = 0
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due += 1 / RATE_HZ / self.commands_an_action
            if tick % (20 * self.commands_an_action) == 0:
                self.publish_status()
            if tick % self.commands_an_action == 0:
                self._image()
                self._observed_ns = time.time_ns() - round(self.age_ms * MS)
            if self.sending:
                self.command()
            tick += 1

    def stop(self) -> None:
        self._over.set()
        self.join()

    def publish_status(self) -> None:
        status = PolicyStatus(state=self.state, action_rate_hz=RATE_HZ, max_age_s=0.3)
        status.control_rate_hz = RATE_HZ * self.commands_an_action
        status.pipeline_depth, status.graphs_captured = 1, self.captured
        status.outputs = self.outputs
        self._status.publish(status)

    def _image(self) -> None:
        now = time.time_ns()
        stamp = now - round(self.image_delay_ms * MS)
        image = TimeReference(time_ref=to_time(self.frozen_stamp or stamp), source="/image")
        image.header.stamp = to_time(now)
        self._camera.publish(image)

    def command(self) -> None:
        self.sequence += 1
        if self.skip:
            self.skip -= 1
            return
        now = time.time_ns()
        command = ActionCommand(sequence=self.sequence, kind=self.kind, pipeline_depth=1)
        command.header.stamp = to_time(now)
        one = self.commands_an_action == 1
        observed_ns = now - round(self.age_ms * MS) if one else self._observed_ns
        command.observation_stamp = to_time(observed_ns)
        command.action = [0.0] * 7
        for i, stage in enumerate(STAGES):
            setattr(command.stages, f"{stage}_s", 2.0**i / 1e3)
        command.stages.total_s = (2.0 ** len(STAGES) - 1) / 1e3
        self._actions.publish(command)
        self.sent += 1


@pytest.fixture
def robot(ros) -> Iterator[Robot]:
    robot = Robot(ros.node)
    robot.start()
    yield robot
    robot.stop()


class Watched:
    """The monitor's output by subject."""

    def __init__(self, ros) -> None:
        self.arrays = ros.inbox(DiagnosticArray, "/diagnostics")
        self.reports = ros.inbox(MonitorReport, "/monitor/report")

    def wait(self, subject: str, level: bytes, text: str = "", timeout: float = 6.0):
        """The next array in which the subject has this level and text."""

        def found(array: DiagnosticArray) -> bool:
            return any(_is(s, subject, level, text) for s in array.status)

        array = self.arrays.wait_new(found, timeout)
        return next(s for s in array.status if _is(s, subject, level, text))


def _is(status: DiagnosticStatus, subject: str, level: bytes, text: str) -> bool:
    return status.name == f"monitor: {subject}" and status.level == level and text in status.message


@pytest.fixture
def watched(ros, robot, spawn_node) -> Watched:
    watched = Watched(ros)
    spawn_node("monitor", {"window_s": 2.0, "camera_timeout_s": 0.5, "command_timeout_s": 0.5})
    # Not a rate that is in order: on a busy machine the robot may be late for minutes.
    watched.reports.wait(lambda m: m.commands > RATE_HZ and m.camera_rate_hz > 0, timeout=30.0)
    return watched


@pytest.mark.timing
def test_the_report_says_what_was_sent(watched: Watched, robot: Robot) -> None:
    enough = 35 if QUIET else 20
    report = watched.reports.wait_new(lambda m: m.age_at_publish_s.count >= enough)
    if QUIET:  # a robot that is late is one that has problems
        assert report.level == 0, report.problems
    near = bound(quiet=0.1, loaded=0.4)
    assert report.command_rate_hz == pytest.approx(RATE_HZ, rel=near)
    assert report.action_rate_hz == report.command_rate_hz
    assert report.camera_rate_hz == pytest.approx(RATE_HZ, rel=near)
    assert report.age_at_publish_s.p50 == pytest.approx(0.08, abs=1e-5)
    assert report.age_at_publish_s.max == pytest.approx(0.08, abs=1e-5)
    assert report.age_at_arrival_s.p50 > 0.08
    judge("on the way", report.age_at_arrival_s.p50 - 0.08, quiet=0.005, loaded=0.15)
    assert report.clock_offset_s == pytest.approx(0.005, abs=1e-6)
    judge("period error", report.period_error_s.p50, quiet=0.01, loaded=0.05)
    for i, stage in enumerate(STAGES):
        assert getattr(report, f"{stage}_s").p50 == pytest.approx(1e-3 * 2.0**i)
    assert report.inference_s.p99 == pytest.approx(0.004 + 0.008 + 0.016 + 0.032)
    assert report.stale_published == report.lost_commands == 0
    judge("missed deadlines", report.missed_deadlines, quiet=0, loaded=20, unit="periods")
    assert report.commands == report.actions <= robot.sent
    assert list(report.action_publishers) == ["/test_peer"]


def test_both_rates_are_in_diagnostics_and_new_actions_are_not_counted_by_commands(
    watched: Watched, robot: Robot
) -> None:
    robot.commands_an_action = 5

    def said(array: DiagnosticArray) -> bool:  # at any level: on a busy machine the robot is late
        one = next(s for s in array.status if s.name == "monitor: action rate")
        asked = {value.key: value.value for value in one.values}["asked"]
        return asked == "actions 20 Hz, commands 100 Hz"

    watched.arrays.wait_new(said, timeout=30.0)
    begun = watched.reports.wait_new()
    later = watched.reports.wait_new(lambda m: m.actions >= begun.actions + 40, timeout=30.0)
    commands, actions = later.commands - begun.commands, later.actions - begun.actions
    assert commands == pytest.approx(5 * actions, abs=5)


def test_a_fifth_of_a_second_of_500_commands_waits_for_the_monitor(
    watched: Watched, robot: Robot
) -> None:
    """It judges everything five times a second, and other programs need the processor too."""
    robot.stop()
    begun = watched.reports.wait_new()
    for _ in range(100):
        robot.command()
    later = watched.reports.wait_new(lambda m: m.commands >= begun.commands + 100, timeout=30.0)
    assert later.lost_commands == begun.lost_commands


@pytest.mark.timing
def test_report_and_diagnostics_come_once_a_second(watched: Watched) -> None:
    """By their own stamps."""
    for inbox in (watched.reports, watched.arrays):
        inbox.clear()
        wait_until(lambda inbox=inbox: len(inbox) >= 5, 30.0, "five of them")
        stamps = [stamp_of(message.header.stamp) / 1e9 for message in inbox.messages]
        assert np.median(np.diff(stamps)) > 0.8
        period = float(np.median(np.diff(stamps)))
        judge(f"period on {inbox.topic}", period, quiet=1.2, loaded=2.0)


def test_lost_held_and_stale_commands_are_counted(watched: Watched, robot: Robot) -> None:
    lost = watched.reports.wait_new().lost_commands  # a monitor without a processor loses some too
    robot.skip = 3
    watched.reports.wait_new(lambda m: m.lost_commands >= lost + 3)
    robot.kind = ActionCommand.KIND_HELD
    watched.wait("action rate", WARN, "periods without an action")
    robot.kind = ActionCommand.KIND_POLICY
    robot.age_ms = 400.0
    watched.wait("observation age", ERROR, "older than 300 ms")
    before = robot.sent
    report = watched.reports.wait_new(lambda m: m.stale_published > 5)
    assert report.stale_published <= robot.sent
    assert report.missed_deadlines > 0
    assert before > 0


def test_a_second_publisher_is_an_error_that_names_both(ros, watched: Watched) -> None:
    intruder = Node("teleop", namespace="/joy", context=ros.context, start_parameter_services=False)
    publisher = intruder.create_publisher(ActionCommand, "/policy/action", qos.ACTION)
    status = watched.wait("action topic", ERROR, "2 publishers")
    assert "/test_peer" in status.message
    assert "/joy/teleop" in status.message
    report = watched.reports.wait_new(lambda m: len(m.action_publishers) == 2)
    assert set(report.action_publishers) == {"/test_peer", "/joy/teleop"}
    intruder.destroy_publisher(publisher)
    intruder.destroy_node()
    watched.wait("action topic", OK)


@pytest.mark.timing
def test_a_second_writer_of_a_twist_is_an_error_that_names_topic_and_nodes(ros, spawn_node) -> None:
    """The topic is the one that the policy's output was remapped to."""
    watched = Watched(ros)
    given = {"policy": "zero", "outputs": ["twist"], "velocity_limits": [0.1] * 6}
    spawn_node("policy", given, remappings={"~/twist": "/servo/twist"})
    spawn_node("monitor")
    assert ros.change_state("/policy", "configure")
    alone = ["/policy/gripper /policy", "/servo/twist /policy"]
    watched.reports.wait(lambda m: sorted(m.output_publishers) == alone, timeout=30.0)
    joystick = Node("joystick", context=ros.context, start_parameter_services=False)
    start = time.monotonic()
    publisher = joystick.create_publisher(TwistStamped, "/servo/twist", qos.ACTION)
    status = watched.wait("outputs", ERROR, "/servo/twist has 2 publishers")
    judge("found", time.monotonic() - start, quiet=1.0, loaded=5.0)
    assert "/policy" in status.message and "/joystick" in status.message
    joystick.destroy_publisher(publisher)
    joystick.destroy_node()
    watched.wait("outputs", OK)
    assert ros.change_state("/policy", "cleanup")
    watched.reports.wait_new(lambda m: not m.output_publishers)


@pytest.mark.parametrize("name", ["", "relative", "/no space", "/a//b", "/\x00"])
def test_an_output_that_is_no_topic_does_not_end_the_monitor(name, watched, robot) -> None:
    robot.outputs = [name, "/arm/twist"]
    report = watched.reports.wait_new(lambda m: m.output_publishers)
    assert report.output_publishers == ["/arm/twist"]


@pytest.mark.timing
def test_frozen_stamps_are_found_within_the_timeout(watched: Watched, robot: Robot) -> None:
    robot.frozen_stamp = time.time_ns()
    start = time.monotonic()
    watched.wait("camera", ERROR, "stamps stand still")
    # timeout, check period, scheduling
    judge("found", time.monotonic() - start, quiet=0.5 + 0.2 + 0.5, loaded=5.0)
    robot.frozen_stamp = None
    watched.wait("camera", OK)


def test_stamps_from_the_future_are_clocks_not_synchronized(watched: Watched, robot: Robot) -> None:
    robot.image_delay_ms = -50.0
    watched.wait("camera", ERROR, "clocks not synchronized")
    report = watched.reports.wait_new(lambda m: m.clock_offset_s < -0.04)
    assert any("camera" in problem for problem in report.problems)


@pytest.mark.timing
def test_silence_in_running_is_an_error_at_once_and_between_the_seconds(
    watched: Watched, robot: Robot
) -> None:
    robot.sending = False
    start = time.monotonic()
    watched.wait("action rate", ERROR, "RUNNING, but no command")
    judge("found", time.monotonic() - start, quiet=0.5 + 0.2 + 0.5, loaded=5.0)


def test_hold_is_an_error_and_its_zero_commands_miss_no_deadline(
    watched: Watched, robot: Robot
) -> None:
    robot.state, robot.kind = PolicyStatus.STATE_HOLD, ActionCommand.KIND_STOP
    robot.publish_status()
    watched.wait("policy", ERROR, "HOLD")
    # The status and the commands are two topics: one period may fall between them. What a busy
    # machine brought late before is over after a window.
    since = time.time_ns() + round(2.5 * SECOND)
    report = watched.reports.wait_new(lambda m: stamp_of(m.header.stamp) > since, timeout=10.0)
    assert report.missed_deadlines <= 1


def test_a_graph_captured_in_service_is_a_warning(watched: Watched, robot: Robot) -> None:
    watched.wait("policy", OK, "RUNNING")
    robot.captured = 2
    robot.publish_status()
    watched.wait("policy", WARN, "2 CUDA graphs captured in service")


def test_limits_change_at_run_time_and_a_bad_one_is_refused(ros, watched: Watched) -> None:
    assert ros.set_parameter("/monitor", "max_age_ms", 50.0) == (True, "")
    watched.wait("observation age", ERROR, "older than 50 ms")
    accepted, reason = ros.set_parameter("/monitor", "max_age_ms", -1.0)
    assert not accepted
    assert "max_age_ms" in reason
    accepted, reason = ros.set_parameter("/monitor", "window_s", 5.0)
    assert not accepted
    assert "read-only" in reason


@pytest.mark.parametrize(
    ("name", "value"),
    [("window_s", 0.1), ("camera_timeout_s", 0.0)],
)
def test_a_bad_parameter_at_start_ends_the_node_with_the_reason(
    spawn_node, name: str, value: object
) -> None:
    monitor = spawn_node("monitor", {name: value})
    assert monitor.wait(timeout=60.0) == 2
    assert name in monitor.log


def test_it_ends_on_sigterm(spawn_node) -> None:
    monitor = spawn_node("monitor")
    monitor.wait_for_log("no status heard", timeout=60.0)
    monitor.signal(signal.SIGTERM)
    assert monitor.wait(timeout=bound(quiet=3.0, loaded=10.0)) == 0


def test_it_watches_in_a_namespace(ros, spawn_node) -> None:
    node = Node("camera", namespace="/arm", context=ros.context, start_parameter_services=False)
    robot = Robot(node)
    robot.start()
    try:
        reports = ros.inbox(MonitorReport, "/arm/monitor/report")
        spawn_node("monitor", namespace="arm")
        report = reports.wait(lambda m: m.camera_rate_hz > 0 and m.commands > 0, timeout=60.0)
        assert list(report.action_publishers) == ["/arm/camera"]
    finally:
        robot.stop()
        node.destroy_node()


def test_the_stamp_is_read_from_the_serialized_message() -> None:
    image = Image()
    image.header.stamp = to_time(1_795_209_135_384_057_205)
    raw = bytes(serialize_message(image))
    assert header_stamp(raw) == 1_795_209_135_384_057_205
    swapped = b"\x00\x00\x00\x00" + raw[4:8][::-1] + raw[8:12][::-1]
    assert header_stamp(swapped) == 1_795_209_135_384_057_205


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\x01\x00\x00\x01\x00\x00\x00",
        b"\x00\x03" + bytes(20),
        b"\x00\x01\x00\x00" + b"\xff" * 8,
    ],
    ids=["empty", "short", "not plain CDR", "no time"],
)
def test_bytes_without_a_stamp_are_refused(raw: bytes) -> None:
    with pytest.raises(BadMessage):
        header_stamp(raw)


def test_garbage_on_the_camera_topic_does_not_end_the_monitor(
    ros, watched: Watched, robot: Robot
) -> None:
    noise = ros.publisher(TimeReference, "policy/camera", qos.REPORT)
    ros.wait_for_subscriber(noise)
    for raw in (b"\x00\x01\x00\x00", b"\x00\x03" + bytes(20), b"\x00\x01\x00\x00" + b"\xff" * 64):
        noise.publish(raw)
    before = len(watched.reports)
    wait_until(lambda: len(watched.reports) > before + 1, 10.0, "reports go on")
    watched.reports.wait_new(lambda m: m.camera_rate_hz > 10.0)
