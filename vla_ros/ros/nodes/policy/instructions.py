"""The policy node's instructions: of every writer, whether it latches its last one or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rclpy.lifecycle import LifecycleNode
from rclpy.qos import DurabilityPolicy
from std_msgs.msg import String

from vla_ros.core.clock import SECOND, Clock
from vla_ros.ros.common import qos
from vla_ros.ros.common.compat import listener
from vla_ros.ros.common.serialized import read_text
from vla_ros.ros.common.spin import every
from vla_ros.runtime.control.control import Control
from vla_ros.runtime.control.goals import check_instruction

LATCHED_S = 2.0  # for a latched instruction to come from a writer that was just discovered
KEPT_S = 0.2  # between two readers' receipt of one message, at most
_MOST_WRITERS = 100  # `ros2 topic pub` is another one each time


class Instructions:
    """Reader of std_msgs/String on ``instruction``. It stays, and is volatile; a second one reads
    what a new writer latches, as long as it takes.

    A reader of latched messages that stayed would be incompatible with the default of `ros2 topic
    pub`, and the middleware of both sides would warn of it.
    """

    def __init__(self, node: LifecycleNode, clock: Clock, control: Control) -> None:
        self._node, self._clock, self._control = node, clock, control
        self._latched: Any = None  # reader of latched instructions, for a while
        self._retired: list[Any] = []  # those before it, which got what they were made for
        self._latching: frozenset[bytes] = frozenset()  # writers that latch, by GID
        self._latched_ns = 0  # when the reader was made
        self._newest: dict[bytes, int] = {}  # writer -> time by its clock of its last instruction
        self._kept: tuple[int, bytes] | None = None  # the same of a latched one, and the message
        self._instructed_ns = 0  # receipt of the last one that was not latched
        self._when_kept = every(node, KEPT_S, self._set_kept)
        self._when_kept.cancel()
        self._reader = node.create_subscription(
            String, "instruction", listener(self._on_instruction), qos.EVENT, raw=True
        )
        self._writers_seen = every(node, KEPT_S, self._read_latched)

    def close(self) -> None:
        """Give up the readers and timers."""
        self._node.destroy_timer(self._when_kept)
        self._node.destroy_timer(self._writers_seen)
        self._forget_latched()
        self._node.destroy_subscription(self._reader)

    def _on_instruction(self, serialized: bytes, info: Mapping[str, Any]) -> None:
        """Take every instruction of every writer, in each one's order."""
        self._note(info)
        self._kept = None  # a new instruction outweighs an older one
        self._instructed_ns = self._clock.steady_ns()
        self._set(serialized)

    def _note(self, info: Mapping[str, Any]) -> bool:
        """Note a writer's instruction; False: it, or a later one, was noted before. A reader made
        for one writer gets what all the others latch, too, in any order. True where the middleware
        names no writer (Jazzy): clocks of two machines are not compared."""
        gid, written = info.get("publisher_gid"), int(info.get("source_timestamp") or 0)
        if gid is None or not written:
            return True
        writer = bytes(gid["data"])
        if written <= self._newest.get(writer, -1):
            return False
        self._newest[writer] = written
        if len(self._newest) > _MOST_WRITERS:
            del self._newest[next(iter(self._newest))]
        return True

    def _read_latched(self) -> None:
        """Read what a writer latches that has come since the last call. Fast DDS was seen to hang
        while it deletes an endpoint: so that is not done while the robot moves."""
        found = self._node.get_publishers_info_by_topic(self._reader.topic_name)
        latching = frozenset(
            bytes(writer.endpoint_gid)
            for writer in found
            if writer.qos_profile.durability is DurabilityPolicy.TRANSIENT_LOCAL
        )
        news, self._latching = latching - self._latching, latching
        now_ns = self._clock.steady_ns()
        if news:
            self._latched_ns = now_ns
            if self._latched is not None:
                self._retired.append(self._latched)
            self._latched = self._node.create_subscription(
                String, "instruction", listener(self._on_latched), qos.LATCHED, raw=True
            )
            return
        over = now_ns - self._latched_ns > LATCHED_S * SECOND
        if over and not self._control.loop.safety.moves:
            self._forget_latched()

    def _forget_latched(self) -> None:
        for reader in filter(None, (self._latched, *self._retired)):
            self._node.destroy_subscription(reader)
        self._latched, self._retired = None, []

    def _on_latched(self, serialized: bytes, info: Mapping[str, Any]) -> None:
        """Keep the last instruction of a writer that latches it. This reader gets new ones too,
        before or after the other one: only what that one does not get is news."""
        if not self._note(info):
            return
        if self._clock.steady_ns() - self._instructed_ns > KEPT_S * SECOND:
            written = int(info.get("source_timestamp") or 0)
            if self._kept is None or written >= self._kept[0]:  # of several writers' the newest
                self._kept = written, serialized
            self._when_kept.reset()

    def _set_kept(self) -> None:
        self._when_kept.cancel()
        if self._kept is not None:
            self._set(self._kept[1])
            self._kept = None

    def _set(self, serialized: bytes) -> None:
        log = self._node.get_logger()
        try:
            text = check_instruction(read_text(serialized))
        except ValueError as error:
            self._control.ignore(f"instruction rejected, the task stays: {error}")
            return
        if self._control.set_instruction(text):
            log.info(f"instruction: '{text}'" if text else "instruction: stop")
