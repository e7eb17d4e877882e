"""What a bag says the policy said: the recorded side of a comparison, and the episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vla_ros.core import ACTION_DIM, STAGES, CommandKind
from vla_ros.recording.run_info import RunInfo
from vla_ros.replay.bag import Bag
from vla_ros.replay.errors import BagError
from vla_ros.replay.run import Run, Said
from vla_ros.replay.topics import Picked
from vla_ros.timing import SECOND


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

    run: Run | None
    tasks: tuple[Task, ...]
    epochs: dict[int, int]


def read_recorded(bag: Bag, picked: Picked) -> Recorded:
    """Everything but the frames. BagError: a message that is not what its type says."""
    said: list[Said] = []
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
            said.append(_said(content, message.stamp_ns, bag))
            depth = int(content.pipeline_depth)
        elif len(content.tokens):
            stamp = stamp_ns(content.observation_stamp)
            tokens[stamp] = tuple(int(token) for token in content.tokens)
    epochs = {s.latest_ns: s.epoch for s in reversed(said) if s.latest_ns}
    return Recorded(_run(bag, said, tokens, depth), tuple(tasks), epochs)


def _run(bag: Bag, said: list[Said], tokens: dict[int, tuple[int, ...]], depth: int) -> Run | None:
    if not said:
        return None
    info = bag.run or RunInfo()
    own = [s.schedule for s in said if s.kind is CommandKind.POLICY]
    return Run(
        tuple(said),
        tokens,
        frames=len({s.latest_ns for s in said if s.latest_ns}),
        policy=info.policy,
        schedule=info.schedule or (own[0] if own else ""),
        checkpoint=info.checkpoint,
        checkpoint_sha256=info.checkpoint_sha256,
        device=info.device,
        dtype=info.dtype,
        pipeline_depth=depth,
    )


def _said(message: Any, at_ns: int, bag: Bag) -> Said:
    width = len(getattr(message, "names", ())) or ACTION_DIM
    if len(message.action) != width:
        count = len(message.action)
        raise BagError(f"{bag.path}: a recorded action has {count} numbers, not {width}")
    try:
        return said_of(message, at_ns)
    except ValueError:
        raise BagError(f"{bag.path}: a recorded command has the kind {message.kind}") from None


def said_of(message: Any, at_ns: int) -> Said:
    """An ActionCommand of rosbags, also of the first release, whose actions have no names, or of
    rclpy. ValueError: a kind that nobody knows."""
    return Said(
        kind=CommandKind(int(message.kind)),
        observed_ns=stamp_ns(message.observation_stamp),
        latest_ns=stamp_ns(message.latest_observation_stamp),
        published_ns=stamp_ns(message.header.stamp),
        at_ns=at_ns,
        action=tuple(float(number) for number in message.action),
        epoch=int(message.epoch),
        chunk_index=int(message.chunk_index),
        schedule=str(message.schedule),
        names=tuple(getattr(message, "names", ())),
        units=tuple(getattr(message, "units", ())),
        stages_ms={stage: _stage_ms(message.stages, stage) for stage in STAGES},
    )


def stamp_ns(time: Any) -> int:
    """Nanoseconds of a stamp, of rosbags' messages or of rclpy's."""
    return int(time.sec) * SECOND + int(time.nanosec)


def _stage_ms(stages: Any, stage: str) -> float:
    """Older bags have it in milliseconds only."""
    seconds = getattr(stages, f"{stage}_s", None)
    return float(getattr(stages, stage) if seconds is None else seconds * 1e3)
