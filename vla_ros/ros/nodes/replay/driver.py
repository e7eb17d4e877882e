"""The ROS side of a replay: publishes recorded frames to a policy node and records its answers.

It takes the part of the cameras and of the simulation bridge: it publishes the recorded bytes
as they are, in lock-step also /clock, resets the policy and gives it its instruction.

Threads: everything is called from one thread; callbacks run in a thread of their own and meet
it under one condition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_ros.core.clock import MS, SECOND, Window
from vla_ros.core.types import PolicyState
from vla_ros.data.bag_frames import BagFrame, FramePart, restamped
from vla_ros.data.replay import Chunk, EpisodeBegin, chunk_of, command_of, run_of_chunks
from vla_ros.data.replay_compare import PolicyRun, RunCommand
from vla_ros.msg import ActionChunk, ActionCommand, NamedPoses, PolicyStatus
from vla_ros.ros.bringup.graph import GraphFailed
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of, to_time
from vla_ros.ros.common.listening import listen
from vla_ros.ros.common.peer import Peer

_ACTIVE = (PolicyState.WAITING, PolicyState.RUNNING, PolicyState.HOLD, PolicyState.TAKEOVER)
_READY_S = 20.0
_LEARN_S = 10.0
_CLOCK_AGAIN_S = 0.5  # until the policy's status has it
_FIRST_RESEND_S, _LAST_RESEND_S = 0.2, 2.0
#: fields of a run that are those of the policy's status
_OF_STATUS = (
    "policy", "decoding", "checkpoint", "checkpoint_sha256", "device", "dtype", "pipeline_depth",
)  # fmt: skip


class ReplayFailed(GraphFailed):
    """The policy node did not respond as it must; the text is one line."""


class PolicyLink(Peer):
    """Connection to the policy node of ``domain``, with the ``commands`` and chunks ``received`` of
    it. Use it with `with`. ``check`` is called often while it waits; it raises when the node has
    ended."""

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
        self.commands: list[RunCommand] = []
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.status: PolicyStatus | None = None
        self._answered: set[int] = set()  # stamps of the frames that were answered
        self.received: list[Chunk] = []
        self._make_topics(roles, compressed)
        self.start()

    def _make_topics(self, roles: Sequence[str], compressed: bool) -> None:
        node = self.node
        image, suffix = (CompressedImage, "/compressed") if compressed else (Image, "")
        kinds: dict[str, tuple[Any, str, Any]] = {
            "image": (image, f"image{suffix}", qos.IMAGE_PUB),
            "wrist_image": (image, f"wrist_image{suffix}", qos.IMAGE_PUB),
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

    # To the policy

    def wait_ready(self) -> None:
        """Wait until the policy node is active and subscribed to everything. ReplayFailed: it is
        not."""

        def ready() -> bool:
            active = self.status is not None and self.status.state in _ACTIVE
            publishers = [*self._publishers.values(), self._instruction]
            publishers += [self._clock] if self._lockstep else []
            return (
                active
                and all(publisher.get_subscription_count() for publisher in publishers)
                and self.node.count_publishers("policy/action") > 0
                and self._reset.service_is_ready()
            )

        if not self._until(ready, _READY_S):
            raise ReplayFailed(f"the policy node was not ready in {_READY_S:g} s{self._state()}")

    def begin(self, instruction: str, reset: bool, clock_ns: int) -> None:
        """Give the policy its instruction, and reset it before; its status shows both when this
        returns. ReplayFailed: it does not."""
        epoch = self.status.epoch if self.status is not None else 0
        if self._lockstep:
            self.clock(clock_ns)
        if reset:
            self._reset_policy()
        self._instruction.publish(String(data=instruction))

        again_at = time.monotonic() + _CLOCK_AGAIN_S

        def knows() -> bool:
            nonlocal again_at
            status = self.status
            if self._lockstep and time.monotonic() > again_at:
                self.clock(clock_ns)  # a reader that matched this writer late has not heard it
                again_at = time.monotonic() + _CLOCK_AGAIN_S
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
        """Set simulated time."""
        self._clock.publish(ClockMessage(clock=to_time(stamp_ns)))

    def show(self, parts: Sequence[FramePart]) -> None:
        """Publish the messages of a frame."""
        for part in parts:
            self._publishers[part.role].publish(part.data)

    def answer(
        self, stamp_ns: int, clock_ns: int, parts: Sequence[FramePart], patience_s: float
    ) -> str:
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
        self._until(lambda: self.chunks > seen, timeout_s)

    @property
    def chunks(self) -> int:
        """Number of chunks that the policy has published."""
        return len(self.received)

    # From the policy

    def _on_command(self, message: ActionCommand) -> None:
        command = command_of(message, time.monotonic_ns())
        with self.bell:
            again = self._lockstep and command.latest_ns in self._answered
            if not again:  # the answer to a frame that was shown twice comes twice
                self.commands.append(command)
            self._answered.add(command.latest_ns)
            self.bell.notify_all()

    def _on_chunk(self, message: ActionChunk) -> None:
        with self.bell:
            self.received.append(chunk_of(message, time.monotonic_ns()))
            if len(message.tokens):
                self.tokens[stamp_of(message.observation_stamp)] = tuple(map(int, message.tokens))
            self.bell.notify_all()

    def _on_status(self, message: PolicyStatus) -> None:
        with self.bell:
            self.status = message
            self.bell.notify_all()

    def _until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        return self.wait(true, timeout_s, self._check)

    def _state(self) -> str:
        if self.status is None:
            return "; nothing was heard of it"
        return f"; it is {PolicyState(self.status.state).name}: {self.status.reason}"


# Playback of a bag's frames to a policy node: in lock-step, as recorded, or flat out.
#
# * lock-step: a frame, its answer, the next frame; simulated time is that of the frames. The
# actions are the same every time, however fast the policy is.
# * recorded: the frames come as the camera gave them, ``rate`` times as fast, with stamps of now;
# the policy runs in real time and answers the newest frame it has.
# * fast: as recorded, but the next frame comes as soon as the policy has answered one.
# * chunks: in lock-step, the frames that were requested, each with what was executed meanwhile.


_FLAT_OUT_WAIT_S = 0.25  # fast: for a policy whose pipeline is still filling
_LAST_ANSWERS_S = 1.0


@dataclass(frozen=True, slots=True)
class ReplayedFrames:
    """``shown``: stamps of the frames in the order they were shown; ``ends``: of those that
    were the last of an episode; ``refused``: of those the policy would not take, and why."""

    run: PolicyRun
    shown: tuple[int, ...]
    ends: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)
    state: str = ""


Progress = Callable[[int], None]
Lacks = Callable[[BagFrame], str]


class _Playback:
    """Frames that were shown so far, and those that were not."""

    def __init__(self, link: PolicyLink, lacks: Lacks, progress: Progress) -> None:
        self._link, self._lacks, self._progress = link, lacks, progress
        self.shown: list[int] = []
        self.ends: list[int] = []
        self.refused: dict[int, str] = {}

    def begin(self, begin: EpisodeBegin | None, clock_ns: int) -> bool:
        """Begin an episode where one begins; False: there is no instruction yet."""
        if begin is not None:
            self.ends += self.shown[-1:]
            self._link.begin(begin.instruction, begin.reset, clock_ns)
        return begin is not None or bool(self.shown)

    def lacks(self, frame: BagFrame) -> bool:
        """True for a frame that lacks a part, which is not shown."""
        if why := self._lacks(frame):
            self.refused[frame.stamp_ns] = why
        return bool(why)

    def answer(self, frame: BagFrame, patience_s: float) -> None:
        """Show a frame until it is answered or refused."""
        if why := self._link.answer(frame.stamp_ns, frame.image_ns, frame.parts, patience_s):
            self.refused[frame.stamp_ns] = why

    def count(self, frame: BagFrame) -> None:
        self.shown.append(frame.stamp_ns)
        self._progress(len(self.shown))

    def done(self, run: PolicyRun, state: str) -> ReplayedFrames:
        return ReplayedFrames(run, tuple(self.shown), tuple(self.ends), self.refused, state)


def play_lockstep(
    link: PolicyLink,
    frames: Iterable[BagFrame],
    begins: Mapping[int, EpisodeBegin],
    lacks: Lacks,
    patience_s: float,
    progress: Progress,
) -> ReplayedFrames:
    """Play frames in their own time, each after the answer to the one before. ReplayFailed: the
    policy answers no more."""
    playback, took = _Playback(link, lacks, progress), Window(1e9)
    for frame in frames:
        if not playback.begin(begins.get(frame.image_ns), frame.image_ns) or playback.lacks(frame):
            continue
        started = time.monotonic_ns()
        playback.answer(frame, patience_s)
        took.add(0, (time.monotonic_ns() - started) / MS)
        playback.count(frame)
    link.next_chunk(link.chunks, 0.2)  # the last one may still be under way
    run = _run(link, link.commands, link.tokens, len(playback.shown))
    return playback.done(replace(run, answer_ms=took.distribution(0)), _state(link))


def play_chunks(
    link: PolicyLink,
    frames: Iterable[BagFrame],
    chunks: Sequence[Chunk],
    instructions: Mapping[int, str],
    lacks: Lacks,
    patience_s: float,
    progress: Progress,
) -> ReplayedFrames:
    """Request every recorded chunk again; a new epoch begins with a reset. The node knows which
    chunk each continues. ReplayFailed: the policy answers no more."""
    playback = _Playback(link, lacks, progress)
    requested: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        requested.setdefault(chunk.observed_ns, []).append(chunk)
    epoch: int | None = None
    for frame in frames:
        for chunk in requested.get(frame.stamp_ns, ()):
            if playback.lacks(frame):
                continue
            if chunk.epoch != epoch:
                link.begin(instructions[chunk.epoch], True, frame.image_ns)
                epoch = chunk.epoch
            before = link.chunks
            playback.answer(frame, patience_s)
            link.next_chunk(before, 1.0)  # it comes on another topic than the command
            playback.count(frame)
    status = _run(link, [], {}, len(playback.shown))
    run = run_of_chunks(link.received, status, len(playback.shown))
    return playback.done(run, _state(link))


def play_realtime(
    link: PolicyLink,
    frames: Iterable[BagFrame],
    begins: Mapping[int, EpisodeBegin],
    lacks: Lacks,
    rate: float | None,
    progress: Progress,
) -> ReplayedFrames:
    """Play frames in real time, ``rate`` times as fast as recorded; None: flat out."""
    playback = _Playback(link, lacks, progress)
    stamps: dict[int, int] = {}  # of now → as recorded
    start: tuple[int, int] | None = None  # recorded stamp, monotonic time
    for frame in frames:
        paused = time.monotonic_ns()
        begun = playback.begin(begins.get(frame.image_ns), 0)
        if start is not None:
            start = (start[0], start[1] + time.monotonic_ns() - paused)
        if not begun or playback.lacks(frame):
            continue
        if rate is not None:
            start = start or (frame.image_ns, time.monotonic_ns())
            due = start[1] + round((frame.image_ns - start[0]) / rate)
            time.sleep(max(0.0, (due - time.monotonic_ns()) / SECOND))
        before = link.chunks
        shift = time.time_ns() - frame.image_ns
        stamps[frame.stamp_ns + shift] = frame.stamp_ns
        link.show([_moved(part, shift) for part in frame.parts])
        if rate is None:
            link.next_chunk(before, _FLAT_OUT_WAIT_S)
        playback.count(frame)
    state = _state(link)  # it will hold when nothing more comes
    link.next_chunk(link.chunks, _LAST_ANSWERS_S)
    time.sleep(0.1)  # the control tick publishes what came last
    commands = [_as_recorded(one, stamps) for one in list(link.commands)]
    tokens = {stamps[stamp]: row for stamp, row in link.tokens.items() if stamp in stamps}
    return playback.done(_run(link, commands, tokens, len(playback.shown)), state)


def _moved(part: FramePart, shift_ns: int) -> FramePart:
    stamp = part.stamp_ns + shift_ns
    return FramePart(part.role, stamp, restamped(part.data, stamp))


def _as_recorded(command: RunCommand, stamps: Mapping[int, int]) -> RunCommand:
    """Command with the recorded stamps, so that it can be compared; its age stays."""
    observed = stamps.get(command.observed_ns, 0)
    return replace(
        command,
        observed_ns=observed,
        latest_ns=stamps.get(command.latest_ns, 0),
        published_ns=observed + command.published_ns - command.observed_ns,
    )


def _run(
    link: PolicyLink, commands: list[RunCommand], tokens: Mapping[int, tuple[int, ...]], frames: int
) -> PolicyRun:
    status = link.status
    if status is None:
        raise ReplayFailed("nothing was heard of the policy node")
    return PolicyRun(
        tuple(commands),
        dict(tokens),
        frames,
        **{name: getattr(status, name) for name in _OF_STATUS},
    )


def _state(link: PolicyLink) -> str:
    """State in which the policy ended, where it is not RUNNING or INACTIVE."""
    status = link.status
    if status is None or status.state in (PolicyState.RUNNING, PolicyState.INACTIVE):
        return ""
    return f"{PolicyState(status.state).name}: {status.reason}"
