"""Each decoding in time: how often an action comes, and how old its observation is.

An *inference* takes one frame in and, once the pipeline is full, gives one answer of ``chunk``
actions. Rate without age means little: a pipeline of K passes answers with every pass, but its
answers are K passes old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vla_ros.engine.decoding.draft_heads import (
    LEVELS,
    RecursiveConfig,
    RecursiveHead,
    heads_for,
    recursive_width,
)
from vla_ros.engine.decoding.draft_tree import Budget, Cost, level_sums, plan_first, plan_trees
from vla_ros_lab.roofline.roofline import Roofline, StageTime
from vla_ros_lab.roofline.shapes import ModelShape
from vla_ros_lab.roofline.speculation import (
    Expected,
    Rounds,
    alternatives,
    covered,
    fused,
    least,
    ranked,
    rounds,
    unfused,
)
from vla_ros_lab.roofline.work import Op, Segment, attention, linear

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
    """Rate and age of a decoding that executes ``executed`` actions of every chunk: actions a
    second, and seconds from the frame to a command, on average and at worst."""

    executed: int
    actions_hz: float
    age_s: float
    worst_s: float


def served(found: DecodingTime, camera_hz: float, executed: int | None = None) -> ServedRate:
    """Behind a camera; ``executed`` actions of a chunk, or half of it.

    They last until the next answer, 1 / rate, so the command of a chunk is issued its latency and
    half of that after the frame on average, all of it at worst. A slower robot waits longer: see
    `vla-ros advise`, which takes its rate.
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


# The recursive draft head of chunk policies.
#
# A chunk decoded token by token is long (8 actions of 7 tokens: 56), so a draft goes many levels
# deep, and each level is a pass of the head (:mod:`vla_ros.engine.decoding.draft_heads`). The first
# pass of a chunk is the prefill with `temporal_tree`'s draft behind it, since there is nothing yet
# for a head to read.


TAPS, BINS = 3, 256


@dataclass(frozen=True, slots=True)
class HeadTime:
    """The head on a device: once a round it takes in the target's ``taps``; a ``level`` is its
    pass over the nodes that have children."""

    taps: StageTime
    level: StageTime
    width: int


def _recursive_head(model: ModelShape) -> RecursiveHead:
    """A head as training makes it, without memory of its own."""
    hidden, tokens = model.decoder.hidden, model.action_tokens
    width = recursive_width(hidden)
    config = RecursiveConfig(
        tuple(range(TAPS)), hidden, tokens, tokens // model.chunk, BINS, width, heads_for(width),
        ordered=False,
    )  # fmt: skip
    with torch.device("meta"):
        return RecursiveHead(config)


def level_ops(model: ModelShape, rows: int) -> list[Op]:
    """One pass of the head over so many nodes; all its weights but the taps' are read.

    Its context is the answer so far, counted as the whole: 56 narrow entries.
    """
    head = _recursive_head(model)
    config = head.config
    attended = config.heads * (config.width // config.heads)
    maps = {
        name: layer
        for name, layer in head.named_children()
        if isinstance(layer, torch.nn.Linear) and name not in ("taps", "past")
    }
    return [
        *(linear(n, "head", rows, m.in_features, m.out_features) for n, m in maps.items()),
        attention("head", (Segment(rows, model.action_tokens),), attended, attended),
    ]


def taps_ops(model: ModelShape, rows: int) -> list[Op]:
    """The target's hidden states of the tokens that stood, into the head's width."""
    taps = _recursive_head(model).taps
    return [linear("taps", "head", rows, taps.in_features, taps.out_features)]


def head_time(roof: Roofline, nodes: int = Budget().alone) -> HeadTime:
    """A head whose trees have so many nodes, as many on each of its levels."""
    rows = -(-nodes // LEVELS)
    taps = roof.time("head: taps", taps_ops(roof.model, rows))
    level = roof.time("head: level", level_ops(roof.model, rows))
    return HeadTime(taps, level, recursive_width(roof.model.decoder.hidden))


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
    adds ``speculative_head``, for which a draft head must have been trained; ``coverage`` is
    what it knows (:func:`recursive_decoding`).
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
        out.append(recursive_decoding(roof, alpha, coverage))
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
    why = f"decodes a token a frame: a chunk of {tokens} tokens would be {tokens} frames old"
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
    """Time of a decoding with a draft. ``worst``: seconds behind the prefill if every guess is
    wrong; None: no guess can be."""
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
    k, prompt, decode = roof.model.action_tokens, roof.prefill().seconds, roof.decode().seconds
    budget = Budget()
    first = Cost(0.0, (roof.prefill(budget.prompt).seconds - prompt) / budget.prompt / decode)
    node = (roof.decode(1 + budget.alone).seconds / decode - 1.0) / budget.alone
    plan = plan_trees([alternatives(alpha)] * (k - 1), budget, first, Cost(0.0, node))
    nodes = [len(tree) for tree in plan.trees] or [0]
    verify, later = roof.decode(1 + max(nodes[1:], default=0)).seconds, plan.passes - 1.0
    return _guessing(
        roof, "speculative_tree", alpha, plan.passes, roof.prefill(nodes[0]).seconds,
        later * verify, (k - 1) * verify if alpha < 1.0 else None,
    )  # fmt: skip


def _with_model(
    roof: Roofline, alpha: float, gamma: int | None, draft: ModelShape, lone: bool = False
) -> DecodingTime:
    """V + P + (E - 1) D of a draft model on the target's vision features: + its projector, prefill
    and one step a drafted token after the first, which its prefill gives.

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
