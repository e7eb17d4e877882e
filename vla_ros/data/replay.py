"""The chunks of a bag: what was asked when, what each continued, and what was said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vla_ros.core import CommandKind, Instruction
from vla_ros.replay.bag import Bag
from vla_ros.replay.errors import BagError
from vla_ros.replay.recorded import Recorded, stamp_ns
from vla_ros.replay.run import Run, Said
from vla_ros.replay.topics import Picked
from vla_ros.timing import SECOND


@dataclass(frozen=True, slots=True)
class Chunk:
    """One ActionChunk. ``continued``: stamp, index and delay_steps of the chunk that it was made
    to continue, or None. ``digest`` of the instruction. ``told_delay``: in periods."""

    observed_ns: int
    at_ns: int
    epoch: int
    digest: int
    period_ns: int
    schedule: str
    rows: tuple[tuple[float, ...], ...]
    names: tuple[str, ...]
    units: tuple[str, ...]
    continued: tuple[int, int, int] | None = None
    tokens: tuple[int, ...] = ()
    told_delay: int = 0


def chunk_of(message: Any, at_ns: int) -> Chunk:
    """An ActionChunk of rosbags or of rclpy. ValueError: it is cut, or of the first release,
    which did not say what a chunk continues."""
    if not hasattr(message, "previous_stamp"):
        raise ValueError("recorded by a release that did not say what its chunks continue")
    numbers, width = [float(x) for x in message.actions], int(message.width)
    if not width or len(numbers) != width * int(message.length):
        raise ValueError(f"{len(numbers)} numbers, not {message.length} rows of {width}")
    rows = [tuple(numbers[i : i + width]) for i in range(0, len(numbers), width)]
    before = stamp_ns(message.previous_stamp)
    continued = (before, int(message.previous_index), int(message.delay_steps)) if before else None
    return Chunk(
        observed_ns=stamp_ns(message.observation_stamp),
        at_ns=at_ns,
        epoch=int(message.epoch),
        digest=int(message.instruction_hash),
        period_ns=round(float(message.period_s) * SECOND),
        schedule=str(message.schedule),
        rows=tuple(rows),
        names=tuple(message.names),
        units=tuple(message.units),
        continued=continued,
        tokens=tuple(int(token) for token in message.tokens),
        told_delay=int(getattr(message, "told_delay", 0)),  # of an older recording
    )


def read_chunks(bag: Bag, picked: Picked) -> tuple[Chunk, ...]:
    """All of them, in the order of their answers. BagError: there are none, or damaged ones."""
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


def run_of_chunks(chunks: Iterable[Chunk], like: Run | None, frames: int) -> Run:
    """Every action of every chunk as if it had been published, so that runs can be compared.

    ``like`` says whose they are. Of a frame that was asked twice the second answer counts.
    """
    said: list[Said] = []
    tokens: dict[int, tuple[int, ...]] = {}
    for chunk in chunks:
        tokens |= {chunk.observed_ns: chunk.tokens} if chunk.tokens else {}
        said += [
            Said(
                kind=CommandKind.POLICY,
                observed_ns=chunk.observed_ns,
                latest_ns=chunk.observed_ns,
                published_ns=chunk.observed_ns + place * chunk.period_ns,
                at_ns=chunk.at_ns,
                action=row,
                epoch=chunk.epoch,
                chunk_index=place,
                schedule=chunk.schedule,
                names=chunk.names,
                units=chunk.units,
            )
            for place, row in enumerate(chunk.rows)
        ]
    return replace(like or Run(()), said=tuple(said), tokens=tokens, frames=frames)


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
