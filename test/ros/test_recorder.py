"""The recorder beside a real policy node: what it keeps, and that nothing ever waits for it."""

from __future__ import annotations

import re
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip(
    "rosbags", reason="rosbags is not installed: pip install '.[replay]' in the checkout"
)

from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import Image
from std_msgs.msg import String
from std_srvs.srv import Trigger

from support.nodes import Program
from support.ros import keeping_all
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.data.bags import Bag
from vla_ros.data.replay import stamp_ns
from vla_ros.ros.bringup.graph import command_line
from vla_ros.ros.bringup.graph_file import NodeSpec
from vla_ros.ros.common import qos

T = 0.05
OPTIONS = {"min_free_mb": 0, "flush_s": 0.1, "flight_seconds": 3.0, "flight_after_s": 0.3}


def written(health):
    """Messages in the bag, as the recorder says once a second."""
    found = [re.search(r"records: (\d+) messages", m.status[0].message) for m in health.messages]
    return max((int(number[1]) for number in found if number), default=0)


def images(path):
    """Images in a bag that is still being written."""
    with Bag(path) as bag:
        return next((topic.count for topic in bag.topics if topic.name == "/image"), 0)


def decoded(bag, topic):
    return [bag.decode(message) for message in bag.messages([topic])]


def test_a_run_is_recorded_whole_and_its_hold_once_more(spawn_node, start_policy, tmp_path):
    bag, flights = tmp_path / "bag", tmp_path / "flights"
    recorder = spawn_node(
        "recorder", {**OPTIONS, "output": str(bag), "flight_folder": str(flights)}
    )
    recorder.wait_for_log("recording:")
    rig = start_policy()
    rig.bring_up("reach the cube")
    camera = rig.camera()
    rig.expect(State.RUNNING)
    rig.wait_for(CommandKind.POLICY, begin=20)
    # The recorder may find the camera later than the policy does.
    wait_until(lambda: images(bag) > 10, 30.0, "images in the bag", every=0.2)
    camera.signal(signal.SIGKILL)
    rig.expect(State.HOLD)
    recorder.wait_for_log("flight record written", timeout=10.0)
    recorder.signal(signal.SIGINT)
    assert recorder.wait() == 0

    with Bag(bag) as whole:
        assert whole.notes == []
        assert [m.data for m in decoded(whole, "/instruction")] == ["reach the cube"]
        # Every command, with the bytes that all others got.
        seen = {m.sequence: m for m in rig.commands.messages}
        kept = decoded(whole, "/policy/action")
        sequences = [m.sequence for m in kept]
        assert sequences == list(range(sequences[0], sequences[-1] + 1))
        assert len(kept) > 20
        for one in kept:
            assert tuple(one.action) == tuple(seen[one.sequence].action)
            assert stamp_ns(one.observation_stamp) == stamp_ns(seen[one.sequence].observation_stamp)
        stamps = [stamp_ns(m.header.stamp) for m in decoded(whole, "/image")]
        observed = {stamp_ns(m.observation_stamp) for m in kept if m.kind == 0}
        assert len(stamps) > 10
        assert {stamp for stamp in observed if stamp >= stamps[0]} <= set(stamps)
        states = [m.state for m in decoded(whole, "/policy/status")]
        assert {State.WAITING, State.RUNNING, State.HOLD} <= set(states)
        assert whole.run.policy == "replay"
        assert whole.run.parameters["policy"]["replay_file"] == str(tmp_path / "moves.npy")
        assert whole.run.dropped == 0

    (flight,) = flights.iterdir()
    assert flight.name.endswith("_hold")
    with Bag(flight) as last:
        assert last.run.reason.startswith("hold: observation age")
        assert decoded(last, "/instruction")[0].data == "reach the cube"
        assert decoded(last, "/policy/status")[-1].state == State.HOLD
        assert any(m.kind == CommandKind.STOP for m in decoded(last, "/policy/action"))
        times = [m.stamp_ns for m in last.messages(["/image", "/policy/action"])]
        assert (times[-1] - times[0]) / 1e9 < 4.0


def test_bags_are_begun_and_ended_by_service(spawn_node, ros, tmp_path):
    """As rosbag2's own recorder offers it. What a latched topic said before is in the second."""
    output = tmp_path / "bag"
    recorder = spawn_node("recorder", {**OPTIONS, "output": str(output), "flight": False})
    recorder.wait_for_log("recording:")
    robot = ros.publisher(String, "robot_description", qos.LATCHED)
    robot.publish(String(data="<robot/>"))
    health = ros.inbox(DiagnosticArray, "/diagnostics", keeping_all(qos.STATE))
    wait_until(lambda: written(health) >= 1, 10.0, recorder.said)

    def ask(service):
        return ros.call(Trigger, f"/recorder/{service}")

    again = ask("record")
    assert not again.success and again.message == f"it records already, into {output}"
    ended = ask("stop")
    assert ended.success and str(output) in ended.message
    with Bag(output) as bag:
        assert [m.data for m in decoded(bag, "/robot_description")] == ["<robot/>"]
        assert bag.run.ended == "asked"
    nothing = ask("stop")
    assert (nothing.success, nothing.message) == (False, "nothing is recorded")
    begun = ask("record")
    assert begun.success and begun.message.startswith(f"{output}_")
    assert ask("stop").success
    with Bag(Path(begun.message)) as bag:
        assert [m.data for m in decoded(bag, "/robot_description")] == ["<robot/>"]
    assert recorder.returncode is None


@pytest.mark.timing
def test_neither_a_full_disk_nor_a_kill_reaches_the_control_tick(
    spawn_node, start_policy, tmp_path
):
    bag = tmp_path / "bag"
    recorder = spawn_node("recorder", {**OPTIONS, "output": str(bag), "flight": False})
    recorder.wait_for_log("recording:")
    rig = start_policy()
    rig.bring_up("reach")
    rig.camera(width=320, height=240)
    rig.expect(State.RUNNING)
    rig.wait_for(CommandKind.POLICY, begin=10)
    begin = len(rig.commands)
    # The disk takes no more than 4 MB of one file from now on.
    resource.prlimit(recorder.pid, resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
    recorder.wait_for_log("recording ended: OSError", timeout=20.0)
    wait_until(lambda: len(rig.commands) > begin + 40, 10.0, "commands after the disk was full")
    assert recorder.returncode is None
    recorder.wait_for_log("messages not recorded so far")
    recorder.signal(signal.SIGKILL)
    begin_2 = len(rig.commands)
    wait_until(lambda: len(rig.commands) > begin_2 + 20, 10.0, "commands after the kill")
    judge("largest gap between ticks", rig.largest_tick_gap_s(begin), quiet=2.5 * T, loaded=1.0)
    rig.check_commands()
    with Bag(bag) as left:
        count = {topic.name: topic.count for topic in left.topics}
        assert count["/image"] > 5
        assert "not closed properly" in left.notes[0]
        assert left.run.policy == "replay"


def test_a_camera_that_offers_best_effort_only_is_recorded_too(spawn_node, ros, tmp_path):
    recorder = spawn_node("recorder", {**OPTIONS, "output": str(tmp_path / "bag"), "flight": False})
    recorder.wait_for_log("recording:")
    camera = ros.publisher(Image, "image", qos.IMAGE_SUB)
    ros.wait_for_subscriber(camera)
    health = ros.inbox(DiagnosticArray, "/diagnostics")
    message = Image(height=2, width=2, step=6, encoding="rgb8")
    message.data.frombytes(memoryview(np.arange(12, dtype=np.uint8)))

    def shown() -> bool:
        message.header.stamp.sec += 1
        camera.publish(message)
        return written(health) > 10

    wait_until(shown, 30.0, "the images in the bag", every=0.02)
    recorder.signal(signal.SIGINT)
    assert recorder.wait() == 0
    with Bag(tmp_path / "bag") as bag:
        assert len(decoded(bag, "/image")) > 10


def test_what_cannot_be_recorded_is_refused_at_the_start(spawn_node, tmp_path):
    (tmp_path / "taken").mkdir()
    for parameters, said in (
        ({"output": str(tmp_path / "taken")}, "exists already"),
        ({"record": False, "flight": False}, "nothing to do"),
        ({"output": str(tmp_path / "a"), "extra_topics": "/tf"}, "is not 'NAME TYPE'"),
        ({"output": str(tmp_path / "b"), "extra_topics": "/x my/msg/Own"}, "cannot be written"),
    ):
        node = spawn_node("recorder", parameters)
        assert node.wait() == 2, node.log
        assert said in node.log.splitlines()[-1]


# It stands still until it is told to end, and is slow from then on.
SLOW = """
import sys, time
from pathlib import Path
from vla_ros.ros.nodes.recorder.node import main
from vla_ros.data.bag_writer import BagFile, BagSink

goes = Path(sys.argv.pop(1))
write, put, taken = BagFile.write, BagSink.put, []

def slow(self, record):
    while not goes.exists():
        time.sleep(0.01)
    time.sleep(0.07)
    write(self, record)

def counted(self, record):
    put(self, record)
    taken.append(record)
    print("taken", len(taken), flush=True)

BagFile.write, BagSink.put = slow, counted
sys.exit(main())
"""


def test_a_slow_disk_gets_the_time_that_the_index_needs(spawn_node, ros, ros_env, tmp_path):
    """6 s of writing wait for the disk at the end: longer than a node is usually given."""
    values = {"output": str(tmp_path / "bag"), "flight": False, "min_free_mb": 0}
    spec = NodeSpec("recorder", "recorder", (), values)
    arguments = command_line(spec)
    arguments = arguments[arguments.index("--ros-args") :]
    goes = tmp_path / "goes"
    recorder = Program("recorder", [sys.executable, "-c", SLOW, str(goes), *arguments], ros_env)
    count = 90  # fewer than its reader keeps, whenever it comes to read them
    try:
        publisher = ros.publisher(String, "instruction", keeping_all(qos.EVERY_CHANGE))
        ros.wait_for_subscriber(publisher)
        recorder.wait_for_log("recording: ")
        health = ros.inbox(DiagnosticArray, "/diagnostics").wait(timeout=5.0).status[0]
        assert health.name == "recorder: bag" and health.message.startswith("records: ")
        for number in range(count):
            publisher.publish(String(data=str(number)))
        recorder.wait_for_log(f"taken {count}")
        goes.touch()
        recorder.signal(signal.SIGINT)
        began = time.monotonic()
        assert recorder.wait(30.0) == 0, recorder.log
        assert time.monotonic() - began > 5.0, "it had to wait for the disk"
    finally:
        recorder.kill()
    with Bag(tmp_path / "bag") as bag:
        assert not bag.notes, "closed properly"
        assert len(decoded(bag, "/instruction")) == count
