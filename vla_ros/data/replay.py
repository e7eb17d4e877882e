"""The recorded side of a comparison: the commands and chunks of a bag, and its episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vla_ros.core.clock import SECOND
from vla_ros.core.types import STAGES, CommandKind, Instruction
from vla_ros.data.actions import Rates, displaced
from vla_ros.data.bag_frames import BagFrames, TopicRoles
from vla_ros.data.bags import Bag, BagError
from vla_ros.data.replay_compare import PolicyRun, RunCommand
from vla_ros.data.run_info import RunInfo


@dataclass(frozen=True, slots=True)
class Task:
    """An instruction, and when it was recorded."""

    at_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """``run`` is None for a bag without commands. ``tasks`` in the order they were given.

    ``epochs``: of the frames that a command names as its latest, the epoch of that command;
    a new epoch without a new instruction is a reset of the policy.
    """

    run: PolicyRun | None
    tasks: tuple[Task, ...]
    epochs: dict[int, int]


def read_recorded(bag: Bag, picked: TopicRoles) -> Recorded:
    """The whole of a bag but its frames. BagError: a message that is not what its type says."""
    commands: list[RunCommand] = []
    tokens: dict[int, tuple[int, ...]] = {}
    tasks: list[Task] = []
    depth = 1
    roles = ("instruction", "policy/action", "policy/action_chunk")
    by_topic = {name: role for role in roles if (name := picked.name(role))}
    for message in bag.messages(by_topic):
        role, content = by_topic[message.topic], bag.decode(message)
        if role == "instruction":
            tasks.append(Task(message.stamp_ns, str(content.data).strip()))
        elif role == "policy/action":
            commands.append(_recorded_command(content, message.stamp_ns, bag))
            depth = int(content.pipeline_depth)
        elif len(content.tokens):
            stamp = stamp_ns(content.observation_stamp)
            tokens[stamp] = tuple(int(token) for token in content.tokens)
    epochs = {s.latest_ns: s.epoch for s in reversed(commands) if s.latest_ns}
    return Recorded(_run(bag, commands, tokens, depth), tuple(tasks), epochs)


def _run(
    bag: Bag, commands: list[RunCommand], tokens: dict[int, tuple[int, ...]], depth: int
) -> PolicyRun | None:
    if not commands:
        return None
    info = bag.run or RunInfo()
    own = [s.decoding for s in commands if s.kind is CommandKind.POLICY]
    return PolicyRun(
        tuple(commands),
        tokens,
        frames=len({s.latest_ns for s in commands if s.latest_ns}),
        policy=info.policy,
        decoding=info.decoding or (own[0] if own else ""),
        checkpoint=info.checkpoint,
        checkpoint_sha256=info.checkpoint_sha256,
        device=info.device,
        dtype=info.dtype,
        pipeline_depth=depth,
    )


def _recorded_command(message: Any, at_ns: int, bag: Bag) -> RunCommand:
    count, width = len(message.action), len(message.names)
    if count != width or len(message.units) != width:
        raise BagError(
            f"{bag.path}: a recorded action has {count} numbers of {width} names and"
            f" {len(message.units)} units"
        )
    try:
        return command_of(message, at_ns)
    except ValueError:
        raise BagError(f"{bag.path}: a recorded command has the kind {message.kind}") from None


def command_of(message: Any, at_ns: int) -> RunCommand:
    """The command of an ActionCommand, of rosbags or of rclpy. ValueError: an unknown kind."""
    return RunCommand(
        kind=CommandKind(int(message.kind)),
        observed_ns=stamp_ns(message.observation_stamp),
        latest_ns=stamp_ns(message.latest_observation_stamp),
        published_ns=stamp_ns(message.header.stamp),
        at_ns=at_ns,
        action=tuple(float(number) for number in message.action),
        epoch=int(message.epoch),
        chunk_index=int(message.chunk_index),
        action_phase=phase_of(message),
        displaced=displaced(message.action_space, message.units),
        decoding=str(message.decoding),
        names=tuple(message.names),
        units=tuple(message.units),
        stages_ms={stage: 1e3 * float(getattr(message.stages, f"{stage}_s")) for stage in STAGES},
    )


def stamp_ns(time: Any) -> int:
    """Nanoseconds of a stamp, of rosbags' messages or of rclpy's."""
    return int(time.sec) * SECOND + int(time.nanosec)


def phase_of(message: Any) -> float:
    """The action_phase of an ActionCommand; 0 of one that was recorded before there were two
    rates."""
    return float(getattr(message, "action_phase", 0.0))


# The two rates of a run.


def rates_of(bag: Bag, picked: TopicRoles, published_ns: Sequence[int]) -> Rates | None:
    """The rates of a recorded run: by its parameters, then its status, then its chunks and the
    stamps of its commands; a run of before there were two rates has one. None: nothing shows it.
    BagError: the bag holds runs of several action rates."""
    given = bag.run.parameters.get("policy", {}) if bag.run else {}
    action_hz, control_hz = (_hz(given.get(f"{name}_rate_hz")) for name in ("action", "control"))
    statuses = _status_rates(bag, picked)
    found = sorted({rates.action_hz for rates in statuses})
    if len(found) > 1:
        some = ", ".join(f"{hz:g}" for hz in found)
        raise BagError(f"{bag.path}: its policy ran at several action rates ({some} Hz): cut it")
    control_hz = control_hz or (statuses[-1].control_hz if statuses else 0.0)
    action_hz = action_hz or (found[0] if found else _chunk_hz(bag, picked)) or control_hz
    if not control_hz:
        usual_hz = _usual_hz(published_ns)
        control_hz = usual_hz if usual_hz > _FASTER * action_hz else action_hz
    return Rates(action_hz or control_hz, control_hz) if control_hz else None


_FASTER = 1.5  # commands that come so much faster than actions are several of each


def _hz(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _status_rates(bag: Bag, picked: TopicRoles) -> list[Rates]:
    """The rates of every status of a policy that is configured, in order."""
    name = picked.name("policy/status")
    found = (bag.decode(message) for message in bag.messages([name] if name else []))
    rates = [(_hz(getattr(s, "action_rate_hz", 0.0)), _hz(s.control_rate_hz)) for s in found]
    return [Rates(*pair) for pair in rates if all(pair)]


def _usual_hz(published_ns: Sequence[int]) -> float:
    steps = np.diff(published_ns)
    steps = steps[steps > 0]
    return float(SECOND / np.median(steps)) if len(steps) else 0.0


def _chunk_hz(bag: Bag, picked: TopicRoles) -> float:
    name = picked.name("policy/action_chunk")
    first = next(iter(bag.messages([name] if name else [])), None)
    period_s = float(bag.decode(first).period_s) if first is not None else 0.0
    return 1.0 / period_s if period_s > 0.0 else 0.0


# The chunks of a bag: their observations, what each continued, and their actions.


@dataclass(frozen=True, slots=True)
class Chunk:
    """One ActionChunk. ``continued``: stamp, index and delay_steps of the chunk that it was made
    to continue, or None. ``digest`` of the instruction. ``period_ns`` from one action to the next;
    ``conditioning_delay``: in such periods."""

    observed_ns: int
    published_ns: int
    at_ns: int
    epoch: int
    digest: int
    period_ns: int
    decoding: str
    rows: tuple[tuple[float, ...], ...]
    names: tuple[str, ...]
    units: tuple[str, ...]
    continued: tuple[int, int, int] | None = None
    tokens: tuple[int, ...] = ()
    conditioning_delay: int = 0

    def due(self, moment_ns: int) -> int:
        """The index of the action that is due at that moment, or of the one nearest to it."""
        first_ns = self.observed_ns + self.conditioning_delay * self.period_ns
        index = round((moment_ns - first_ns) / self.period_ns) if self.period_ns else 0
        return min(max(index, 0), len(self.rows) - 1)


def chunk_of(message: Any, at_ns: int) -> Chunk:
    """The chunk of an ActionChunk, of rosbags or of rclpy. ValueError: it is cut."""
    numbers, width = [float(x) for x in message.actions], int(message.width)
    if not width or len(numbers) != width * int(message.length):
        raise ValueError(f"{len(numbers)} numbers, not {message.length} rows of {width}")
    rows = [tuple(numbers[i : i + width]) for i in range(0, len(numbers), width)]
    before = stamp_ns(message.previous_stamp)
    continued = (before, int(message.previous_index), int(message.delay_steps)) if before else None
    return Chunk(
        observed_ns=stamp_ns(message.observation_stamp),
        published_ns=stamp_ns(message.header.stamp),
        at_ns=at_ns,
        epoch=int(message.epoch),
        digest=int(message.instruction_hash),
        period_ns=round(float(message.period_s) * SECOND),
        decoding=str(message.decoding),
        rows=tuple(rows),
        names=tuple(message.names),
        units=tuple(message.units),
        continued=continued,
        tokens=tuple(int(token) for token in message.tokens),
        conditioning_delay=int(message.conditioning_delay),
    )


def read_chunks(bag: Bag, picked: TopicRoles) -> tuple[Chunk, ...]:
    """All chunks, in the order of their answers. BagError: there are none, or damaged ones."""
    name = picked.name("policy/action_chunk")
    found = []
    for message in bag.messages([name] if name else []):
        try:
            found.append(chunk_of(bag.decode(message), message.stamp_ns))
        except ValueError as error:
            raise BagError(f"{bag.path}: a recorded chunk: {error}") from None
    if not found:
        raise BagError(f"{bag.path} has no chunks (policy/action_chunk): nothing to ask again")
    return tuple(found)


def run_of_chunks(chunks: Iterable[Chunk], like: PolicyRun | None, frames: int) -> PolicyRun:
    """The run in which every action of every chunk is published, so that runs can be compared.

    ``like`` is a run of the same policy. Of two answers to a frame the second counts.
    """
    commands: list[RunCommand] = []
    tokens: dict[int, tuple[int, ...]] = {}
    for chunk in chunks:
        tokens |= {chunk.observed_ns: chunk.tokens} if chunk.tokens else {}
        commands += [
            RunCommand(
                kind=CommandKind.POLICY,
                observed_ns=chunk.observed_ns,
                latest_ns=chunk.observed_ns,
                published_ns=chunk.observed_ns + index * chunk.period_ns,
                at_ns=chunk.at_ns,
                action=row,
                epoch=chunk.epoch,
                chunk_index=index,
                decoding=chunk.decoding,
                names=chunk.names,
                units=chunk.units,
            )
            for index, row in enumerate(chunk.rows)
        ]
    return replace(like or PolicyRun(()), commands=tuple(commands), tokens=tokens, frames=frames)


def instructions_of(
    chunks: Iterable[Chunk], recorded: Recorded, given: str | None
) -> Mapping[int, str]:
    """The instruction of every epoch. BagError: the bag has one only by its hash."""
    texts = [task.text for task in recorded.tasks]
    by_digest = {Instruction(text, 0).digest: text for text in texts}
    found: dict[int, str] = {}
    for chunk in chunks:
        text = by_digest.get(chunk.digest) if given is None else given
        if text is None:
            raise BagError(
                "the bag does not have the instruction of its chunks: give --instruction"
            )
        found[chunk.epoch] = text
    return found


# When a replay resets the policy and gives it its instruction: at the frames of the recording.


@dataclass(frozen=True, slots=True)
class EpisodeBegin:
    """Before frame ``stamp_ns`` (of the image): reset the policy or not, and give the task."""

    stamp_ns: int
    instruction: str
    reset: bool


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """``begins`` in order, the first one at the first frame that is shown; ``skipped`` frames
    before it have no task yet."""

    begins: tuple[EpisodeBegin, ...]
    skipped: int = 0

    @property
    def by_stamp(self) -> dict[int, EpisodeBegin]:
        return {begin.stamp_ns: begin for begin in self.begins}


def make_plan(frames: BagFrames, recorded: Recorded, instruction: str | None) -> ReplayPlan:
    """``instruction``: given by the user, instead of those of the bag.

    The policy's epoch in the recorded commands tells a reset: it counts one for a reset and
    one for a new instruction. BagError: there is no instruction for any frame.
    """
    begins: list[EpisodeBegin] = []
    skipped = 0
    text: str | None = None
    epoch: int | None = None
    tasks = list(recorded.tasks)
    for time in frames.times:
        wanted = instruction
        if instruction is None:
            given = [task.text for task in tasks if task.at_ns <= time.at_ns]
            wanted = given[-1] if given else None
        if wanted is None:
            skipped += 1
            continue
        now = recorded.epochs.get(time.stamp_ns, epoch)
        steps = now - epoch if now is not None and epoch is not None else 0
        changed = wanted != text
        if not begins or changed or steps > 0:
            reset = not begins or steps > int(changed)
            begins.append(EpisodeBegin(time.stamp_ns, wanted, reset))
        text, epoch = wanted, now
    if not begins:
        raise BagError("the bag has no instruction for its frames: give one with --instruction")
    return ReplayPlan(tuple(begins), skipped)
