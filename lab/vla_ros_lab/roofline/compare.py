"""Measured beside possible: how much of the roofline each decoding and stage reaches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vla_ros_lab.roofline.bench_file import BenchFile, BenchRow
from vla_ros_lab.roofline.decodings import (
    DecodingTime,
    decodings,
    recursive_decoding,
    speculative_tree,
)
from vla_ros_lab.roofline.roofline import Roofline
from vla_ros_lab.roofline.shapes import ModelShape, as_parallel
from vla_ros_lab.roofline.speculation import least

#: rows that do the arithmetic of another decoding
SAME_WORK = {
    "auto": "speculative_temporal",
    "generate": "autoregressive",
    "naive_pipe": "actionflow",
    "speculative_relaxed": "speculative_temporal",
    "speculative_miss_always": "speculative_miss",
    "flow_eager": "flow",
    "transformers": "naive",
    "lerobot": "naive",
    "speculative_tree_full": "speculative_tree",
}


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Milliseconds possible and measured. ``how`` names the source of the measured figure."""

    name: str
    possible_ms: float
    measured_ms: float
    how: str = ""

    @property
    def efficiency(self) -> float:
        """The part of the roofline that is reached; above 1 the model of the device is wrong."""
        return self.possible_ms / self.measured_ms


def fit_shape(model: ModelShape, bench: BenchFile) -> ModelShape:
    """The model with the prompt and action length that were measured."""
    if bench.prompt:
        model = model.with_prompt(bench.prompt)
    if bench.action_tokens and model.kind == "tokens":
        model = replace(model, action_tokens=bench.action_tokens)
    return model


def compare_decodings(
    roof: Roofline, bench: BenchFile, draft: ModelShape | None = None
) -> tuple[Efficiency, ...]:
    """Each row of the benchmark against its bound, with the passes that were measured.

    A reference is held against the bound of the decoding whose arithmetic it does.
    """
    out = []
    for name, row in bench.rows.items():
        bound = _bound(roof, row, draft)
        if bound is not None:
            note = f"{row.passes:.2f} passes" if row.acceptance is not None else ""
            out.append(Efficiency(name, bound.seconds * 1e3, row.median_ms, note))
    return tuple(out)


def _bound(roof: Roofline, row: BenchRow, draft: ModelShape | None) -> DecodingTime | None:
    if row.name == "parallel" and roof.model.kind == "tokens":
        roof = roof.for_model(as_parallel(roof.model, row.chunk))
    found = {s.name: s for s in decodings(roof, _alpha(roof, row), None, draft, head=True)}
    return found.get(SAME_WORK.get(row.name, row.name))


def _alpha(roof: Roofline, row: BenchRow) -> float:
    """The acceptance that explains the measured passes: E(K) = 1 + (K - 1)(1 - alpha) solved.

    The measured acceptance would not do: it leaves out the frames on which the drafter had
    switched itself off. Only the report's own decoding, counted otherwise, goes by it.
    """
    if row.acceptance is None or row.name == "vanilla_speculative" or row.passes < 1:
        return row.acceptance if row.acceptance is not None else 0.5
    trees = {"speculative_tree": speculative_tree, "speculative_head": recursive_decoding}
    calculate = trees.get(SAME_WORK.get(row.name, row.name))
    if calculate is not None:
        return least(20, lambda alpha: calculate(roof, alpha).passes <= row.passes)
    spare = max(roof.model.action_tokens - 1, 1)
    return min(max(1.0 - (row.passes - 1.0) / spare, 0.0), 1.0)


def compare_stages(roof: Roofline, bench: BenchFile) -> tuple[Efficiency, ...]:
    """Stages against their bounds.

    From the stage durations of a row where the file has them; else from differences between
    rows: a full hit is vision and one prefill, and what autoregressive takes longer are its
    K - 1 decode passes; what actionflow takes longer than a hit, the cost of the other frames.
    """
    if roof.model.kind == "flow":
        return _flow_stages(roof, bench)
    if roof.model.kind != "tokens":
        return ()
    measured = _stages_of(bench) or _differences(bench, roof.model.action_tokens)
    length = roof.model.action_tokens - 1
    vision = roof.vision().ms + roof.projector().ms
    possible = {
        "vision": vision,
        "prefill": roof.prefill().ms,
        "decode pass": roof.decode().ms,
        "vision and prefill": vision + roof.prefill(length).ms,
        "vision and packed pass": vision + roof.packed().ms,
    }
    return tuple(Efficiency(n, possible[n], ms, how) for n, (ms, how) in measured.items() if ms > 0)


def _flow_stages(roof: Roofline, bench: BenchFile) -> tuple[Efficiency, ...]:
    measured = bench.rows["flow"].stages_ms if "flow" in bench.rows else {}
    expert = roof.model.expert
    assert expert is not None
    possible = {
        "vision": roof.vision().ms + roof.projector().ms,
        "prefill": roof.prefix().ms,
        "decode": expert.steps * roof.expert_step().ms + roof.expert_once().ms,
    }
    return tuple(
        Efficiency(name, ms, measured[name], "its stage mark")
        for name, ms in possible.items()
        if measured.get(name)
    )


def _stages_of(bench: BenchFile) -> dict[str, tuple[float, str]]:
    row = bench.rows.get("autoregressive")
    if row is None or not {"vision", "prefill", "decode"} <= set(row.stages_ms):
        return {}
    decodes = max(row.passes - 1, 1)
    return {
        "vision": (row.stages_ms["vision"], "its stage mark"),
        "prefill": (row.stages_ms["prefill"], "its stage mark"),
        "decode pass": (row.stages_ms["decode"] / decodes, f"its stage mark / {decodes:g}"),
    }


def _differences(bench: BenchFile, tokens: int) -> dict[str, tuple[float, str]]:
    rows = bench.rows
    out: dict[str, tuple[float, str]] = {}
    hit, plain = rows.get("speculative_hit"), rows.get("autoregressive")
    if hit is not None:
        out["vision and prefill"] = (hit.median_ms, "speculative_hit")
    if hit is not None and plain is not None and tokens > 1:
        each = (plain.median_ms - hit.median_ms) / (tokens - 1)
        out["decode pass"] = (each, f"(autoregressive - speculative_hit) / {tokens - 1}")
    if "actionflow" in rows:
        out["vision and packed pass"] = (rows["actionflow"].median_ms, "actionflow")
    return out
