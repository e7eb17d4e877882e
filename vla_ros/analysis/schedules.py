"""Each decoding schedule in time: how often an action comes, and how old its evidence is.

An *inference* takes one frame in and, once the pipeline is full, gives one answer of ``chunk``
actions. Rate without age says little: a pipeline of K passes answers with every pass, but what
it says is K passes old.
"""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.analysis.roofline import Roofline
from vla_ros.analysis.shapes import ModelShape
from vla_ros.analysis.speculation import fused, unfused
from vla_ros.analysis.work import Op
from vla_ros.engine.trees.expected import Budget, Cost, plan_states, plan_trees
from vla_ros.engine.trees.marginals import PRIOR, WIDTH

#: of the tokens that are none of the alternatives to the last action, the share that a head that
#: sees the target think misses too: an assumption that fits the shipped policy, whose trees take
#: 2.99 passes of episodes held out and with its head 2.62
MISSED = 0.6
TAPS, BINS = 3, 256

PHASES = ("vision", "projector", "prefill", "decode", "draft", "head")


@dataclass(frozen=True, slots=True)
class Clocked:
    """Behaviour behind a camera: answers a second, and seconds from the capture of a frame to
    its answer, on average and at worst."""

    rate_hz: float
    latency_s: float
    worst_s: float


@dataclass(frozen=True, slots=True)
class ScheduleTime:
    """One schedule. Seconds an inference by phase; ``worst_s`` when every guess is wrong.

    ``passes`` of the target an answer; ``depth`` inferences from a frame to its answer;
    ``alpha`` the acceptance assumed, where there is a draft.
    """

    name: str
    phases: tuple[tuple[str, float], ...]
    passes: float
    depth: int = 1
    chunk: int = 1
    draft_passes: float = 0.0
    alpha: float | None = None
    slowest_s: float | None = None

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

    def clocked(self, camera_hz: float) -> Clocked:
        """Behind a camera; the newest frame wins, none is used twice."""
        return clocked(self.seconds, self.worst_s, self.depth, camera_hz)


def clocked(seconds: float, worst_s: float, depth: int, camera_hz: float) -> Clocked:
    """Rate and latency of an inference of ``seconds`` behind a camera of period Tc.

    Fast enough (T <= Tc): every frame is answered, after (depth - 1) Tc + T. Slower: inferences
    follow each other, the newest frame has waited between 0 and Tc at the start, so depth T +
    Tc / 2 on average, depth T + Tc at worst. Derived here; frames arrive exactly every Tc.
    """
    period = 1.0 / camera_hz

    def latency(each: float, wait: float) -> float:
        return (depth - 1) * period + each if each <= period else depth * each + wait * period

    rate = min(camera_hz, 1.0 / seconds)
    return Clocked(rate, latency(seconds, 0.5), latency(max(seconds, worst_s), 1.0))


def schedules(
    roof: Roofline,
    alpha: float = 0.5,
    gamma: int | None = None,
    draft: ModelShape | None = None,
    head: bool = False,
) -> tuple[ScheduleTime, ...]:
    """Every schedule that this kind of model can have.

    ``draft`` is the draft model of ``speculative_model`` and ``vanilla_speculative``; ``head``
    adds ``speculative_head``, for which a draft head must have been trained.
    """
    if roof.model.kind == "parallel":
        return (_parallel(roof),)
    if roof.model.kind == "flow":
        return _flow(roof), _flow(roof, naive=True)
    chunks = roof.model.chunk > 1  # which no pipeline takes, and for which there is no head
    out = [
        _autoregressive(roof),
        *(() if chunks else (_actionflow(roof),)),
        _temporal(roof, 1.0, gamma, "speculative_hit"),
        _temporal(roof, alpha, gamma, "speculative_temporal"),
        _temporal(roof, 0.0, gamma, "speculative_miss"),
        speculative_tree(roof, alpha),
    ]
    if head and not chunks and roof.model.action_tokens > 2:
        out.append(speculative_head(roof, alpha))
    if draft is not None:
        out += [_with_model(roof, alpha, gamma, draft), _vanilla(roof, alpha, gamma, draft)]
    return tuple(out)


def _front(roof: Roofline) -> list[tuple[str, float]]:
    return [("vision", roof.vision().seconds), ("projector", roof.projector().seconds)]


def _autoregressive(roof: Roofline) -> ScheduleTime:
    """V + P + (K - 1) D: the prefill gives the first token."""
    k, prefill, decode = roof.model.action_tokens, roof.prefill().seconds, roof.decode().seconds
    phases = (*_front(roof), ("prefill", prefill), ("decode", (k - 1) * decode))
    return ScheduleTime("autoregressive", phases, k, chunk=roof.model.chunk)


def _actionflow(roof: Roofline) -> ScheduleTime:
    """V + one packed pass; a frame's answer leaves with the K-th pass (arXiv 2512.20276)."""
    k, prefill = roof.model.action_tokens, roof.prefill().seconds
    rest = max(roof.packed().seconds - prefill, 0.0)
    phases = (*_front(roof), ("prefill", prefill), ("decode", rest))
    return ScheduleTime("actionflow", phases, 1, depth=k, chunk=roof.model.chunk)


def _temporal(roof: Roofline, alpha: float, gamma: int | None, name: str) -> ScheduleTime:
    """V + P(prompt + gamma) + (E - 1) D(gamma + 1); the draft itself costs nothing."""
    k = roof.model.action_tokens
    length = min(gamma or k - 1, k - 1)
    front, first = _front(roof), roof.prefill(length).seconds
    verify = roof.decode(length + 1).seconds
    expected = fused(alpha, k, length)
    slowest = sum(s for _, s in front) + first + (fused(0.0, k, length).passes - 1) * verify
    phases = (*front, ("prefill", first), ("decode", (expected.passes - 1) * verify))
    return ScheduleTime(
        name, phases, expected.passes, chunk=roof.model.chunk, alpha=alpha,
        slowest_s=slowest if alpha < 1.0 else None,
    )  # fmt: skip


def speculative_tree(roof: Roofline, alpha: float) -> ScheduleTime:
    """V + P(prompt + nodes) + (E - 1) D(1 + nodes) of temporal_tree, nodes kept where they pay."""
    k, prompt, decode = roof.model.action_tokens, roof.prefill().seconds, roof.decode().seconds
    budget = Budget()
    first = Cost(0.0, (roof.prefill(budget.prompt).seconds - prompt) / budget.prompt / decode)
    later = Cost(0.0, (roof.decode(1 + budget.alone).seconds / decode - 1.0) / budget.alone)
    plan = plan_trees([alternatives(alpha)] * (k - 1), budget, first, later)
    nodes = [len(tree) for tree in plan.trees] or [0]
    front, prefill = _front(roof), roof.prefill(nodes[0]).seconds
    verify = roof.decode(1 + max(nodes[1:], default=0)).seconds
    phases = (*front, ("prefill", prefill), ("decode", (plan.passes - 1) * verify))
    slowest = sum(s for _, s in front) + prefill + (k - 1) * verify
    return ScheduleTime(
        "speculative_tree", phases, plan.passes, chunk=roof.model.chunk, alpha=alpha,
        slowest_s=slowest if alpha < 1.0 else None,
    )  # fmt: skip


def speculative_head(roof: Roofline, alpha: float) -> ScheduleTime:
    """The same, with a draft head behind every pass but the last: + its weights, read each time.

    Once an action has begun the head misses :data:`MISSED` of what the last action misses.
    """
    k, prompt, decode = roof.model.action_tokens, roof.prefill().seconds, roof.decode().seconds
    weights = head_weights(roof.model)
    once = roof.time("draft", [Op("draft", "head", 2.0 * weights, weights=weights)]).seconds
    budget = Budget()
    first = Cost(0.0, (roof.prefill(budget.prompt).seconds - prompt) / budget.prompt / decode)
    node = (roof.decode(1 + budget.alone).seconds / decode - 1.0) / budget.alone
    past, seen = alternatives(alpha), alternatives(1.0 - MISSED * (1.0 - alpha))
    states = [[past] * (k - 1), *([seen] * (k - 1 - known) for known in range(1, k - 1))]
    plan = plan_states(states, budget, first, Cost(once / decode, node))
    nodes = [len(tree) for tree in plan.trees]
    front, prefill = _front(roof), roof.prefill(nodes[0]).seconds
    verify = roof.decode(1 + max(nodes[1:], default=0)).seconds
    later = plan.passes - 1.0
    phases = (*front, ("prefill", prefill), ("decode", later * verify), ("draft", later * once))
    slowest = sum(s for _, s in front) + prefill + (k - 1) * (verify + once)
    return ScheduleTime(
        "speculative_head", phases, plan.passes, chunk=roof.model.chunk, alpha=alpha,
        draft_passes=later, slowest_s=slowest if alpha < 1.0 else None,
    )  # fmt: skip


def head_weights(model: ModelShape) -> float:
    """Of a one-shot draft head of the width that training gives it: its matrices."""
    hidden, places = model.decoder.hidden, model.action_tokens - 2
    width = max(256, hidden // 4)
    return float(width * ((TAPS + 1) * hidden + 4 * width + places * BINS))


def alternatives(alpha: float) -> list[float]:
    """Chances of a token's alternatives, the likeliest being right with ``alpha``.

    The others fall with (1 + rank) to the power of -1.5 as far as the rest allows, an assumption
    that fits the shipped policy (benchmarks/trees): at its mean of 0.55 it gives trees 2.5 passes
    where 2.6 were counted.
    """
    falling = [(1.0 + rank) ** -PRIOR for rank in range(1, WIDTH)]
    return [alpha, *(min(alpha, (1.0 - alpha) / sum(falling)) * part for part in falling)]


def _with_model(roof: Roofline, alpha: float, gamma: int | None, draft: ModelShape) -> ScheduleTime:
    """The same with a draft model on the target's vision features: + its projector, prefill and
    one step a drafted token after the first, which its prefill gives."""
    k = roof.model.action_tokens
    length = min(gamma or k - 1, k - 1)
    small = roof.for_model(draft)
    front, first = _front(roof), roof.prefill(length).seconds
    verify, step = roof.decode(length + 1).seconds, small.decode().seconds
    start = small.projector().seconds + small.prefill().seconds

    def total(a: float) -> tuple[float, float, float]:
        expected = fused(a, k, length)
        drafting = start + max(expected.drafted - 1, 0) * step
        return expected.passes, (expected.passes - 1) * verify, drafting

    passes, decoding, drafting = total(alpha)
    slowest = sum(s for _, s in front) + first + sum(total(0.0)[1:])
    phases = (*front, ("prefill", first), ("decode", decoding), ("draft", drafting))
    return ScheduleTime(
        "speculative_model", phases, passes, chunk=roof.model.chunk, alpha=alpha,
        draft_passes=fused(alpha, k, length).drafted, slowest_s=slowest,
    )  # fmt: skip


def _vanilla(roof: Roofline, alpha: float, gamma: int | None, draft: ModelShape) -> ScheduleTime:
    """The ETH report's schedule: a draft with its own vision and prefill, corrections alone."""
    k = roof.model.action_tokens
    length = min(gamma or k - 1, k - 1)
    small = roof.for_model(draft)
    front, prefill, decode = _front(roof), roof.prefill().seconds, roof.decode().seconds
    start = sum(s for _, s in _front(small)) + small.prefill().seconds

    def total(a: float) -> tuple[float, float, float]:
        expected = unfused(a, k, length)
        drafting = start + expected.drafted * small.decode().seconds
        return expected.passes, (expected.passes - 1) * decode, drafting

    passes, decoding, drafting = total(alpha)
    slowest = sum(s for _, s in front) + prefill + sum(total(0.0)[1:])
    phases = (*front, ("prefill", prefill), ("decode", decoding), ("draft", drafting))
    return ScheduleTime(
        "vanilla_speculative", phases, passes, chunk=roof.model.chunk, alpha=alpha,
        draft_passes=1 + unfused(alpha, k, length).drafted, slowest_s=slowest,
    )  # fmt: skip


def _parallel(roof: Roofline) -> ScheduleTime:
    """V + one pass over prompt and placeholders + the action head (OpenVLA-OFT)."""
    last = [("prefill", roof.parallel().seconds), ("head", roof.head().seconds)]
    return ScheduleTime("parallel", (*_front(roof), *last), 1, chunk=roof.model.chunk)


def _flow(roof: Roofline, naive: bool = False) -> ScheduleTime:
    """V + the prefix + the steps of the action expert (pi0, pi0.5, SmolVLA).

    ``naive``: a plain program, that does in every step what is the same in all of them.
    """
    assert roof.model.expert is not None
    steps = roof.model.expert.steps
    denoise = steps * roof.expert_step(naive).seconds
    denoise += 0.0 if naive else roof.expert_once().seconds
    phases = (*_front(roof), ("prefill", roof.prefix(naive).seconds), ("decode", denoise))
    return ScheduleTime("naive" if naive else "flow", phases, 1 + steps, chunk=roof.model.chunk)
