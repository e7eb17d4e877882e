"""The recursive draft head of chunk policies, calculated: a level's cost, and expected passes.

A chunk said token by token is long (8 actions of 7 tokens: 56), so a draft goes many levels deep,
and each level is a pass of the head: one narrow layer, the way back to the target's width and the
256 rows of the action bins (:mod:`vla_ros.engine.recursive_head`). The first pass of a chunk is
the prefill with `temporal_tree`'s draft behind it, since there is nothing yet for a head to read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from vla_ros.analysis.roofline import Roofline, StageTime
from vla_ros.analysis.schedule_time import ScheduleTime, image_phases
from vla_ros.analysis.shapes import ModelShape
from vla_ros.analysis.speculation import MISSED, alternatives
from vla_ros.analysis.work import Op, Segment, attention, linear
from vla_ros.engine.trees.expected import Budget, Cost, level_sums, passes_from, plan_first
from vla_ros.engine.trees.shape import likeliest

LEVELS = 12  # at most, as the head has them
TAPS, BINS = 3, 256

#: level sums (S_0 = 1, S_1, ...) of a tree of at most so many levels
Sums = Callable[[int], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Rounds:
    """A chunk's expected target passes and passes of the head, of trees ``levels`` deep, and
    E[s] of every number s of known tokens."""

    passes: float
    head_passes: float
    levels: int
    expected: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HeadTime:
    """The head on a device: once a round it takes in the target's ``taps``; a ``level`` is its
    pass over the nodes that have children."""

    taps: StageTime
    level: StageTime
    width: int


def width_for(model: ModelShape) -> int:
    """Of a head as training makes it, :func:`vla_ros.engine.recursive_head.width_for`."""
    return max(128, model.decoder.hidden // 4)


def level_ops(model: ModelShape, rows: int) -> list[Op]:
    """One pass of the head over so many nodes; all its weights but the taps' are read.

    Its context is the answer so far, counted as the whole: 56 narrow entries.
    """
    width, hidden = width_for(model), model.decoder.hidden
    heads = max(1, width // (32 if width < 512 else 64))
    inner = width * 11 // 4
    here = (Segment(rows, model.action_tokens),)
    return [
        linear("token", "head", rows, hidden, width),
        linear("qkv", "head", rows, 2 * width, 3 * width),
        attention("head", here, heads, heads, width // heads),
        linear("output", "head", rows, width, width),
        linear("gate and up", "head", rows, width, 2 * inner),
        linear("down", "head", rows, inner, width),
        linear("wide", "head", rows, width, hidden),
        linear("bins", "head", rows, hidden, BINS),
    ]


def taps_ops(model: ModelShape, rows: int) -> list[Op]:
    """What the target thought of the tokens that stood, into the head's width."""
    return [linear("taps", "head", rows, TAPS * model.decoder.hidden, width_for(model))]


def head_time(roof: Roofline, nodes: int = Budget().alone) -> HeadTime:
    """A head whose trees have so many nodes, as many on each of its levels."""
    rows = -(-nodes // LEVELS)
    taps = roof.time("head: taps", taps_ops(roof.model, rows))
    level = roof.time("head: level", level_ops(roof.model, rows))
    return HeadTime(taps, level, width_for(roof.model))


def covered(coverage: float) -> Sums:
    """Trees whose every level holds the right token with the same chance, if all before it did."""
    return lambda levels: [coverage**level for level in range(levels + 1)]


def ranked(alpha: float, nodes: int) -> Sums:
    """The likeliest trees of so many nodes, the alternatives' chances as those of `temporal_tree`,
    but that the head misses :data:`MISSED` of what the last chunk misses."""
    return lambda levels: _ranked(1.0 - MISSED * (1.0 - alpha), nodes, levels)


@lru_cache(maxsize=512)
def _ranked(seen: float, nodes: int, levels: int) -> tuple[float, ...]:
    marginals = [alternatives(seen)] * levels
    return tuple(level_sums(likeliest(marginals, nodes), marginals))


def rounds(tokens: int, later: Sums, levels: int, first: Sequence[float] = (1.0,)) -> Rounds:
    """``first`` are the level sums of the draft behind the prompt, which is none of the head's;
    in every later pass it drafts ``levels``, or what is left.

    The recursion of :mod:`vla_ros.engine.trees.expected`. The last token comes with its
    predecessor's pass, so with s tokens known there are at most tokens - 1 - s levels. Far from
    the end a round yields (1 - c^(levels + 1)) / (1 - c) tokens of coverage c.
    """
    expected, asked = [0.0] * (tokens + 1), [0.0] * (tokens + 1)
    for known in reversed(range(tokens)):
        depth = min(levels, tokens - 1 - known) if known else 0
        sums = later(depth) if known else first
        expected[known] = passes_from(known, sums, expected)
        # the same sum of the head's passes: its own now instead of one pass of the target
        asked[known] = passes_from(known, sums, asked) - 1.0 + depth
    return Rounds(expected[0], asked[0], levels, tuple(expected))


def recursive_schedule(
    roof: Roofline, alpha: float, coverage: float | None = None, levels: int | None = None
) -> ScheduleTime:
    """V + P(prompt + nodes) + (E - 1) (D(1 + 64 nodes) + taps) + the head's passes.

    ``coverage`` is the chance that the right token is among the children of a node of the head's
    tree; None: what its alternatives have by ``alpha`` (:func:`ranked`). As many ``levels`` as
    take least time, at most 12. The draft behind the prompt is `temporal_tree`'s, by ``alpha``.
    """
    budget = Budget()
    head, decode = head_time(roof), roof.decode().seconds
    verify = roof.decode(1 + budget.alone).seconds
    later = ranked(alpha, budget.alone) if coverage is None else covered(coverage)
    tokens = roof.model.action_tokens

    def spent(found: Rounds) -> float:
        each = verify + head.taps.seconds
        return (found.passes - 1.0) * each + found.head_passes * head.level.seconds

    depths = range(1, LEVELS + 1) if levels is None else (levels,)
    found = min((rounds(tokens, later, depth) for depth in depths), key=spent)
    prompt = roof.prefill().seconds
    token = (roof.prefill(budget.prompt).seconds - prompt) / budget.prompt / decode
    marginals = [alternatives(alpha)] * (tokens - 1)
    tree = plan_first(marginals, found.expected, budget, Cost(0.0, token))
    sums = level_sums(tree, marginals)
    found = rounds(tokens, later, found.levels, sums)
    first, again = roof.prefill(len(tree)).seconds, found.passes - 1.0
    drafting = again * head.taps.seconds + found.head_passes * head.level.seconds
    phases = (
        *image_phases(roof), ("prefill", first), ("decode", again * verify), ("draft", drafting),
    )  # fmt: skip
    none = rounds(tokens, covered(0.0), found.levels)  # every guess wrong, the first ones too
    slowest = sum(s for _, s in image_phases(roof)) + first + spent(none)
    if coverage is None:
        coverage = _as_coverage(found, tokens, sums)
    return ScheduleTime(
        "speculative_head", phases, found.passes, chunk=roof.model.chunk, alpha=alpha,
        draft_passes=found.head_passes, slowest_s=slowest, coverage=coverage,
        draft_levels=found.levels,
    )  # fmt: skip


def _as_coverage(found: Rounds, tokens: int, first: Sequence[float]) -> float:
    """The same on every level that takes as many passes; by bisection."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        more = rounds(tokens, covered(middle), found.levels, first).passes > found.passes
        low, high = (middle, high) if more else (low, middle)
    return high
