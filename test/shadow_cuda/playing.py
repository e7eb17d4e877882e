"""One engine on the CPU and on the shadow GPU, over the same frames: what differs, what waits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from shadow_cuda import Journal, ShadowGpu, shadow
from support.engine import CLOCK
from vla_ros.core.types import Executing, Inference, Observation, Timeline
from vla_ros.engine import Engine
from vla_ros.policies import Policy, PolicySpec, load_policy

#: a device -> an engine there
Make = Callable[[str], Engine]

FRAMES, SETTLED = 14, 11  # frames, and from which on nothing may be new
TEXTS = {0: "push", 3: "put the blue block on the plate and then stop"}
TABLE: list[str] = []  # rows of the table that the tests' module prints


def frames() -> list[np.ndarray]:
    """Images of a scene that changes twice, and back: drafts hit and miss."""
    draw = np.random.default_rng(3)
    scenes = [draw.integers(0, 256, (40, 56, 3)).astype(np.uint8) for _ in range(4)]
    return [scenes[n] for n in (0, 0, 1, 2, 2, 2, 3, 3, 2, 2, 0, 0, 1, 1)]


def seen(engine: Engine, number: int, rng: np.random.Generator) -> Observation:
    """A frame, with all cameras and the state that the engine takes; with the chunk before it being
    executed."""
    image, info = frames()[number], engine.info
    state = rng.normal(0, 0.6, info.state_dim) if info.state_dim else None
    more = {role: image[::-1].copy() for role in info.camera_roles}
    wrist = image[:, ::-1].copy() if engine.cameras > 1 else None
    executing = Executing(number, 2, 2) if number not in TEXTS and number else None
    return Observation(
        number + 1, number + 1, CLOCK.steady_ns(), image, wrist, state, more_images=more,
        executing=executing if engine.options.rtc_mode else None,
    )  # fmt: skip


def answer(engine: Engine, number: int, rng: np.random.Generator) -> Inference | None:
    """Of one frame, with its instruction where one begins."""
    if number in TEXTS:
        engine.reset(TEXTS[number])
    start = CLOCK.steady_ns()
    timeline = Timeline(start).mark("queue", start)
    return engine.step(seen(engine, number, rng), timeline, CLOCK)


@dataclass
class Played:
    """Answers by frame; of the settled frames what waited, and the frames' number."""

    answers: list[Inference | None]
    journal: Journal | None = None
    captures: int = 0
    in_service: int = 0
    grown: int = 0  # bytes of device memory, from the first settled frame to the last
    errors: tuple[str, ...] = ()


def play(engine: Engine, gpu: ShadowGpu | None = None) -> Played:
    """All frames."""
    rng = np.random.default_rng(5)
    found = [answer(engine, number, rng) for number in range(SETTLED)]
    if gpu is None:
        return Played(found + [answer(engine, n, rng) for n in range(SETTLED, FRAMES)])
    gc.collect()
    before = gpu.reserved()
    with gpu.journal.watched() as journal:
        found += [answer(engine, number, rng) for number in range(SETTLED, FRAMES)]
    grown = gpu.reserved() - before
    return Played(
        found, journal, engine.captures, engine.captures_in_service, grown,
        tuple(gpu.journal.errors),
    )  # fmt: skip


def on_both(make: Make) -> tuple[Played, Played]:
    """Played on the CPU, and on the shadow GPU."""
    here = play(make("cpu"))
    with shadow() as gpu:
        return here, play(make("cuda:0"), gpu)


def off(here: Played, there: Played) -> float:
    """The largest difference of actions, of the largest action; the same frames are answered."""
    assert [a is None for a in here.answers] == [a is None for a in there.answers]
    pairs = [
        (np.asarray(a.actions), np.asarray(b.actions))
        for a, b in zip(here.answers, there.answers, strict=True)
        if a is not None and b is not None
    ]
    assert len(pairs) > 1
    scale = max(np.abs(one).max() for one, _ in pairs)
    return float(max(np.abs(one - other).max() for one, other in pairs) / scale)


def tokens(played: Played) -> list[tuple[int, ...] | None]:
    return [None if one is None else one.tokens for one in played.answers]


def held(name: str, here: Played, there: Played, within: float, graphs: bool = True) -> None:
    """The same actions; nothing captured in service; and of waits only events, one for each time
    that numbers are read, and one for the end of an answer. No memory is asked for anew."""
    journal = there.journal
    assert journal is not None
    count, differs = FRAMES - SETTLED, off(here, there)
    waits = ", ".join(f"{n / count:.3g} {kind}" for kind, n in sorted(journal.waits.items()))
    loads = ", ".join(
        f"{journal.counts[k] / count:.3g} {k}" for k in ("upload", "download") if journal.counts[k]
    )
    replays = journal.counts["replay"] / count
    TABLE.append(
        f"| {name} | {differs:.1e} | {there.captures} | {there.in_service} | {replays:.3g} |"
        f" {waits}; {loads} |"
    )
    assert not there.errors
    assert differs <= within, f"{differs:.2e}"
    if within == 0.0:
        assert tokens(here) == tokens(there)
    assert there.in_service == 0
    assert bool(there.captures) == bool(journal.counts["replay"]) == graphs
    # Page-locked memory for a draft of a length that none had before may be new.
    assert set(journal.waits) <= {"event wait", "host malloc"}, str(journal)
    assert journal.counts["host malloc"] <= 2, str(journal)
    answered = [one for one in there.answers[SETTLED:] if one is not None]
    passes = sum(one.target_passes + one.draft_passes for one in answered)
    assert journal.counts["download"] <= passes + len(answered)
    assert journal.counts["event wait"] == journal.counts["download"] + len(answered)
    assert there.grown == 0


def load_on_shadow(spec: PolicySpec) -> Policy:
    """A loader of a worker process, in which the shadow stays."""
    _STAYS.enter_context(shadow())
    return load_policy(spec)


_STAYS = ExitStack()
