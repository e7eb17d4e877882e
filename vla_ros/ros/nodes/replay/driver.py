"""The ROS side of a replay: shows recorded frames to a policy node and takes down its answers.

It plays the part of the cameras and of the simulation bridge: it publishes the recorded bytes
as they are, in lock-step also /clock, resets the policy and gives it its task.

Threads: everything is called from one thread; callbacks run in a thread of their own and meet
it under one condition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_ros.core import PolicyState
from vla_ros.msg import ActionChunk, ActionCommand, NamedPoses, PolicyStatus
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import stamp_of, to_time
from vla_ros.nodes.common.listening import listen
from vla_ros.nodes.common.peer import Peer
from vla_ros.replay.chunks import Chunk, chunk_of
from vla_ros.replay.parts import Part
from vla_ros.replay.recorded import said_of
from vla_ros.replay.run import Said

_ACTIVE = (PolicyState.WAITING, PolicyState.RUNNING, PolicyState.HOLD)
_READY_S = 20.0
_LEARN_S = 10.0
_FIRST_RESEND_S, _LAST_RESEND_S = 0.2, 2.0


class ReplayFailed(RuntimeError):
    """The policy node did not do its part; one line says what."""


class PolicyLink(Peer):
    """A connection to the policy node of ``domain``. Use it with `with`.

    ``check`` is called often while it waits; it raises when the node has ended.
    """

    def __init__(
        self,
        domain: int,
        roles: Sequence[str],
        compressed: bool,
        lockstep: bool,
        check: Callable[[], None],
    ) -> None:
        super().__init__("replay", domain)
        self._check = check
        self._lockstep = lockstep
        self.said: list[Said] = []
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.status: PolicyStatus | None = None
        self._answered: set[int] = set()  # stamps of the frames that were answered
        self.heard: list[Chunk] = []  # every chunk
        self._chunks = 0
        self._make_topics(roles, compressed)
        self.start()

    def _make_topics(self, roles: Sequence[str], compressed: bool) -> None:
        node = self.node
        picture, suffix = (CompressedImage, "/compressed") if compressed else (Image, "")
        kinds: dict[str, tuple[Any, str, Any]] = {
            "image": (picture, f"image{suffix}", qos.IMAGE_PUB),
            "wrist_image": (picture, f"wrist_image{suffix}", qos.IMAGE_PUB),
            "joint_states": (JointState, "joint_states", qos.STATE),
            "ground_truth": (NamedPoses, "ground_truth", qos.STATE),
        }
        self._publishers = {role: node.create_publisher(*kinds[role]) for role in roles}
        self._instruction = node.create_publisher(String, "instruction", qos.LATCHED)
        self._clock = node.create_publisher(ClockMessage, "/clock", qos.STATE)
        self._reset = node.create_client(Trigger, "policy/reset")
        listen(node, ActionCommand, "policy/action", self._on_command, qos.ACTION)
        listen(node, ActionChunk, "policy/action_chunk", self._on_chunk, qos.REPORT)
        listen(node, PolicyStatus, "policy/status", self._on_status, qos.LATCHED)

    # ------------------------------------------------------------------ to the policy

    def wait_ready(self) -> None:
        """Until the policy node is active and hears everything. ReplayFailed: it is not."""

        def ready() -> bool:
            active = self.status is not None and self.status.state in _ACTIVE
            heard = [*self._publishers.values(), self._instruction]
            heard += [self._clock] if self._lockstep else []
            return (
                active
                and all(publisher.get_subscription_count() for publisher in heard)
                and self.node.count_publishers("policy/action") > 0
                and self._reset.service_is_ready()
            )

        if not self._until(ready, _READY_S):
            raise ReplayFailed(f"the policy node was not ready in {_READY_S:g} s{self._state()}")

    def begin(self, instruction: str, reset: bool, clock_ns: int) -> None:
        """Give the policy its task, and reset it before; it knows both when this returns.

        ReplayFailed: it does not.
        """
        epoch = self.status.epoch if self.status is not None else 0
        if self._lockstep:
            self.clock(clock_ns)
        if reset:
            self._reset_policy()
        self._instruction.publish(String(data=instruction))

        def knows() -> bool:
            status = self.status
            if status is None or status.instruction != instruction:
                return False
            if reset and status.epoch <= epoch:
                return False
            return not self._lockstep or stamp_of(status.header.stamp) >= clock_ns

        if not self._until(knows, _LEARN_S):
            raise ReplayFailed(f"the policy did not take up its instruction{self._state()}")

    def _reset_policy(self) -> None:
        try:
            answer = self.call(self._reset, Trigger.Request(), _LEARN_S, self._check)
        except TimeoutError as error:
            raise ReplayFailed(f"the policy could not be reset: {error}{self._state()}") from None
        if not answer.success:
            raise ReplayFailed(f"the policy could not be reset: {answer.message}{self._state()}")

    def clock(self, stamp_ns: int) -> None:
        """Let simulated time be this."""
        self._clock.publish(ClockMessage(clock=to_time(stamp_ns)))

    def show(self, parts: Sequence[Part]) -> None:
        """Publish the messages of a frame."""
        for part in parts:
            self._publishers[part.role].publish(part.data)

    def answer(self, stamp_ns: int, clock_ns: int, parts: Sequence[Part], patience_s: float) -> str:
        """Lock-step: show a frame until it is answered; empty, or why the policy refused it.

        ReplayFailed: neither happened within ``patience_s``.
        """
        refused = self.status.frames_dropped if self.status is not None else 0
        until = time.monotonic() + patience_s
        wait_s = _FIRST_RESEND_S
        while time.monotonic() < until:
            self.clock(clock_ns)
            self.show(parts)
            if self._until(lambda: stamp_ns in self._answered, wait_s):
                return ""
            status = self.status
            if wait_s >= 1.0 and status is not None and status.frames_dropped > refused + 2:
                return str(status.last_drop)
            wait_s = min(2 * wait_s, _LAST_RESEND_S)
        raise ReplayFailed(f"no answer within {patience_s:g} s{self._state()}")

    def next_chunk(self, seen: int, timeout_s: float) -> None:
        """Wait until the policy has answered more than ``seen`` frames."""
        self._until(lambda: self._chunks > seen, timeout_s)

    @property
    def chunks(self) -> int:
        """How many inferences the policy has told of."""
        return self._chunks

    # ------------------------------------------------------------------ from the policy

    def _on_command(self, message: ActionCommand) -> None:
        said = said_of(message, time.monotonic_ns())
        with self.bell:
            again = self._lockstep and said.latest_ns in self._answered
            if not again:  # the answer to a frame that was shown twice comes twice
                self.said.append(said)
            self._answered.add(said.latest_ns)
            self.bell.notify_all()

    def _on_chunk(self, message: ActionChunk) -> None:
        with self.bell:
            self._chunks += 1
            self.heard.append(chunk_of(message, time.monotonic_ns()))
            if len(message.tokens):
                self.tokens[stamp_of(message.observation_stamp)] = tuple(map(int, message.tokens))
            self.bell.notify_all()

    def _on_status(self, message: PolicyStatus) -> None:
        with self.bell:
            self.status = message
            self.bell.notify_all()

    # ------------------------------------------------------------------ small things

    def _until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        return self.wait(true, timeout_s, self._check)

    def _state(self) -> str:
        if self.status is None:
            return "; nothing was heard of it"
        return f"; it is {PolicyState(self.status.state).name}: {self.status.reason}"
