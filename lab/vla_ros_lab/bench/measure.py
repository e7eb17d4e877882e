"""The measurement: all rows take every frame in turn, so that drift of the machine hits all."""

from __future__ import annotations

import gc
import statistics
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from vla_ros.core.clock import SystemClock
from vla_ros.core.console import Report
from vla_ros.core.errors import UserError
from vla_ros.core.types import Image, Observation, Timeline
from vla_ros.engine.decoding.acceptance import Acceptance, Exact, Scores, Verification
from vla_ros.engine.decoding.base import Decoding
from vla_ros.engine.decoding.draft_tree import Budget
from vla_ros.engine.decoding.drafters import (
    Draft,
    Drafter,
    TemporalDrafter,
    TemporalTreeDrafter,
    costs_on,
)
from vla_ros.engine.decoding.speculative import Speculative
from vla_ros.engine.engine import Engine
from vla_ros.engine.io.tokens import MAX_TEXT
from vla_ros.engine.layers.devices import synchronize
from vla_ros.engine.layers.pack import PackLayout
from vla_ros.engine.layers.request import Decoded, Request
from vla_ros.engine.layers.runner import DecoderRunner
from vla_ros.engine.models.openvla import VLAModel
from vla_ros_lab.heterospec import Episode, hindsight, least_acceptance, shown

# How close a call it was where a decoding and ``generate`` chose different tokens.


Reference = Mapping[int, tuple[int, ...]]  # generate's tokens, by stamp


class Matches:
    """Compares answers with a reference; explains differences by the model's own logits."""

    def __init__(self, engine: Engine, images: Sequence[Image], reference: Reference) -> None:
        self._engine, self._images, self._reference = engine, images, reference
        self._prompts: dict[int, torch.Tensor] = {}
        longest = engine.model.config.patches + MAX_TEXT + engine.info.max_tokens
        self._runner = engine.model.runner(1, longest)

    def rates(self, answers: Sequence[Decoded]) -> tuple[float | None, float | None, float | None]:
        """Rate of equal tokens, of equal actions, and the largest logit margin at a first miss."""
        known = self._reference
        pairs = [(d, known[d.stamp_ns]) for d in answers if d.tokens and d.stamp_ns in known]
        if not pairs:
            return None, None, None
        same = sum(sum(a == b for a, b in zip(d.tokens, r, strict=True)) for d, r in pairs)
        total = sum(len(r) for _, r in pairs)
        whole = sum(d.tokens == r for d, r in pairs) / len(pairs)
        margins = [self._margin(d, r) for d, r in pairs if d.tokens != r]
        return same / total, whole, max(margins, default=None)

    def _margin(self, decoded: Decoded, reference: tuple[int, ...]) -> float:
        """How far apart the two choices were, in logits, where they first differ."""
        where = next(i for i, r in enumerate(reference) if r != decoded.tokens[i])
        prompt, model = self._prompt(decoded.stamp_ns), self._engine.model
        behind = torch.tensor(reference[:where], device=model.device) if where else None
        total = len(prompt) + where
        logits = self._runner.logits(PackLayout((total - 1,), total), prompt, behind)[0].float()
        return float((logits[reference[where]] - logits[decoded.tokens[where]]).abs())

    def _prompt(self, stamp: int) -> torch.Tensor:
        if stamp not in self._prompts:
            seen = self._images[stamp]
            observation = Observation(stamp, stamp, 0, seen, wrist_image=seen)
            request = self._engine.encode(observation, Timeline(0), SystemClock())
            self._prompts[stamp] = request.prompt
        return self._prompts[stamp]


# Where the time of speculation goes: drafting, verifying, and the rest; and what was verified.


@dataclass(slots=True)
class ActionParts:
    """Of one action: seconds, and draft tokens of the passes that had any.

    On a GPU the time of a pass shows where its result is read: within ``verify_s`` where there
    was a draft, else in neither.
    """

    draft_s: float = 0.0
    verify_s: float = 0.0
    verified: int = 0
    accepted: int = 0
    judged: int = 0


class SplitClock:
    """Takes the time of a speculative decoding's drafter and acceptance from now on."""

    def __init__(self, decoding: Speculative, cpu_clock: bool) -> None:
        self._now: Callable[[], float] = time.process_time if cpu_clock else time.perf_counter
        self.parts = ActionParts()
        decoding.drafter = _TimedDrafter(decoding.drafter, self)
        decoding.acceptance = _TimedAcceptance(decoding.acceptance, self)

    def take(self) -> ActionParts:
        """What there was since the last time."""
        parts, self.parts = self.parts, ActionParts()
        return parts

    @contextmanager
    def drafting(self) -> Iterator[None]:
        began = self._now()
        yield
        self.parts.draft_s += self._now() - began

    @contextmanager
    def verifying(self) -> Iterator[None]:
        began = self._now()
        yield
        self.parts.verify_s += self._now() - began


def split_clock(decoding: Decoding, cpu_clock: bool) -> SplitClock | None:
    """A clock where there is something to split."""
    return SplitClock(decoding, cpu_clock) if isinstance(decoding, Speculative) else None


@dataclass(frozen=True, slots=True)
class ActionMeans:
    """Means: ms an action, draft tokens verified an action, and accepted in a pass with any."""

    draft_ms: float
    verify_ms: float
    other_ms: float
    verified: float
    accepted: float


def split_of(parts: Sequence[ActionParts], spent: Sequence[float]) -> ActionMeans | None:
    """Of the actions of a row, which took ``spent`` seconds in all."""
    if not parts:
        return None
    draft, verify = (1e3 * fmean(getattr(p, s) for p in parts) for s in ("draft_s", "verify_s"))
    judged = sum(p.judged for p in parts)
    return ActionMeans(
        draft_ms=draft,
        verify_ms=verify,
        other_ms=1e3 * fmean(spent) - draft - verify,
        verified=fmean(p.verified for p in parts),
        accepted=sum(p.accepted for p in parts) / judged if judged else 0.0,
    )


class _TimedDrafter(Drafter):
    def __init__(self, inner: Drafter, clock: SplitClock) -> None:
        self._inner, self._clock = inner, clock

    @property
    def passes(self) -> int:  # type: ignore[override]
        return self._inner.passes

    def instruct(self, text: str) -> None:
        self._inner.instruct(text)

    def prepare(self, request: Request, every: bool = False) -> None:
        self._inner.prepare(request, every)

    def begin(self, request: Request) -> None:
        with self._clock.drafting():
            self._inner.begin(request)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        with self._clock.drafting():
            return self._inner.propose(prefix, limit)

    def verified(self, draft: Sequence[int], accepted: int) -> None:
        with self._clock.drafting():
            self._inner.verified(draft, accepted)

    def observe_taps(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        with self._clock.drafting():
            self._inner.observe_taps(taps, rows)

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        with self._clock.drafting():
            self._inner.observe(tokens, own)

    def forget(self, damaged: bool = False) -> None:
        self._inner.forget(damaged)


class _TimedAcceptance(Acceptance):
    def __init__(self, inner: Acceptance, clock: SplitClock) -> None:
        self._inner, self._clock = inner, clock
        self.lossless, self.window, self.reads = inner.lossless, inner.window, inner.reads

    def verify(
        self,
        runner: DecoderRunner,
        layout: PackLayout,
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> Scores:
        with self._clock.verifying():
            return self._inner.verify(runner, layout, prompt, tokens)

    def accept(self, seen: Scores, draft: Draft, start: int) -> Verification:
        with self._clock.verifying():
            verdict = self._inner.accept(seen, draft, start)
        parts = self._clock.parts
        parts.verified += len(draft.tokens)
        parts.accepted += verdict.accepted
        parts.judged += 1
        return verdict

    def plain(self, seen: Scores) -> tuple[torch.Tensor, torch.Tensor]:
        return self._inner.plain(seen)

    def newest(self, seen: Scores, verdict: Verification) -> torch.Tensor | None:
        return self._inner.newest(seen, verdict)


CLOCK = SystemClock()


def silent(text: str, done: int, total: int) -> None:
    """The report of who wants none."""


@dataclass(slots=True)
class Samples:
    """What one row did: seconds per call in the chosen clock and on the wall, and answers."""

    spent: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    answers: list[Decoded] = field(default_factory=list)
    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by stamp, warm-up too
    peak_bytes: int = 0
    parts: list[ActionParts] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row of the table; times in ms per call, one call a frame. ``said``: of every frame from
    the first, eight hexadecimal digits of the tokens it was answered with, "-" where it was not;
    so that rows of different processes can be compared."""

    median_ms: float
    p95_ms: float
    wall_median_ms: float
    rate_hz: float
    latency_ms: float
    passes_per_action: float
    draft_passes_per_action: float
    acceptance: float | None
    speedup_vs_generate: float | None
    speedup_vs_autoregressive: float | None
    token_match: float | None
    action_match: float | None
    mismatch_margin: float | None
    lossless: bool
    actions_per_call: int
    peak_memory_mb: float | None
    split: ActionMeans | None
    said: str = ""


def observe(stamp: int, image: Image) -> Observation:
    """A frame as the benchmark feeds it: one camera, shown to the wrist too."""
    return Observation(stamp, stamp, CLOCK.steady_ns(), image, wrist_image=image)


def answer(engine: Engine, decoding: Decoding, stamp: int, image: Image) -> Decoded | None:
    """One observation through preprocessing, vision and a decoding."""
    timeline = Timeline(CLOCK.steady_ns())
    return decoding.step(engine.encode(observe(stamp, image), timeline, CLOCK))


def run_rows(
    engine: Engine,
    rows: Mapping[str, Decoding],
    images: Sequence[Image],
    warm_up: int,
    cpu_clock: bool,
    report: Report = silent,
) -> dict[str, Samples]:
    """Every frame through every row, frame by frame; the first ``warm_up`` are not counted."""
    cuda = engine.model.device.type == "cuda"
    samples = {name: Samples() for name in rows}
    clocks = {name: split_clock(decoding, cpu_clock) for name, decoding in rows.items()}
    gc.collect()
    gc.disable()
    try:
        for stamp, image in enumerate(images):
            report("warming up" if stamp < warm_up else "measuring", stamp, len(images))
            for name, decoding in rows.items():
                spent, wall, decoded = _timed(engine, decoding, stamp, image, cpu_clock)
                if decoded is not None:
                    samples[name].tokens[decoded.stamp_ns] = decoded.tokens
                clock = clocks[name]
                parts = clock.take() if clock is not None else None
                if stamp < warm_up:
                    continue
                samples[name].spent.append(spent)
                samples[name].wall.append(wall)
                if parts is not None:
                    samples[name].parts.append(parts)
                if decoded is not None:
                    samples[name].answers.append(decoded)
        report("measuring", len(images), len(images))
    finally:
        gc.enable()
    if cuda:
        for name, decoding in rows.items():
            samples[name].peak_bytes = _peak(engine, decoding, images)
    return samples


def _timed(
    engine: Engine, decoding: Decoding, stamp: int, image: Image, cpu_clock: bool
) -> tuple[float, float, Decoded | None]:
    synchronize(engine.model.device)
    cpu, wall = time.process_time(), time.perf_counter()
    decoded = answer(engine, decoding, stamp, image)
    synchronize(engine.model.device)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    return (cpu if cpu_clock else wall), wall, decoded


def _peak(engine: Engine, decoding: Decoding, images: Sequence[Image]) -> int:
    """What torch had taken from the device at the most, for the whole process: replayed graphs
    allocate nothing, so what is allocated would leave out what they work in."""
    device = engine.model.device
    torch.cuda.reset_peak_memory_stats(device)
    for stamp, image in enumerate(images[: decoding.depth + 1]):
        answer(engine, decoding, stamp, image)
    return torch.cuda.max_memory_reserved(device)


def summarize(
    name: str,
    decoding: Decoding,
    samples: Mapping[str, Samples],
    matches: Matches,
) -> RowResult:
    """Samples -> a row."""
    mine = samples[name]
    median = statistics.median(mine.spent)
    passes = [d.target_passes for d in mine.answers]
    tokens, actions, margin = matches.rates(mine.answers)
    return RowResult(
        median_ms=median * 1e3,
        p95_ms=float(np.percentile(mine.spent, 95)) * 1e3,
        wall_median_ms=statistics.median(mine.wall) * 1e3,
        rate_hz=1.0 / median,
        latency_ms=_latency(mine.spent, decoding.depth) * 1e3,
        passes_per_action=_passes(passes, decoding),
        draft_passes_per_action=_mean([d.draft_passes for d in mine.answers]) or 0.0,
        acceptance=_acceptance(mine.answers),
        speedup_vs_generate=_ratio(samples, "generate", median),
        speedup_vs_autoregressive=_ratio(samples, "autoregressive", median),
        token_match=tokens,
        action_match=actions,
        mismatch_margin=margin,
        lossless=decoding.lossless,
        actions_per_call=_chunk(mine.answers),
        peak_memory_mb=mine.peak_bytes / 2**20 if mine.peak_bytes else None,
        split=split_of(mine.parts, mine.spent),
        said=_said(mine.tokens),
    )


def _said(tokens: Mapping[int, tuple[int, ...]]) -> str:
    frames = range(max(tokens, default=-1) + 1)
    digests = (zlib.crc32(repr(tokens[n]).encode()) if tokens.get(n) else None for n in frames)
    return " ".join("-" if digest is None else f"{digest:08x}" for digest in digests)


def _chunk(answers: Sequence[Decoded]) -> int:
    return 1 if not answers or answers[0].actions is None else len(answers[0].actions)


def _latency(spent: Sequence[float], depth: int) -> float:
    """Free-running observation-to-action latency: the frame's own call and those it waits for."""
    windows = [sum(spent[i : i + depth]) for i in range(len(spent) - depth + 1)]
    return statistics.median(windows) if windows else float("nan")


def _passes(passes: Sequence[int], decoding: Decoding) -> float:
    """Passes of the target per action: a pass that serves K frames counts 1/K for each."""
    mean = _mean(passes) or 0.0
    return mean / decoding.depth


def _mean(values: Sequence[int]) -> float | None:
    return statistics.fmean(values) if values else None


def _ratio(samples: Mapping[str, Samples], other: str, median: float) -> float | None:
    return statistics.median(samples[other].spent) / median if other in samples else None


def _acceptance(answers: Sequence[Decoded]) -> float | None:
    drafted = sum(sum(d.drafted) for d in answers)
    return sum(sum(d.accepted) for d in answers) / drafted if drafted else None


# Drafters that know the answer: the best and the worst a draft can be.


Answers = Mapping[int, tuple[int, ...]]  # by stamp


class HitDrafter(Drafter):
    """Always right: one pass an action."""

    def __init__(self, answers: Answers, device: torch.device) -> None:
        self._answers, self._device = answers, device
        self._now: tuple[int, ...] = ()

    def begin(self, request: Request) -> None:
        self._now = self._answers[request.stamp_ns]

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        guess = self._now[len(prefix) : len(prefix) + limit]
        return Draft(torch.tensor(guess, dtype=torch.long, device=self._device))


class MissDrafter(TemporalDrafter):
    """Always wrong, in a drafter that is otherwise the temporal one, statistics and all.

    Adaptive it shows what a bad draft costs in service; not adaptive, the true worst case.
    """

    def __init__(self, model: VLAModel, tokens: int, answers: Answers, *, adaptive: bool) -> None:
        close = Exact().matches
        super().__init__(
            model.actions, tokens, model.device, close, adaptive=adaptive, dtype=model.dtype,
            steps=model.config.chunk,
        )  # fmt: skip
        self._answers = answers
        self._wrong: tuple[int, ...] = ()

    def begin(self, request: Request) -> None:
        actions = self._actions
        truth = self._answers[request.stamp_ns]
        self._wrong = tuple(t + 1 if t + 1 < actions.vocab else t - 1 for t in truth)

    def _guess(self, prefix: Sequence[int], start: int, end: int) -> Sequence[int]:
        return self._wrong[start:end]


# Rivals of draft trees: a chain that ends where it is unsure, and what no drafter can beat.


BOUND = 0.45  # AdaEDL's lower bound on acceptance where a draft ends


class EntropyChainDrafter(Drafter):
    """AdaEDL (Agrawal et al.): the likeliest token of every place, while 1 - sqrt(slope * H), H
    the entropy of the alternatives, is at least ``bound``."""

    def __init__(self, model: VLAModel, tokens: int, bound: float = BOUND) -> None:
        self._device, self._bound = model.device, bound
        costs = costs_on(model.device, model.dtype)  # given, what was learned outlives episodes
        self._source = TemporalTreeDrafter(
            model.actions, tokens, model.device, lambda position: 0, Budget(0, 0), costs,
            model.config.chunk,
        )  # fmt: skip

    def begin(self, request: Request) -> None:
        self._source.begin(request)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        offer, chosen = self._source.candidates(prefix), list[int]()
        if offer is not None:
            for tokens, chances in zip(offer.tokens[:limit], offer.chances, strict=False):
                if least_acceptance(chances) < self._bound:
                    break
                chosen.append(tokens[0])
        return Draft(torch.tensor(chosen, dtype=torch.long, device=self._device))

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        self._source.observe(tokens, own)

    def forget(self, damaged: bool = False) -> None:
        self._source.forget(damaged)


@dataclass(frozen=True, slots=True)
class Hindsight:
    """Per action: passes and verified tokens of drafts that hold only what stands, made of the
    alternatives to the last action; and tokens accepted in a pass with a draft. Not run."""

    passes: float
    verified: float
    accepted: float


def best_in_hindsight(
    answers: Episode, window: range, warm_up: int = 0, steps: int = 1
) -> Hindsight | None:
    """Of answers in the order of their frames, the first ``warm_up`` only learned from, as the rows
    do; None for fewer than two. An answer has ``steps`` actions."""
    there = shown([answers], window, steps=steps)[warm_up:]
    frames = [frame for frame in there if frame.offer is not None]
    if not frames:
        return None
    played = list(hindsight(frames))
    drafted = sum(len(one.tree) > 0 for one in played)
    verified = sum(len(one.tree) for one in played)
    return Hindsight(len(played) / len(frames), verified / len(frames), verified / max(drafted, 1))


# The frames a benchmark plays: recorded ones, or a synthetic scene that drifts.


def load_frames(path: Path) -> list[Image]:
    """uint8 ``images`` [N, h, w, 3] of an .npz file, in order. OSError, UserError."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise UserError(f"{path}: no .npz file, such as numpy.savez writes")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if "images" not in archive:
                raise UserError(f"{path} has no array 'images': there is {', '.join(archive)}")
            images = archive["images"]
    except (ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not len(images):
        found = f"images are {images.dtype} {images.shape}"
        raise UserError(f"{path}: {found}, not uint8 [N, h, w, 3] with N above 0")
    return list(images)


def drifting_frames(count: int, seed: int = 0, side: int = 224) -> list[Image]:
    """A scene of colored squares that move a pixel or two a frame, and rest now and then."""
    rng = np.random.default_rng(seed)
    colors = rng.integers(40, 255, (6, 3))
    places = rng.uniform(0.1, 0.9, (6, 2)) * side
    speed = rng.normal(0, 1.0, (6, 2))
    frames = []
    for number in range(count):
        if number % 20 < 12:  # moving for 12 frames, then at rest for 8
            places = np.clip(places + speed, 20, side - 20)
        frames.append(_draw(places, colors, side))
    return frames


def _draw(places: np.ndarray, colors: np.ndarray, side: int) -> Image:
    image = np.full((side, side, 3), 96, np.uint8)
    for (x, y), color in zip(places.astype(int), colors, strict=True):
        image[max(y - 15, 0) : y + 15, max(x - 15, 0) : x + 15] = color
    return image


def repeat_to(frames: Sequence[Image], count: int) -> list[Image]:
    """The first ``count`` frames, from the start again when there are fewer."""
    return [frames[i % len(frames)] for i in range(count)]
