"""The consumer of docs/how-to/consumer.py beside a live policy node."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from std_msgs.msg import Float64MultiArray

from support.nodes import Program
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.clock import MS
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.msg import ActionCommand
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import to_time

CONSUMER = Path(__file__).parents[2] / "docs" / "how-to" / "consumer.py"
T = 0.05
PATIENT = 5.0  # max_age_s: a busy machine does not make the policy stop by itself


def by_hand(
    sequence: int, published: int, valid_until: int, x: float, kind: int = CommandKind.POLICY
) -> ActionCommand:
    """A command as the policy node would publish it."""
    command = ActionCommand(sequence=sequence, action=[x] * 7, kind=int(kind))
    command.header.stamp, command.valid_until = to_time(published), to_time(valid_until)
    return command


@pytest.fixture
def consumer(ros_env):
    program = Program("consumer", [sys.executable, str(CONSUMER)], ros_env)
    yield program
    program.kill()
    print(f"----- consumer\n{program.log}")


@pytest.mark.timing
def test_the_consumer_of_the_how_to_executes_what_is_valid_once_and_stops(
    start_policy, consumer, ros
):
    driver = ros.inbox(Float64MultiArray, "arm/commands")
    rig = start_policy(max_age_s=PATIENT)
    own = ros.publisher(ActionCommand, "policy/action", qos.ACTION)
    wait_until(lambda: own.get_subscription_count() >= 2, 30.0, "the consumer")
    wait_until(lambda: driver.subscription.get_publisher_count() == 1, 10.0, "its arm's topic")
    rig.bring_up("reach")
    with rig.filming():
        rig.expect(State.RUNNING)
        wait_until(lambda: len(driver) > 20, 10.0, "commands of the consumer")
        rig.call("stop")
        first = rig.wait_for(CommandKind.STOP)
        wait_until(lambda: not driver.last.data, 5.0, "the consumer's stop")
        moved = [m.data.tolist() for m in driver.messages if m.data]
        said = [m for m in rig.commands.messages[: first + 1] if m.kind == CommandKind.POLICY]
        left = iter([m.action.tolist() for m in said])
        assert all(one in left for one in moved), "each once, in order"
        # It keeps the newest ten: more are lost while it has no processor.
        judge("commands left out", len(said) - len(moved), quiet=0, loaded=10, unit="")
        rig.call("resume")
        wait_until(lambda: driver.last.data, 5.0, "motion again")
        rig.node.signal(signal.SIGKILL)
        lost_at = time.monotonic_ns()
        wait_until(lambda: not driver.last.data, 5.0, "the consumer's stop after a silence")
        stopped = (driver.times[-1] - lost_at) / 1e9
        judge("the consumer's own stop", stopped, quiet=3 * T + 0.06, loaded=3 * T + 1.0)
    rig.node.wait()

    now, begin = time.time_ns(), len(driver)
    long = now + 60_000 * MS
    own.publish(by_hand(10**6, now, now - MS, 1.0))  # its observation is too old
    own.publish(by_hand(10**6 + 1, now, long, 2.0))
    own.publish(by_hand(10**6 + 1, now, long, 3.0))  # it came before
    own.publish(by_hand(10**6, now - MS, long, 4.0))  # a newer one came before it
    own.publish(by_hand(10**6 + 2, now, long, 5.0))

    def told() -> list[float]:
        return [m.data[0] for m in driver.messages[begin:] if m.data]

    # In order: once the last is there, nothing else is to come.
    wait_until(lambda: 5.0 in told(), 10.0, "the last of them")
    assert told() == [2.0, 5.0]


@pytest.fixture
def moving(consumer, ros):
    """The consumer's driver and a writer of commands of its own, after a first command."""
    driver = ros.inbox(Float64MultiArray, "arm/commands")
    own = ros.publisher(ActionCommand, "policy/action", qos.ACTION)
    ros.wait_for_subscriber(own)
    wait_until(lambda: driver.subscription.get_publisher_count() == 1, 10.0, "its arm's topic")
    numbers = itertools.count(1)

    def moves() -> bool:
        """Told again: a reader may know its writer a moment later than the writer its reader."""
        if any(m.data for m in driver.messages):
            return True
        now = time.time_ns()
        own.publish(by_hand(next(numbers), now, now + 60_000 * MS, 1.0))
        return False

    wait_until(moves, 10.0, "motion", every=1.0)
    return driver, own


@pytest.mark.parametrize("kind", [CommandKind.STOP, CommandKind.HELD])
@pytest.mark.parametrize("sequence", [101, 3])
def test_a_stop_is_obeyed_after_the_clock_was_set_back_whatever_its_number(moving, kind, sequence):
    driver, own = moving
    back = time.time_ns() - 60_000 * MS
    later = time.time_ns() + 60_000 * MS
    sent = len(driver)
    own.publish(by_hand(102, back + MS, later, 2.0))
    own.publish(by_hand(sequence, back, later, 0.0, kind))
    own.publish(by_hand(103, back + 2 * MS, later, 3.0))
    wait_until(lambda: 3.0 in [m.data[0] for m in driver.messages if m.data], 10.0, "all of them")
    told = [m.data[0] if m.data else None for m in driver.messages[sent:]]
    moves = [one for one in told if one is not None]
    assert moves == [2.0, 3.0], "a clock that goes back voids no command"
    assert None in told[: told.index(3.0)], "it stood still in between"


def test_what_is_not_obeyed_keeps_no_watchdog_alive(moving):
    driver, own = moving
    now = time.time_ns()

    def repeat() -> bool:
        own.publish(by_hand(1, now, now + 60_000 * MS, 1.0))  # it came before
        return not driver.last.data

    wait_until(repeat, 10.0, "its own stop", every=T / 4)
