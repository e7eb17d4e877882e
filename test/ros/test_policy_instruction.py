"""The task: what was computed for another one is void, and nonsense is not a task."""

from __future__ import annotations

import hashlib
import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from std_msgs.msg import String
from std_srvs.srv import Trigger

from support.timing import judge
from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common.convert import stamp_of

REJECTED = {
    "100,000 characters": ("a" * 100_000, "has 100000 characters"),
    "NUL": ("pick\0up", "U+0000"),
    "line feed": ("pick\nup", "U+000A"),
    "escape sequence": ("pick \x1b[31mup", "U+001B"),
    "right-to-left override": ("pick \u202e up", "U+202E"),
    "zero-width space": ("pick\u200bup", "U+200B"),
}


LITTLE_ENDIAN = b"\0\1\0\0"  # how a serialized message begins
PATIENT = 5.0  # max_age_s: a machine that stands still for seconds holds nothing


def digest(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def test_after_a_change_of_task_nothing_of_the_old_one_is_published(start_policy):
    rig = start_policy()
    rig.bring_up("reach")
    rig.camera()
    first = rig.expect(State.RUNNING)
    rig.wait_for(CommandKind.POLICY)

    rig.instruct("push")
    changed = rig.expect(lambda s: s.instruction == "push")
    assert changed.epoch == first.epoch + 1
    assert changed.state == State.WAITING
    for command in rig.after(changed):
        assert command.epoch == changed.epoch
        assert command.instruction_hash == digest("push")
    # By arrival as well: whatever was on its way when the status came, the old ones come first.
    epochs = [m.epoch for m in rig.commands.messages]
    assert epochs == sorted(epochs)

    # Rapid flips: the newest wins, and a status says so at once.
    for i in range(20):
        rig.instruct(f"task {i}")
    last = rig.expect(lambda s: s.instruction == "task 19")
    for command in rig.after(last):
        assert (command.epoch, command.instruction_hash) == (last.epoch, digest("task 19"))
    rig.expect(State.RUNNING)
    rig.check_commands()


def test_an_inference_that_was_under_way_is_void_after_a_change_of_task(start_policy):
    """A real forward pass takes longer than a control period, so every change meets one."""
    rig = start_policy(
        policy="vla", checkpoint="random:small", num_threads=1, warmup_count=2, max_age_s=5.0
    )
    rig.bring_up("reach")
    with rig.filming(50.0):
        for i in range(6):
            rig.expect(State.RUNNING, timeout=20.0)
            rig.wait_for(CommandKind.POLICY, len(rig.commands))
            rig.instruct(f"move {i}")
            epoch = rig.expect(lambda s, i=i: s.instruction == f"move {i}").epoch
        rig.expect(State.RUNNING, timeout=20.0)
        rig.wait_for(CommandKind.POLICY, len(rig.commands))
    moved = [m for m in rig.commands.messages if m.kind == CommandKind.POLICY]
    assert {m.epoch for m in moved} == set(range(epoch - 6, epoch + 1))

    def keys(messages):
        return {(stamp_of(m.observation_stamp), m.epoch) for m in list(messages)}

    wait_until(lambda: keys(moved) <= keys(rig.chunks.messages), 5.0, "the chunk of every action")
    inferred = keys(rig.chunks.messages)
    under_way = [
        key
        for key in inferred
        if key not in {(stamp_of(m.observation_stamp), m.epoch) for m in moved}
    ]
    print(f"{len(moved)} actions, {len(under_way)} inferences without one")
    rig.check_commands(5.0)


def test_every_change_of_task_is_acknowledged_at_once(start_policy):
    """Also in a state that the change does not touch, where the report comes once a second."""
    rig = start_policy()
    rig.bring_up()  # no camera: WAITING throughout
    for i in range(5):
        began = time.monotonic()
        rig.instruct(f"task {i}")
        rig.expect(lambda s, i=i: s.instruction == f"task {i}")
        judge("a task acknowledged", time.monotonic() - began, quiet=0.5, loaded=0.9)


def test_what_no_person_would_mean_is_rejected_and_the_task_stays(start_policy):
    rig = start_policy(max_age_s=PATIENT)
    rig.bring_up("reach")
    with rig.filming():
        reject_all(rig)
    rig.check_commands(PATIENT)


def reject_all(rig):
    before = rig.expect(State.RUNNING)
    for text, says in REJECTED.values():
        rig.instruct(text)
        rig.expect(lambda s, says=says: says in s.reason and s.instruction == "reach")
    rig.instruct_raw(LITTLE_ENDIAN + b"\6\0\0\0pi\xffck\0")
    rig.expect(lambda s: "text is not UTF-8: invalid start byte at byte 2" in s.reason)
    rig.instruct_raw(LITTLE_ENDIAN + b"\x90\0\0\0pick\0")
    rig.expect(lambda s: "text is cut short" in s.reason)
    rig.instruct("reach")  # the same again
    rig.instruct("  reach ")
    rig.instruct("")  # stop
    stopped = rig.expect(lambda s: s.instruction != "reach")
    assert stopped.instruction == ""
    assert stopped.state == State.WAITING
    assert stopped.epoch == before.epoch + 1  # nothing before the stop began a new one
    assert State.HOLD not in {s.state for s in rig.status.messages}

    # Stopped: zero commands, no action, until there is a task again.
    kinds = {CommandKind(m.kind) for m in rig.after(stopped)}
    assert kinds == {CommandKind.STOP}
    begin = len(rig.commands)
    for _ in range(3):
        rig.instruct("reach")  # by a node that repeats its instruction
        time.sleep(0.2)
    assert CommandKind.POLICY not in rig.kinds(begin)
    assert rig.call("resume") == "resumed: 'reach'"
    rig.expect(State.RUNNING)
    rig.wait_for(CommandKind.POLICY, len(rig.commands))


def test_a_volatile_publisher_is_obeyed_as_any_other(start_policy):
    """`ros2 topic pub --once`, and every publisher that asks for nothing special."""
    rig = start_policy()
    rig.bring_up("reach")
    volatile = rig.ros.publisher(String, "instruction", 10)
    rig.ros.wait_for_subscriber(volatile)
    with rig.filming():
        rig.expect(State.RUNNING)
        volatile.publish(String(data="lift"))
        rig.expect(lambda s: s.instruction == "lift")
        running = rig.expect(State.RUNNING)
        volatile.publish(String(data=" "))
        stopped = rig.expect(lambda s: s.instruction == "")
        assert (stopped.state, stopped.epoch) == (State.WAITING, running.epoch + 1)
        rig.instruct("push")  # another one is a new task
        rig.expect(State.RUNNING)
    rig.check_commands()


@pytest.mark.parametrize("durability", ["transient local", "volatile"])
def test_after_stop_the_task_that_follows_at_once_runs(start_policy, durability):
    """Also while the executor is busy with a camera's images."""
    rig = start_policy()
    rig.bring_up("reach")
    say = rig.instruct
    if durability == "volatile":
        volatile = rig.ros.publisher(String, "instruction", 10)
        rig.ros.wait_for_subscriber(volatile)

        def say(text):
            volatile.publish(String(data=text))

    with rig.filming(90.0, shape=(480, 640, 3)):
        for number in range(10):
            rig.expect(State.RUNNING)
            say("")
            say(f"task {number}")
            wait_until(
                lambda n=number: rig.status.last.instruction == f"task {n}",
                5.0,
                lambda: rig.status.last.reason,
            )
    assert not [line for line in rig.node.log.splitlines() if "was stopped" in line]


def test_what_is_not_obeyed_is_told_by_the_status(start_policy):
    rig = start_policy()
    rig.bring_up("reach")
    with rig.filming():
        rig.expect(State.RUNNING)
        rig.instruct("pick\nup")
        rig.expect(lambda s: "instruction rejected" in s.reason and s.instruction == "reach")
        rig.instruct("")
        rig.instruct("reach")
        rig.expect(lambda s: "'reach' was stopped: resume" in s.reason)
        rig.instruct("lift")
        rig.expect(lambda s: s.instruction == "lift" and "reach" not in s.reason)


def test_activation_resumes_no_motion_unasked_also_after_a_cleanup(start_policy):
    rig = start_policy()
    rig.bring_up("reach")
    with rig.filming():
        rig.expect(State.RUNNING)
        for transitions in (
            ("deactivate", "activate"),
            ("deactivate", "cleanup", "configure", "activate"),  # the topic still says "reach"
        ):
            for transition in transitions:
                assert rig.ros.change_state("/policy", transition)
            waiting = rig.expect(lambda s: "stopped" in s.reason)
            begin = len(rig.commands)
            time.sleep(1.0)
            assert rig.kinds(begin) == []
            assert rig.status.last.instruction == ""
            assert rig.call("resume") == "resumed: 'reach'"
            again = rig.expect(State.RUNNING)
            assert again.epoch > waiting.epoch
            rig.wait_for(CommandKind.POLICY, len(rig.commands))
    rig.check_commands()  # numbers go on, also over the cleanup


def test_a_service_in_the_wrong_state_says_why(start_policy):
    rig = start_policy()

    def says(service):
        answer = rig.ros.call(Trigger, f"/policy/{service}")
        return answer.success, answer.message

    for service in ("stop", "resume", "reset", "recover"):
        success, why = says(service)
        assert not success and why.startswith("not configured")
    assert rig.ros.change_state("/policy", "configure")
    assert says("stop")[0], "a stop is never wrong"
    for service in ("resume", "reset", "recover"):
        assert says(service) == (False, "not active: activate the node first")
    assert rig.ros.change_state("/policy", "activate")
    assert says("resume") == (False, "nothing was stopped")
    assert says("recover") == (False, "nothing to recover from: WAITING")
    assert says("reset")[0]
