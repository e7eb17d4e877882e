"""Each decoding in time: how often an action comes, and how old its observation is.

An *inference* takes one frame in and, once the pipeline is full, gives one answer of ``chunk``
actions. Rate without age says little: a pipeline of K passes answers with every pass, but what
it says is K passes old.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vla_ros.engine.decoding.draft_tree import (
    Budget,
    Cost,
    level_sums,
    likeliest,
    passes_from,
    plan_first,
    plan_states,
)
from vla_ros.engine.decoding.temporal_prediction import PRIOR, WIDTH
from vla_ros_lab.roofline.bench_file import BOUNDS, REFERENCES, BenchFile, kind_of
from vla_ros_lab.roofline.roofline import Roofline, StageTime
from vla_ros_lab.roofline.shapes import ModelShape
from vla_ros_lab.roofline.work import Op, Segment, attention, linear

# The time of a decoding: seconds an inference by phase, behind a camera, and what a chunk of its
# actions gives.


PHASES = ("vision", "projector", "prefill", "decode", "draft", "head")


@dataclass(frozen=True, slots=True)
class ClockedRate:
    """Behavior behind a camera: answers a second, and seconds from the capture of a frame to
    its answer, on average and at worst."""

    rate_hz: float
    latency_s: float
    worst_s: float


@dataclass(frozen=True, slots=True)
class DecodingTime:
    """One decoding. Seconds an inference by phase; ``worst_s`` when every guess is wrong.

    ``passes`` of the target an answer; ``depth`` inferences from a frame to its answer;
    ``alpha`` the acceptance assumed, where there is a draft; ``coverage`` the chance that the
    right token is among the children of a node of a recursive head's tree,
    which has ``draft_levels``.
    """

    name: str
    phases: tuple[tuple[str, float], ...]
    passes: float
    depth: int = 1
    chunk: int = 1
    draft_passes: float = 0.0
    alpha: float | None = None
    slowest_s: float | None = None
    coverage: float | None = None
    draft_levels: int = 0

    @property
    def seconds(self) -> float:
        """From one answer to the next when frames are always waiting."""
        return sum(seconds for _, seconds in self.phases)

    @property
    def worst_s(self) -> float:
        return self.seconds if self.slowest_s is None else self.slowest_s

    @property
    def rate_hz(self) -> float:
        return 1.0 / self.seconds

    @property
    def latency_s(self) -> float:
        """Free-running, frame taken at the start: observation to action."""
        return self.depth * self.seconds

    @property
    def shares(self) -> dict[str, float]:
        """The part of the time each phase takes, as in vla.cpp's tables (arXiv 2606.08094)."""
        return {name: seconds / self.seconds for name, seconds in self.phases}

    def clocked(self, camera_hz: float) -> ClockedRate:
        """Behind a camera; the newest frame wins, none is used twice."""
        return clocked(self.seconds, self.worst_s, self.depth, camera_hz)


@dataclass(frozen=True, slots=True)
class ServedRate:
    """What a decoding gives that executes ``executed`` actions of every chunk, as often as chunks
    come: actions a second, and seconds from the frame to a command, on average and at worst."""

    executed: int
    actions_hz: float
    age_s: float
    worst_s: float


def served(found: DecodingTime, camera_hz: float, executed: int | None = None) -> ServedRate:
    """Behind a camera; ``executed`` actions of a chunk, or half of it.

    They last until the next answer, 1 / rate, so the command of a chunk is issued its latency and
    half of that after the frame on average, all of it at worst. A slower robot waits longer: see
    `vla-ros advise`, which is told its rate.
    """
    actions = executed or max(found.chunk // 2, 1)
    run = found.clocked(camera_hz)
    period = 1.0 / run.rate_hz
    return ServedRate(
        actions, actions * run.rate_hz, run.latency_s + period / 2, run.worst_s + period
    )


def clocked(seconds: float, worst_s: float, depth: int, camera_hz: float) -> ClockedRate:
    """Rate and latency of an inference of ``seconds`` behind a camera of period Tc.

    Fast enough (T <= Tc): every frame is answered, after (depth - 1) Tc + T. Slower: inferences
    follow each other, the newest frame has waited between 0 and Tc at the start, so depth T +
    Tc / 2 on average, depth T + Tc at worst. Derived here; frames arrive exactly every Tc.
    """
    period = 1.0 / camera_hz

    def latency(each: float, wait: float) -> float:
        return (depth - 1) * period + each if each <= period else depth * each + wait * period

    rate = min(camera_hz, 1.0 / seconds)
    return ClockedRate(rate, latency(seconds, 0.5), latency(max(seconds, worst_s), 1.0))


def image_phases(roof: Roofline) -> list[tuple[str, float]]:
    """The phases before the decoder."""
    return [("vision", roof.vision().seconds), ("projector", roof.projector().seconds)]


# Whether guessing pays: expected tokens and passes, speedup, break-even, the landscape.
#
# alpha is the probability that a drafted token is the target's own, taken as independent from
# token to token; gamma the drafted tokens a round; c the time of a draft step over the time of a
# target pass.


Floats = npt.NDArray[np.float64]

#: of the tokens that are none of the alternatives to the last action, the share that a head that
#: sees the target think misses too: an assumption that fits the shipped policy, whose trees take
#: 2.99 passes of episodes held out and with its head 2.62
MISSED = 0.6


def _probability(alpha: float) -> float:
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is {alpha:g}: it is a probability, 0 to 1")
    return float(alpha)


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens a round yields: (1 - alpha^(gamma + 1)) / (1 - alpha).

    Source: Leviathan, Kalman and Matias, "Fast inference from transformers via speculative
    decoding", ICML 2023, equation 1. Written as the sum it is of, so that alpha = 1 is no case.
    """
    alpha = _probability(alpha)
    return float(sum(alpha**i for i in range(gamma + 1)))


def speedup(alpha: float, gamma: int, c: float) -> float:
    """E[tokens] / (1 + c gamma): over plain decoding, prefill left aside.

    Source: Leviathan et al. 2023, theorem 3.8 (their factor, with the costs of a round).
    """
    return expected_tokens(alpha, gamma) / (1.0 + c * gamma)


def break_even(gamma: int, c: float) -> float | None:
    """The acceptance from which a round gains time; None where even alpha = 1 does not pay.

    Root of E[tokens] = 1 + c gamma by bisection: the left side grows with alpha, from 1 to
    gamma + 1, so c = 1 is the dearest draft that can ever pay (Leviathan et al., corollary 3.9).
    """
    return None if c >= 1.0 else least(60, lambda alpha: speedup(alpha, gamma, c) >= 1.0)


def least(halvings: int, enough: Callable[[float], bool]) -> float:
    """The least chance that is enough, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def best_gamma(alpha: float, c: float, longest: int = 16) -> int:
    """The draft length of the greatest speedup; 0 where none pays (Leviathan et al., 3.4)."""
    gains = [1.0] + [speedup(alpha, gamma, c) for gamma in range(1, longest + 1)]
    return int(np.argmax(gains))


def landscape(gamma: int, alphas: Sequence[float], costs: Sequence[float]) -> Floats:
    """Speedup [len(costs), len(alphas)] over acceptance and draft cost."""
    return np.array([[speedup(a, gamma, c) for a in alphas] for c in costs])


@dataclass(frozen=True, slots=True)
class Expected:
    """What an action is expected to take: target passes, and tokens drafted for it."""

    passes: float
    drafted: float


def fused(alpha: float, tokens: int, gamma: int | None = None) -> Expected:
    """Prefill-fused speculation: this project's ``speculative`` decoding.

    The first pass is the prefill with the draft behind it; each pass yields its accepted draft
    tokens and one token of the target, and is what the next draft starts from. With n tokens
    left and g = min(gamma, n - 1) drafted,

        E(n) = 1 + sum_{j < g} alpha^j (1 - alpha) E(n - j - 1) + alpha^g E(n - g - 1),

    E(0) = 0. With gamma >= tokens - 1 that is 1 + (tokens - 1) (1 - alpha): each drafted token
    that is wrong costs one pass, whichever it is. Derived here from Leviathan et al., algorithm
    1, with the bonus token that it has.
    """
    return _expected(_probability(alpha), tokens, gamma or max(tokens - 1, 1), lone=False)


def unfused(alpha: float, tokens: int, gamma: int) -> Expected:
    """The ETH report's decoding: a plain prefill, then rounds of draft, verification, and a
    pass for the correction or bonus token alone. The prefill is counted as a pass."""
    after = _expected(_probability(alpha), tokens, gamma, lone=True)
    return Expected(1.0 + after.passes, after.drafted)


def _expected(alpha: float, tokens: int, gamma: int, lone: bool) -> Expected:
    """``lone``: a correction needs a pass of its own, and a last single token needs none."""
    passes, drafted = [0.0], [0.0]
    for left in range(1, tokens + 1):
        g = min(gamma, left - 1)
        if lone and left == 1:
            passes.append(0.0)
            drafted.append(0.0)
            continue
        p, d = 1.0, float(g)
        for j in range(g + 1):
            chance = alpha**j * ((1.0 - alpha) if j < g else 1.0)
            rest = left - j - 1
            p += chance * (passes[rest] + (1.0 if lone and rest else 0.0))
            d += chance * drafted[rest]
        passes.append(p)
        drafted.append(d)
    return Expected(passes[tokens], drafted[tokens])


def alternatives(alpha: float) -> list[float]:
    """Chances of a token's alternatives, the likeliest being right with ``alpha``.

    The others fall with (1 + rank) to the power of -1.5 as far as the rest allows, an assumption
    that fits the shipped policy (benchmarks/trees): at its mean of 0.55 it gives trees 2.5 passes
    where 2.6 were counted.
    """
    falling = [(1.0 + rank) ** -PRIOR for rank in range(1, WIDTH)]
    return [alpha, *(min(alpha, (1.0 - alpha) / sum(falling)) * part for part in falling)]


# The recursive draft head of chunk policies, calculated: a level's cost, and expected passes.
#
# A chunk said token by token is long (8 actions of 7 tokens: 56), so a draft goes many levels deep,
# and each level is a pass of the head: one narrow layer, the way back to the target's width and the
# 256 rows of the action bins (:mod:`vla_ros.engine.decoding.draft_heads`). The first pass of a
# chunk is the prefill with `temporal_tree`'s draft behind it, since there is nothing yet for a head
# to read.


LEVELS = 12  # at most, as the head has them

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
    """Of a head as training makes it (``draft_heads.recursive_width``)."""
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

    The recursion of :mod:`vla_ros.engine.decoding.draft_tree`. The last token comes with its
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


def recursive_decoding(
    roof: Roofline, alpha: float, coverage: float | None = None, levels: int | None = None
) -> DecodingTime:
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
    none = rounds(tokens, covered(0.0), found.levels)  # every guess wrong, the first ones too
    if coverage is None:
        # the one that takes as many passes, were it the same on every level
        coverage = least(
            20, lambda c: rounds(tokens, covered(c), found.levels, sums).passes <= found.passes
        )
    return _guessing(
        roof, "speculative_head", alpha, found.passes, first, again * verify, spent(none),
        draft=drafting, draft_passes=found.head_passes, coverage=coverage,
        draft_levels=found.levels,
    )  # fmt: skip


TAPS, BINS = 3, 256


def decodings(
    roof: Roofline,
    alpha: float = 0.5,
    gamma: int | None = None,
    draft: ModelShape | None = None,
    head: bool = False,
    coverage: float | None = None,
) -> tuple[DecodingTime, ...]:
    """Every decoding that this kind of model can have.

    ``draft`` is the draft model of ``speculative_model`` and ``vanilla_speculative``; ``head``
    adds ``speculative_head``, for which a draft head must have been trained: of a chunk policy
    the recursive one, which ``coverage`` is about (:mod:`vla_ros_lab.roofline.decodings`).
    """
    if roof.model.kind == "parallel":
        return (_parallel(roof),)
    if roof.model.kind == "flow":
        return _flow(roof), _flow(roof, naive=True)
    out = [
        _autoregressive(roof),
        *(() if refused(roof.model) else (_actionflow(roof),)),
        _temporal(roof, 1.0, gamma, "speculative_hit"),
        _temporal(roof, alpha, gamma, "speculative_temporal"),
        _temporal(roof, 0.0, gamma, "speculative_miss"),
        speculative_tree(roof, alpha),
    ]
    if head and roof.model.action_tokens > 2:
        out.append(speculative_head(roof, alpha, coverage))
    if draft is not None:
        out += [
            _with_model(roof, alpha, gamma, draft),
            _with_model(roof, alpha, gamma, draft, True),
        ]
    return tuple(out)


def refused(model: ModelShape) -> dict[str, str]:
    """Why decodings that other policies of this kind have are left out: name -> reason."""
    if model.kind != "tokens" or model.chunk == 1:
        return {}
    tokens = model.action_tokens
    why = f"says a token a frame: a chunk of {tokens} tokens would be {tokens} frames old"
    return {"actionflow": why, "naive_pipe": why}


def _autoregressive(roof: Roofline) -> DecodingTime:
    """V + P + (K - 1) D: the prefill gives the first token."""
    k, prefill, decode = roof.model.action_tokens, roof.prefill().seconds, roof.decode().seconds
    phases = (*image_phases(roof), ("prefill", prefill), ("decode", (k - 1) * decode))
    return DecodingTime("autoregressive", phases, k, chunk=roof.model.chunk)


def _actionflow(roof: Roofline) -> DecodingTime:
    """V + one packed pass; a frame's answer leaves with the K-th pass (arXiv 2512.20276)."""
    k, prefill = roof.model.action_tokens, roof.prefill().seconds
    rest = max(roof.packed().seconds - prefill, 0.0)
    phases = (*image_phases(roof), ("prefill", prefill), ("decode", rest))
    return DecodingTime("actionflow", phases, 1, depth=k, chunk=roof.model.chunk)


def _guessing(
    roof: Roofline,
    name: str,
    alpha: float,
    passes: float,
    prefill: float,
    decode: float,
    worst: float | None,
    draft: float | None = None,
    **more: Any,
) -> DecodingTime:
    """Any decoding with a draft. ``worst``: seconds behind the prefill if every guess is wrong;
    None: no guess can be."""
    front = image_phases(roof)
    phases = (*front, ("prefill", prefill), ("decode", decode))
    return DecodingTime(
        name, phases if draft is None else (*phases, ("draft", draft)), passes,
        chunk=roof.model.chunk, alpha=alpha,
        slowest_s=None if worst is None else sum(s for _, s in front) + prefill + worst, **more,
    )  # fmt: skip


def _temporal(roof: Roofline, alpha: float, gamma: int | None, name: str) -> DecodingTime:
    """V + P(prompt + gamma) + (E - 1) D(gamma + 1); the draft itself costs nothing."""
    k = roof.model.action_tokens
    length = min(gamma or k - 1, k - 1)
    first, verify = roof.prefill(length).seconds, roof.decode(length + 1).seconds
    passes, most = fused(alpha, k, length).passes, fused(0.0, k, length).passes
    worst = (most - 1) * verify if alpha < 1.0 else None
    return _guessing(roof, name, alpha, passes, first, (passes - 1) * verify, worst)


def speculative_tree(roof: Roofline, alpha: float) -> DecodingTime:
    """V + P(prompt + nodes) + (E - 1) D(1 + nodes) of temporal_tree, nodes kept where they pay."""
    return _tree(roof, alpha, "speculative_tree")


def speculative_head(roof: Roofline, alpha: float, coverage: float | None = None) -> DecodingTime:
    """The same, with a draft head behind every pass but the last: + its weights, read each time.

    Once an action has begun the head misses :data:`MISSED` of what the last action misses. Of
    chunks it is the recursive head, and ``coverage`` may say what it knows.
    """
    if roof.model.chunk > 1:
        return recursive_decoding(roof, alpha, coverage)
    weights = head_weights(roof.model)
    once = roof.time("draft", [Op("draft", "head", 2.0 * weights, weights=weights)]).seconds
    return _tree(roof, alpha, "speculative_head", once)


def _tree(roof: Roofline, alpha: float, name: str, head: float | None = None) -> DecodingTime:
    """``head``: seconds of its pass; None: what the last action offers is drafted throughout."""
    k, prompt, decode = roof.model.action_tokens, roof.prefill().seconds, roof.decode().seconds
    once, budget = head or 0.0, Budget()
    first = Cost(0.0, (roof.prefill(budget.prompt).seconds - prompt) / budget.prompt / decode)
    node = (roof.decode(1 + budget.alone).seconds / decode - 1.0) / budget.alone
    seen = alternatives(alpha if head is None else 1.0 - MISSED * (1.0 - alpha))
    states = [[alternatives(alpha)] * (k - 1), *([seen] * (k - 1 - n) for n in range(1, k - 1))]
    plan = plan_states(states[: k - 1], budget, first, Cost(once / decode, node))
    nodes = [len(tree) for tree in plan.trees] or [0]
    verify, later = roof.decode(1 + max(nodes[1:], default=0)).seconds, plan.passes - 1.0
    return _guessing(
        roof, name, alpha, plan.passes, roof.prefill(nodes[0]).seconds, later * verify,
        (k - 1) * (verify + once) if alpha < 1.0 else None,
        draft=None if head is None else later * once,
        draft_passes=0.0 if head is None else later,
    )  # fmt: skip


def head_weights(model: ModelShape) -> float:
    """Of a one-shot draft head of the width that training gives it: its matrices."""
    hidden, places = model.decoder.hidden, model.action_tokens - 2
    width = max(256, hidden // 4)
    return float(width * ((TAPS + 1) * hidden + 4 * width + places * BINS))


def _with_model(
    roof: Roofline, alpha: float, gamma: int | None, draft: ModelShape, lone: bool = False
) -> DecodingTime:
    """The same with a draft model on the target's vision features: + its projector, prefill and
    one step a drafted token after the first, which its prefill gives.

    ``lone`` is the ETH report's decoding: a draft with its own vision, corrections alone.
    """
    k = roof.model.action_tokens
    length = min(gamma or k - 1, k - 1)
    small = roof.for_model(draft)
    step, expected = small.decode().seconds, unfused if lone else fused
    first = roof.prefill(0 if lone else length).seconds
    verify = roof.decode(1 if lone else length + 1).seconds
    start = small.projector().seconds + small.prefill().seconds
    start += small.vision().seconds if lone else 0.0

    def total(a: float) -> tuple[Expected, float, float]:
        found = expected(a, k, length)
        drafted = found.drafted if lone else max(found.drafted - 1, 0)
        return found, (found.passes - 1) * verify, start + drafted * step

    found, decoding, drafting = total(alpha)
    return _guessing(
        roof, "vanilla_speculative" if lone else "speculative_model", alpha, found.passes, first,
        decoding, sum(total(0.0)[1:]), draft=drafting, draft_passes=found.drafted + lone,
    )  # fmt: skip


def _parallel(roof: Roofline) -> DecodingTime:
    """V + one pass over prompt and placeholders + the action head (OpenVLA-OFT)."""
    last = [("prefill", roof.parallel().seconds), ("head", roof.head().seconds)]
    return DecodingTime("parallel", (*image_phases(roof), *last), 1, chunk=roof.model.chunk)


def _flow(roof: Roofline, naive: bool = False) -> DecodingTime:
    """V + the prefix + the steps of the action expert (pi0, pi0.5, SmolVLA).

    ``naive``: a plain program, that does in every step what is the same in all of them.
    """
    assert roof.model.expert is not None
    steps = roof.model.expert.steps
    denoise = steps * roof.expert_step(naive).seconds
    denoise += 0.0 if naive else roof.expert_once().seconds
    phases = (*image_phases(roof), ("prefill", roof.prefix(naive).seconds), ("decode", denoise))
    return DecodingTime("naive" if naive else "flow", phases, 1 + steps, chunk=roof.model.chunk)


# Which decodings meet a camera, a control rate and a limit on the observation age.


#: policy parameters of a row's decoding
PARAMETERS = {
    "flow": "decoding:=auto",
    "flow_eager": "decoding:=auto engine_options:=[cuda_graphs=false]",
    "speculative_temporal": "decoding:=speculative",
    "speculative_tree": "decoding:=speculative engine_options:=[drafter=temporal_tree]",
    "speculative_tree_full": "decoding:=speculative"
    " engine_options:=[drafter=temporal_tree,adaptive_draft=false]",
    "speculative_head": "decoding:=speculative engine_options:=[drafter=head,adaptive_draft=false]",
    "speculative_head_paying": "decoding:=speculative engine_options:=[drafter=head]",
    "heterospec_head": "decoding:=heterospec engine_options:=[drafter=head]",
    "heterospec_head_full": "decoding:=heterospec"
    " engine_options:=[drafter=head,adaptive_draft=false]",
    "speculative_relaxed": "decoding:=speculative"
    " engine_options:=[acceptance=relaxed,relaxed_distance=2]",
    "speculative_model": "decoding:=speculative"
    " engine_options:=[drafter=model,draft_checkpoint=DIR]",
}
#: how much of a chunk is executed before the next one takes over, to choose from
EXECUTED = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the robot needs: frames and commands a second, and the oldest observation allowed
    (s)."""

    camera_hz: float
    control_hz: float
    max_age_s: float

    def __post_init__(self) -> None:
        for name in ("camera_hz", "control_hz", "max_age_s"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} is {getattr(self, name):g}: give a number above 0")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A decoding on a device: seconds an inference (usual, worst), pipeline depth, chunk.

    ``lossless``: it says what the policy says."""

    name: str
    seconds: float
    worst_s: float
    depth: int = 1
    chunk: int = 1
    note: str = ""
    lossless: bool = True


@dataclass(frozen=True, slots=True)
class CandidateVerdict:
    """A candidate judged. ``answers_hz`` answers a second; the age of the observation behind a
    command when it is issued, ``usual_s`` on average and ``age_s`` at worst; ``missing`` says
    what it fails, if anything. ``executed`` are the actions of each chunk that that takes."""

    candidate: Candidate
    answers_hz: float
    commands_hz: float
    usual_s: float
    age_s: float
    missing: tuple[str, ...]
    executed: int = 1

    @property
    def meets(self) -> bool:
        return not self.missing

    @property
    def parameters(self) -> str:
        name = self.candidate.name
        own = PARAMETERS.get(name, f"decoding:={name}")
        return f"{own} replan_interval:={self.executed}" if self.candidate.chunk > 1 else own


def from_roofline(found: Iterable[DecodingTime]) -> tuple[Candidate, ...]:
    """Candidates from calculated decodings; bounds and references are not offered."""
    return tuple(
        Candidate(s.name, s.seconds, s.worst_s, s.depth, s.chunk, _assumption(s))
        for s in found
        if s.name not in BOUNDS + REFERENCES
    )


def _assumption(decoding: DecodingTime) -> str:
    if decoding.alpha is None:
        return ""
    if decoding.coverage is not None:
        return f"if the head's alternatives hold the right token {decoding.coverage:.0%} of times"
    return f"if {decoding.alpha:.0%} of drafts are accepted"


def from_bench(bench: BenchFile) -> tuple[Candidate, ...]:
    """Candidates from a measurement, those that the checkpoint can run; the worst is p95."""
    kind = kind_of(bench)
    return tuple(
        Candidate(
            row.name, row.median_ms / 1e3, max(row.p95_ms, row.median_ms) / 1e3, row.depth,
            row.chunk, "" if row.lossless else "lossy", row.lossless,
        )
        for row in bench.rows.values()
        if row.name not in BOUNDS + REFERENCES
        and (row.name == "parallel") == (kind == "parallel")
    )  # fmt: skip


def judge(
    candidate: Candidate, limits: Requirements, executed: int | None = None
) -> CandidateVerdict:
    """Hold one decoding against the limits.

    Every command needs an action of its own, so an answer must serve n = ceil(control rate /
    answer rate) ticks, and n may not exceed its chunk; ``executed`` is another number of actions
    of each chunk. The n-th of them is issued, at worst, the latency and n control periods after
    the frame: one period of waiting for a tick, and n - 1. On average half of that: half a
    period, and (n - 1) / 2.
    """
    c = candidate
    run = clocked(c.seconds, c.worst_s, c.depth, limits.camera_hz)
    needed = math.ceil(limits.control_hz / run.rate_hz - 1e-9)
    served = min(executed or needed, c.chunk)
    age = run.worst_s + served / limits.control_hz
    usual = run.latency_s + served / (2 * limits.control_hz)
    commands = min(limits.control_hz, run.rate_hz * (served if executed else c.chunk))
    missing = []
    if needed > served:
        missing.append(f"{commands:.1f} of {limits.control_hz:g} commands/s")
    if age > limits.max_age_s:
        missing.append(f"observation up to {age * 1e3:.0f} ms old")
    return CandidateVerdict(c, run.rate_hz, commands, usual, age, tuple(missing), served)


def by_executed(candidate: Candidate, limits: Requirements) -> tuple[CandidateVerdict, ...]:
    """What each number of actions executed of a chunk gives; () where an answer is one action."""
    if candidate.chunk == 1:
        return ()
    some = sorted({*(s for s in EXECUTED if s < candidate.chunk), candidate.chunk})
    return tuple(judge(candidate, limits, s) for s in some)


def advise(
    candidates: Iterable[Candidate], limits: Requirements, executed: int | None = None
) -> tuple[CandidateVerdict, ...]:
    """All candidates judged, ``executed`` actions of each chunk or as few as will do.

    Those that meet the limits first, the lossless before the lossy, the freshest observation (on
    average) first; then the others by how few limits they miss."""

    def place(v: CandidateVerdict) -> tuple[int, bool, float, float]:
        return len(v.missing), not v.candidate.lossless, v.usual_s, v.candidate.seconds

    return tuple(sorted((judge(c, limits, executed) for c in candidates), key=place))
