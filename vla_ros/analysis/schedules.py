"""Each decoding schedule in time: how often an action comes, and how old its evidence is.

An *inference* takes one frame in and, once the pipeline is full, gives one answer of ``chunk``
actions. Rate without age says little: a pipeline of K passes answers with every pass, but what
it says is K passes old.
"""

from __future__ import annotations

from vla_ros.analysis.chunk_head import recursive_schedule
from vla_ros.analysis.roofline import Roofline
from vla_ros.analysis.schedule_time import ScheduleTime, image_phases
from vla_ros.analysis.shapes import ModelShape
from vla_ros.analysis.speculation import MISSED, alternatives, fused, unfused
from vla_ros.analysis.work import Op
from vla_ros.engine.trees.expected import Budget, Cost, plan_states, plan_trees

TAPS, BINS = 3, 256


def schedules(
    roof: Roofline,
    alpha: float = 0.5,
    gamma: int | None = None,
    draft: ModelShape | None = None,
    head: bool = False,
    coverage: float | None = None,
) -> tuple[ScheduleTime, ...]:
    """Every schedule that this kind of model can have.

    ``draft`` is the draft model of ``speculative_model`` and ``vanilla_speculative``; ``head``
    adds ``speculative_head``, for which a draft head must have been trained: of a chunk policy
    the recursive one, which ``coverage`` is about (:mod:`vla_ros.analysis.chunk_head`).
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
        out += [_with_model(roof, alpha, gamma, draft), _vanilla(roof, alpha, gamma, draft)]
    return tuple(out)


def refused(model: ModelShape) -> dict[str, str]:
    """Why schedules that other policies of this kind have are left out: name -> reason."""
    if model.kind != "tokens" or model.chunk == 1:
        return {}
    tokens = model.action_tokens
    why = f"says a token a frame: a chunk of {tokens} tokens would be {tokens} frames old"
    return {"actionflow": why, "naive_pipe": why}


def _autoregressive(roof: Roofline) -> ScheduleTime:
    """V + P + (K - 1) D: the prefill gives the first token."""
    k, prefill, decode = roof.model.action_tokens, roof.prefill().seconds, roof.decode().seconds
    phases = (*image_phases(roof), ("prefill", prefill), ("decode", (k - 1) * decode))
    return ScheduleTime("autoregressive", phases, k, chunk=roof.model.chunk)


def _actionflow(roof: Roofline) -> ScheduleTime:
    """V + one packed pass; a frame's answer leaves with the K-th pass (arXiv 2512.20276)."""
    k, prefill = roof.model.action_tokens, roof.prefill().seconds
    rest = max(roof.packed().seconds - prefill, 0.0)
    phases = (*image_phases(roof), ("prefill", prefill), ("decode", rest))
    return ScheduleTime("actionflow", phases, 1, depth=k, chunk=roof.model.chunk)


def _temporal(roof: Roofline, alpha: float, gamma: int | None, name: str) -> ScheduleTime:
    """V + P(prompt + gamma) + (E - 1) D(gamma + 1); the draft itself costs nothing."""
    k = roof.model.action_tokens
    length = min(gamma or k - 1, k - 1)
    front, first = image_phases(roof), roof.prefill(length).seconds
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
    front, prefill = image_phases(roof), roof.prefill(nodes[0]).seconds
    verify = roof.decode(1 + max(nodes[1:], default=0)).seconds
    phases = (*front, ("prefill", prefill), ("decode", (plan.passes - 1) * verify))
    slowest = sum(s for _, s in front) + prefill + (k - 1) * verify
    return ScheduleTime(
        "speculative_tree", phases, plan.passes, chunk=roof.model.chunk, alpha=alpha,
        slowest_s=slowest if alpha < 1.0 else None,
    )  # fmt: skip


def speculative_head(roof: Roofline, alpha: float, coverage: float | None = None) -> ScheduleTime:
    """The same, with a draft head behind every pass but the last: + its weights, read each time.

    Once an action has begun the head misses :data:`MISSED` of what the last action misses. Of
    chunks it is the recursive head, and ``coverage`` may say what it knows.
    """
    if roof.model.chunk > 1:
        return recursive_schedule(roof, alpha, coverage)
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
    front, prefill = image_phases(roof), roof.prefill(nodes[0]).seconds
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


def _with_model(roof: Roofline, alpha: float, gamma: int | None, draft: ModelShape) -> ScheduleTime:
    """The same with a draft model on the target's vision features: + its projector, prefill and
    one step a drafted token after the first, which its prefill gives."""
    k = roof.model.action_tokens
    length = min(gamma or k - 1, k - 1)
    small = roof.for_model(draft)
    front, first = image_phases(roof), roof.prefill(length).seconds
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
    front, prefill, decode = image_phases(roof), roof.prefill().seconds, roof.decode().seconds
    start = sum(s for _, s in image_phases(small)) + small.prefill().seconds

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
    return ScheduleTime("parallel", (*image_phases(roof), *last), 1, chunk=roof.model.chunk)


def _flow(roof: Roofline, naive: bool = False) -> ScheduleTime:
    """V + the prefix + the steps of the action expert (pi0, pi0.5, SmolVLA).

    ``naive``: a plain program, that does in every step what is the same in all of them.
    """
    assert roof.model.expert is not None
    steps = roof.model.expert.steps
    denoise = steps * roof.expert_step(naive).seconds
    denoise += 0.0 if naive else roof.expert_once().seconds
    phases = (*image_phases(roof), ("prefill", roof.prefix(naive).seconds), ("decode", denoise))
    return ScheduleTime("naive" if naive else "flow", phases, 1 + steps, chunk=roof.model.chunk)
