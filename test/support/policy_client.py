"""A policy node under test with everything around it: camera, task, recorded topics.

rig = start_policy(max_age_s=0.5)   # the fixture: a node process, not yet configured
rig.bring_up("reach")               # configure, activate, give the task
rig.camera()                        # a camera process at 20 Hz
rig.expect(State.RUNNING)
"""

from __future__ import annotations

import array
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sensor_msgs.msg import Image
from std_msgs.msg import String
from std_srvs.srv import Trigger

from support.nodes import Program
from support.ros import Inbox, RosPeer, keeping_all
from support.wait import repeating, wait_until
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import CommandKind, Floats
from vla_ros.core.types import PolicyState as State
from vla_ros.msg import ActionChunk, ActionCommand, Latency, PolicyStatus
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of

if TYPE_CHECKING:
    from rclpy.subscription import MessageInfo  # Jazzy and Humble lack it

CAMERA = Path(__file__).with_name("camera.py")
GRIPPER = 0.25  # of every row of `moves`: told apart from the node's own default


def moves(folder: Path, rows: Floats | None = None) -> str:
    """A file for `policy: replay`; by default 40 rows that all move and all differ."""
    if rows is None:
        rows = np.zeros((40, 7))
        rows[:, 0] = 0.001 * np.arange(1, 41)
        rows[:, 5] = -0.3
        rows[:, 6] = GRIPPER
    path = folder / "moves.npy"
    np.save(path, rows)
    return str(path)


class Arrivals(Inbox[ActionCommand]):
    """Commands with the times at which the middleware received them: when this process came to
    read them says more about this process."""

    def add(self, message: ActionCommand, info: MessageInfo | None = None) -> None:
        wall, steady = time.time_ns(), time.monotonic_ns()
        received = int(info["received_timestamp"]) if info else wall
        self.times.append(steady - (wall - received))
        self.messages.append(message)


class PolicyRig:
    """One policy node process, and what the test sees of it. Made by `start_policy`."""

    def __init__(
        self,
        ros: RosPeer,
        node: Program,
        env: Mapping[str, str],
        started: list[Program],
    ) -> None:
        self.ros, self.node = ros, node
        self._env, self._started = env, started
        self.commands = Arrivals("policy/action")
        ros.node.create_subscription(
            ActionCommand, self.commands.topic, self.commands.add, keeping_all(qos.ACTION)
        )
        self.status: Inbox[PolicyStatus] = ros.inbox(PolicyStatus, "policy/status", qos.LATCHED)
        self.latency: Inbox[Latency] = ros.inbox(Latency, "policy/latency", qos.REPORT)
        self.chunks: Inbox[ActionChunk] = ros.inbox(ActionChunk, "policy/action_chunk", qos.REPORT)
        self._task = ros.publisher(String, "instruction", qos.LATCHED)
        self._image: Any = None
        self._shown = 0
        self._read = 0  # statuses that `expect` has gone past

    # What goes in

    def bring_up(self, task: str = "") -> None:
        """Configure, activate, and give a task unless it is empty."""
        self.ros.bring_up("/policy")
        if task:
            self.instruct(task)

    def instruct(self, text: str) -> None:
        """Give a task; the text travels as it is, also with a NUL in it."""
        data = text.encode() + b"\0"
        self.instruct_raw(b"\0\1\0\0" + len(data).to_bytes(4, "little") + data)

    def instruct_raw(self, serialized: bytes) -> None:
        """Publish these bytes as a std_msgs/String."""
        self._task.publish(serialized)

    def camera(self, **options: object) -> Program:
        """Start a camera process; see support/camera.py for its options."""
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        program = Program("camera", [sys.executable, str(CAMERA), *words], self._env)
        self._started.append(program)
        return program

    def frame(self, **fields: Any) -> Image:
        """A good 8 x 6 rgb8 image of this moment, with ``fields`` set otherwise. Not sent."""
        self._shown += 1
        message = Image(height=6, width=8, encoding="rgb8", step=24)
        message.data.frombytes(bytes([self._shown % 251]) * 144)
        message.header.stamp = self.ros.node.get_clock().now().to_msg()
        for name, value in fields.items():
            setattr(message, name, value)
        return message

    def show(self, message: Any, topic: str = "image") -> None:
        """Publish an image from the test's own process."""
        if self._image is None:
            self._image = self.ros.publisher(type(message), topic, qos.IMAGE_PUB)
            self.ros.wait_for_subscriber(self._image)
        self._image.publish(message)

    def connect(self, kind: type = Image, topic: str = "image") -> None:
        """Open the test's own camera topic of a stopped policy and see that frames arrive: the
        reader may know its writer a moment later than the writer its reader."""
        probe = kind(header=self.frame().header)  # dropped: it is empty; passed over without a task
        for _ in range(20):
            self.show(probe, topic)
            # Patient: a second probe would be dropped later, when drops are counted.
            with contextlib.suppress(AssertionError):
                wait_until(
                    lambda: (now := self.now()).frames_dropped + now.frames_received,
                    1.0,
                    every=0.05,
                )
                return
        raise AssertionError(f"nothing arrives on {topic}")

    @contextlib.contextmanager
    def filming(
        self, rate: float = 20.0, shape: tuple[int, int, int] = (6, 8, 3)
    ) -> Iterator[None]:
        """Show good frames at this rate from a thread, for tests that do not judge timing."""
        height, width, depth = shape
        large = array.array("B", bytes(height * width * depth))

        def frame() -> Image:
            if (height, width) == (6, 8):
                return self.frame()
            return self.frame(height=height, width=width, step=depth * width, data=large)

        with repeating(lambda: self.show(frame()), 1.0 / rate):
            yield

    def call(self, service: str) -> str:
        """Call ~/stop, ~/recover or ~/reset; returns what it said."""
        answer = self.ros.call(Trigger, f"/policy/{service}")
        assert answer.success, answer.message
        return str(answer.message)

    # What comes out

    def expect(
        self,
        wanted: State | Callable[[PolicyStatus], object],
        timeout: float = 10.0,
    ) -> PolicyStatus:
        """The next status in that state, or for which the function is true. Each call goes on
        after the status that the last call returned."""
        found: list[PolicyStatus] = []

        def fits(status: PolicyStatus) -> bool:
            return bool(status.state == wanted if isinstance(wanted, State) else wanted(status))

        def look() -> bool:
            while self._read < len(self.status) and not found:
                if fits(self.status.messages[self._read]):
                    found.append(self.status.messages[self._read])
                self._read += 1
            return bool(found)

        def last() -> str:
            if not len(self.status):
                return "no status came at all"
            status = self.status.last
            return f"{wanted}; the last is {State(status.state).name}: {status.reason}"

        wait_until(look, timeout, last)
        return found[0]

    def runs_again(self, restarts: int, timeout: float = 10.0) -> PolicyStatus:
        """The next status in RUNNING with the worker that so many losses led to. A busy machine may
        hold and go on in between for reasons of its own."""
        return self.expect(
            lambda s: s.state == State.RUNNING and s.worker_pid and s.worker_restarts == restarts,
            timeout,
        )

    def now(self) -> PolicyStatus:
        """A status of this very moment (~/stop of a stopped policy changes nothing)."""
        begin = len(self.status)
        self.call("stop")
        wait_until(lambda: len(self.status) > begin, 5.0, "the status after a service call")
        return self.status.last

    def after(self, status: PolicyStatus, count: int = 10) -> list[ActionCommand]:
        """Commands published after this status, once there are so many of them. By their stamps:
        those of before may be read after it."""
        since = stamp_of(status.header.stamp)

        def later() -> list[ActionCommand]:
            return [m for m in list(self.commands.messages) if stamp_of(m.header.stamp) > since]

        wait_until(lambda: len(later()) >= count, 10.0, f"{count} commands after the status")
        return later()

    def kinds(self, begin: int = 0) -> list[CommandKind]:
        """Kinds of the commands from number ``begin`` on, as they arrived."""
        return [CommandKind(m.kind) for m in self.commands.messages[begin:]]

    def largest_gap_s(self, begin: int = 0) -> float:
        """Longest time between the arrivals of two commands in a row, from ``begin`` on."""
        return float(np.diff(self.commands.times[begin:]).max()) / SECOND

    def largest_tick_gap_s(self, begin: int = 0) -> float:
        """Longest time between the publications of two commands in a row, by their stamps."""
        stamps = [stamp_of(m.header.stamp) for m in self.commands.messages[begin:]]
        return float(np.diff(stamps).max()) / SECOND

    def wait_for(self, kind: CommandKind, begin: int = 0, timeout: float = 10.0) -> int:
        """Number of the first command of this kind from ``begin`` on; waits for it."""
        seen = begin

        def look() -> bool:
            nonlocal seen
            while seen < len(self.commands) and self.commands.messages[seen].kind != kind:
                seen += 1
            return seen < len(self.commands)

        wait_until(look, timeout, lambda: f"a {kind.name} command; kinds: {self.kinds(begin)}")
        return seen

    def check_commands(self, max_age_s: float = 0.5) -> None:
        """What holds for every sequence of commands, whatever happened meanwhile."""
        for i, command in enumerate(self.commands.messages):
            numbers = zip(command.action, command.units, strict=True)
            assert all(np.isfinite(n) or (np.isnan(n) and u == "1") for n, u in numbers), command
            assert (np.abs(command.action[:6]) <= [0.05] * 3 + [0.5] * 3).all(), command
            if i:
                before = self.commands.messages[i - 1]
                assert command.sequence == before.sequence + 1, (before, command)
                assert command.epoch >= before.epoch, (before, command)
            if command.kind != CommandKind.POLICY:
                assert not any(command.action[:6]), command
            if command.kind != CommandKind.STOP:
                age = stamp_of(command.header.stamp) - stamp_of(command.observation_stamp)
                assert 0 <= age <= max_age_s * SECOND, f"{age / MS:.1f} ms old: {command}"

    def worker(self, number: signal.Signals) -> int:
        """Send a signal to the worker process; returns its id."""
        pid = int(self.status.last.worker_pid)
        assert pid, "there is no worker"
        os.kill(pid, number)
        return pid
