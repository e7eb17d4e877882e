"""Playing the frames of a bag to a policy node: in lock-step, as recorded, or flat out.

* lock-step: a frame, its answer, the next frame; simulated time is that of the frames. The
  policy says the same every time, however fast it is.
* recorded: the frames come as the camera gave them, ``rate`` times as fast, with stamps of now;
  the policy runs in real time and answers the newest frame it has.
* fast: as recorded, but the next frame comes as soon as the policy has answered one.
* chunks: in lock-step, the frames that were asked for, each with what was executed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vla_ros.core import PolicyState
from vla_ros.nodes.replay.driver import PolicyLink, ReplayFailed
from vla_ros.replay.chunks import Chunk, run_of_chunks
from vla_ros.replay.frames import Frame
from vla_ros.replay.parts import Part, restamped
from vla_ros.replay.plan import Begin
from vla_ros.replay.run import Run, Said
from vla_ros.timing import MS, SECOND, Window

_FLAT_OUT_WAIT_S = 0.25  # fast: for a policy whose pipeline is still filling
_LAST_ANSWERS_S = 1.0


@dataclass(frozen=True, slots=True)
class Played:
    """``shown``: stamps of the frames in the order they were shown; ``ends``: of those that
    were the last of an episode; ``refused``: of those the policy would not take, and why."""

    run: Run
    shown: tuple[int, ...]
    ends: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)
    state: str = ""


Progress = Callable[[int], None]
Lacks = Callable[[Frame], str]


def play_lockstep(
    link: PolicyLink,
    frames: Iterable[Frame],
    begins: Mapping[int, Begin],
    lacks: Lacks,
    patience_s: float,
    progress: Progress,
) -> Played:
    """See the module's text. ReplayFailed: the policy answers no more."""
    shown: list[int] = []
    ends: list[int] = []
    refused: dict[int, str] = {}
    took = Window(1e9)
    for frame in frames:
        begin = begins.get(frame.image_ns)
        if begin is not None:
            ends += shown[-1:]
            link.begin(begin.instruction, begin.reset, frame.image_ns)
        if begin is None and not shown:
            continue  # no task yet
        if why := lacks(frame):
            refused[frame.stamp_ns] = why
            continue
        started = time.monotonic_ns()
        why = link.answer(frame.stamp_ns, frame.image_ns, frame.parts, patience_s)
        took.add(0, (time.monotonic_ns() - started) / MS)
        if why:
            refused[frame.stamp_ns] = why
        shown.append(frame.stamp_ns)
        progress(len(shown))
    link.next_chunk(link.chunks, 0.2)  # the last one may still be under way
    run = _run(link, link.said, link.tokens, len(shown))
    run = replace(run, answer_ms=took.distribution(0))
    return Played(run, tuple(shown), tuple(ends), refused, _state(link))


def play_chunks(
    link: PolicyLink,
    frames: Iterable[Frame],
    chunks: Sequence[Chunk],
    instructions: Mapping[int, str],
    lacks: Lacks,
    patience_s: float,
    progress: Progress,
) -> Played:
    """Ask for every recorded chunk again; a new epoch begins with a reset. The node knows what
    each continues. ReplayFailed: the policy answers no more."""
    shown: list[int] = []
    refused: dict[int, str] = {}
    asked: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        asked.setdefault(chunk.observed_ns, []).append(chunk)
    epoch: int | None = None
    for frame in frames:
        for chunk in asked.get(frame.stamp_ns, ()):
            if why := lacks(frame):
                refused[frame.stamp_ns] = why
                continue
            if chunk.epoch != epoch:
                link.begin(instructions[chunk.epoch], True, frame.image_ns)
                epoch = chunk.epoch
            before = link.chunks
            if why := link.answer(frame.stamp_ns, frame.image_ns, frame.parts, patience_s):
                refused[frame.stamp_ns] = why
            link.next_chunk(before, 1.0)  # said on another topic than the command
            shown.append(frame.stamp_ns)
            progress(len(shown))
    status = _run(link, [], {}, len(shown))
    run = run_of_chunks(link.heard, status, len(shown))
    return Played(run, tuple(shown), (), refused, _state(link))


def play_realtime(
    link: PolicyLink,
    frames: Iterable[Frame],
    begins: Mapping[int, Begin],
    lacks: Lacks,
    rate: float | None,
    progress: Progress,
) -> Played:
    """``rate``: how many times as fast as recorded; None: flat out."""
    shown: list[int] = []
    ends: list[int] = []
    refused: dict[int, str] = {}
    stamps: dict[int, int] = {}  # of now → as recorded
    start: tuple[int, int] | None = None  # recorded stamp, monotonic time
    for frame in frames:
        begin = begins.get(frame.image_ns)
        if begin is not None:
            ends += shown[-1:]
            asked = time.monotonic_ns()
            link.begin(begin.instruction, begin.reset, 0)
            if start is not None:
                start = (start[0], start[1] + time.monotonic_ns() - asked)
        if begin is None and not shown:
            continue
        if why := lacks(frame):
            refused[frame.stamp_ns] = why
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
        shown.append(frame.stamp_ns)
        progress(len(shown))
    state = _state(link)  # it will hold when nothing more comes
    link.next_chunk(link.chunks, _LAST_ANSWERS_S)
    time.sleep(0.1)  # the control tick publishes what came last
    said = [_as_recorded(one, stamps) for one in list(link.said)]
    tokens = {stamps[stamp]: row for stamp, row in link.tokens.items() if stamp in stamps}
    run = _run(link, said, tokens, len(shown))
    return Played(run, tuple(shown), tuple(ends), refused, state)


def _moved(part: Part, shift_ns: int) -> Part:
    stamp = part.stamp_ns + shift_ns
    return Part(part.role, stamp, restamped(part.data, stamp))


def _as_recorded(said: Said, stamps: Mapping[int, int]) -> Said:
    """With the recorded stamps, so that it can be compared; its age stays."""
    observed = stamps.get(said.observed_ns, 0)
    return replace(
        said,
        observed_ns=observed,
        latest_ns=stamps.get(said.latest_ns, 0),
        published_ns=observed + said.published_ns - said.observed_ns,
    )


def _run(
    link: PolicyLink, said: list[Said], tokens: Mapping[int, tuple[int, ...]], frames: int
) -> Run:
    status = link.status
    if status is None:
        raise ReplayFailed("nothing was heard of the policy node")
    return Run(
        tuple(said),
        dict(tokens),
        frames,
        policy=status.policy,
        schedule=status.schedule,
        checkpoint=status.checkpoint,
        checkpoint_sha256=status.checkpoint_sha256,
        device=status.device,
        dtype=status.dtype,
        pipeline_depth=status.pipeline_depth,
    )


def _state(link: PolicyLink) -> str:
    """How the policy ended, where that is worth a word."""
    status = link.status
    if status is None or status.state in (PolicyState.RUNNING, PolicyState.INACTIVE):
        return ""
    return f"{PolicyState(status.state).name}: {status.reason}"
