"""A roofline as values for JSON, and as text for a person."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from vla_ros.core.console import Table, text_of
from vla_ros.engine.decoding.draft_heads import LEVELS
from vla_ros.engine.decoding.draft_tree import Budget
from vla_ros_lab.roofline.advice import CandidateVerdict, Requirements
from vla_ros_lab.roofline.compare import Efficiency
from vla_ros_lab.roofline.decodings import PHASES, DecodingTime, HeadTime, ServedRate
from vla_ros_lab.roofline.devices import Device
from vla_ros_lab.roofline.published import NOT_REPRODUCED, Figure
from vla_ros_lab.roofline.roofline import Memory, Roofline, StageTime
from vla_ros_lab.roofline.shapes import ModelShape
from vla_ros_lab.roofline.speculation import MISSED, break_even, expected_tokens, fused, speedup
from vla_ros_lab.roofline.work import COMPUTE, PARTS


def stage(found: StageTime) -> dict[str, Any]:
    return {
        "stage": found.name,
        "flop": found.flops,
        "bytes": found.bytes,
        "flop_per_byte": found.intensity,
        "bound": found.bound,
        "ms": found.ms,
    }


def decoding(found: DecodingTime, camera_hz: float) -> dict[str, Any]:
    clock = found.clocked(camera_hz)
    return {
        "ms": found.seconds * 1e3,
        "rate_hz": found.rate_hz,
        "latency_ms": found.latency_s * 1e3,
        "passes": found.passes,
        "draft_passes": found.draft_passes,
        "depth": found.depth,
        "chunk": found.chunk,
        "alpha": found.alpha,
        "coverage": found.coverage,
        "camera_hz": camera_hz,
        "clocked_rate_hz": clock.rate_hz,
        "clocked_latency_ms": clock.latency_s * 1e3,
        "clocked_worst_ms": clock.worst_s * 1e3,
        "share": found.shares,
    }


def roofline(roof: Roofline, found: Iterable[DecodingTime], camera_hz: float) -> dict[str, Any]:
    """Model, device, stages and decodings."""
    return {
        "model": roof.model.name,
        "device": roof.device.name,
        "device_title": roof.device.title,
        "dtype": {part: getattr(roof.precision, part) for part in PARTS},
        "rates": roof.rates,
        "accounting": roof.accounting,
        "prompt_tokens": roof.model.prompt,
        "images": roof.model.images,
        "memory_gb": memory(roof.memory()),
        "device_gb": roof.device.memory_gb or None,
        "fits": roof.fits(),
        "stages": [stage(s) for s in roof.stages()],
        "decodings": {s.name: decoding(s, camera_hz) for s in found},
    }


def memory(found: Memory) -> dict[str, float]:
    """Gigabytes (10^9 bytes) by what takes them."""
    parts = {field.name: getattr(found, field.name) / 1e9 for field in fields(found)}
    return {**parts, "total": found.total / 1e9}


def speculation(c: float, gamma: int, alpha: float, tokens: int) -> dict[str, Any]:
    """Gain by a draft of relative cost c, unfused and fused into the prefill."""
    return {
        "c": c,
        "gamma": gamma,
        "alpha": alpha,
        "expected_tokens": expected_tokens(alpha, gamma),
        "speedup": speedup(alpha, gamma, c),
        "break_even_alpha": break_even(gamma, c),
        "expected_passes_fused": fused(alpha, tokens, gamma).passes,
    }


def efficiencies(found: Iterable[Efficiency]) -> dict[str, Any]:
    return {
        e.name: {
            "possible_ms": e.possible_ms,
            "measured_ms": e.measured_ms,
            "efficiency": e.efficiency,
        }
        for e in found
    }


def figures(found: Iterable[Figure]) -> list[dict[str, Any]]:
    return [
        {
            "figure": f.name,
            "unit": f.unit,
            "published": f.published,
            "ours": f.ours,
            "off": f.off,
            "within_10_percent": f.reproduced,
            "note": f.note,
        }
        for f in found
    ]


def verdicts(found: Sequence[CandidateVerdict]) -> list[dict[str, Any]]:
    return [
        {
            "decoding": v.candidate.name,
            "lossless": v.candidate.lossless,
            "meets": v.meets,
            "missing": list(v.missing),
            "ms": v.candidate.seconds * 1e3,
            "answers_hz": v.answers_hz,
            "commands_hz": v.commands_hz,
            "usual_observation_ms": v.usual_s * 1e3,
            "oldest_observation_ms": v.age_s * 1e3,
            "executed": v.executed,
            "parameters": v.parameters,
            "note": v.candidate.note,
        }
        for v in found
    ]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the first and text columns left, numbers right."""
    rows = [list(row) for row in rows]
    left = [head for i, head in enumerate(heads) if not _numeric([row[i] for row in rows])]
    return text_of(Table(heads, rows, left=left), width=10_000)


_NUMBER = re.compile(r"[-+]?[\d.]+( ?[A-Za-z%/]{1,6})?( \(.*\))?")


def _numeric(cells: Sequence[str]) -> bool:
    """Whether a column holds numbers, with a unit or a second number in brackets."""
    return all(_NUMBER.fullmatch(cell) for cell in cells if cell not in ("", "-"))


def scaled(value: float, unit: str) -> str:
    """12.3 G: three digits with a unit prefix."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def ms(seconds: float) -> str:
    """Milliseconds with about three digits."""
    value = seconds * 1e3
    return f"{value:.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def hz(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}"


def heading(roof: Roofline) -> str:
    """Model, device, formats and memory of a roofline."""
    model, device, precision = roof.model, roof.device, roof.precision
    formats = ", ".join(
        f"{part} {getattr(precision, part)}" for part in ("vision", "decoder", "head", "kv")
    )
    parts = (COMPUTE[getattr(precision, part)] for part in PARTS if part != "kv")
    used = dict.fromkeys(map(device.computes, parts))
    rates = ", ".join(f"{device.flops(d, roof.rates) / 1e12:.4g} TFLOP/s {d}" for d in used)
    lines = [
        f"{model.name} on {device.title}",
        f"  {formats}; {model.images} image(s), {model.prompt} prompt tokens,"
        f" {model.action_tokens} action tokens",
        f"  memory: {memory_line(roof.memory())}",
        f"  {roof.rates} rates: {device.bandwidth(roof.rates) / 1e9:.4g} GB/s, {rates}",
        f"  counted by {roof.accounting}; shape from {model.source}",
    ]
    lines += [f"  note: {note}" for note in (*model.notes, device.notes) if note]
    if not roof.fits():
        lines.append(f"  WARNING: that does not fit the {device.memory_gb:.3g} GB of this device")
    return "\n".join(lines)


def memory_line(memory: Memory) -> str:
    """Sizes of the parts of memory."""
    parts = (
        (memory.weights, "weights"),
        (memory.cache, "cache"),
        (memory.activations, "activations"),
        (memory.runtime, "CUDA and graphs (assumed)"),
    )
    sizes = ", ".join(f"{scaled(size, 'B')} {what}" for size, what in parts)
    return f"{scaled(memory.total, 'B')}: {sizes}"


def stage_table(stages: Iterable[StageTime]) -> str:
    """One line a stage."""
    rows = [
        (
            s.name,
            scaled(s.flops, "FLOP"),
            scaled(s.bytes, "B"),
            f"{s.intensity:.1f}",
            s.bound,
            ms(s.seconds),
        )
        for s in stages
    ]
    return table(("stage", "arithmetic", "traffic", "FLOP/B", "bound by", "ms"), rows)


def decoding_table(found: Sequence[DecodingTime], camera_hz: float) -> str:
    """One line a decoding, free-running and behind the camera, and the share of each phase."""
    plain = found[0]
    rows = []
    for s in found:
        clock = s.clocked(camera_hz)
        rows.append((
            s.name, f"{s.passes:.2f}", f"{s.depth}", ms(s.seconds), hz(s.rate_hz), ms(s.latency_s),
            f"{plain.seconds / s.seconds:.2f}", hz(clock.rate_hz), ms(clock.latency_s),
            ms(clock.worst_s),
        ))  # fmt: skip
    camera = f"{camera_hz:g} Hz"
    heads = (
        "decoding", "passes", "deep", "ms", "Hz", "latency ms", f"x {plain.name[:4]}.",
        f"Hz at {camera}", "latency ms", "worst ms",
    )  # fmt: skip
    return table(heads, rows)


def share_table(found: Iterable[DecodingTime]) -> str:
    """The part of an inference that each phase takes."""
    found = list(found)
    used = [p for p in PHASES if any(p in s.shares for s in found)]
    rows = [
        (s.name, *(f"{100 * s.shares[p]:.1f} %" if p in s.shares else "-" for p in used))
        for s in found
    ]
    return table(("share of the time", *used), rows)


def device_table(roofs: Iterable[Roofline], found: Iterable[Sequence[DecodingTime]]) -> str:
    """One line a device: the stages, and rate and free-running latency of each decoding."""
    rows = []
    names: list[str] = []
    for roof, times in zip(roofs, found, strict=True):
        times = [
            t for t in times if t.name not in ("speculative_miss", "vanilla_speculative", "naive")
        ]
        names = [t.name for t in times]
        phases = dict(times[0].phases)
        vision = phases["vision"] + phases["projector"]
        cells = [roof.device.name, ms(vision), ms(phases["prefill"])]
        cells += [f"{ms(t.seconds)} ({hz(t.rate_hz)} Hz)" for t in times]
        cells.append(ms(max(t.latency_s for t in times)))
        rows.append([*cells, "" if roof.fits() else "does not fit"])
    heads = ("device", "vision ms", "prefill ms", *names, "longest latency ms", "")
    return table(heads, rows)


def figure_table(figures: Iterable[Figure]) -> str:
    """Published beside ours."""
    rows = [
        (
            f.name,
            f"{f.published:g} {f.unit}".strip(),
            f"{f.ours:.3g} {f.unit}".strip(),
            f"{100 * f.off:+.1f} %",
            "yes" if f.reproduced else "NO",
            f.note,
        )
        for f in figures
    ]
    return table(("figure", "published", "ours", "off", "within 10 %", "how"), rows)


def not_reproduced() -> str:
    """Reasons why some published figures are not those of a roofline."""
    return "\n".join(f"- {line}" for line in NOT_REPRODUCED)


def efficiency_table(title: str, found: Iterable[Efficiency]) -> str:
    """Possible beside measured."""
    rows = [
        (
            e.name,
            ms(e.possible_ms / 1e3),
            ms(e.measured_ms / 1e3),
            f"{100 * e.efficiency:.0f} %",
            e.how,
        )
        for e in found
    ]
    return table((title, "possible ms", "measured ms", "reached", "measured by"), rows)


def model_list(models: Iterable[ModelShape]) -> str:
    """The known models."""
    rows = [(m.name, m.kind, f"{m.prompt}", f"{m.chunk}", m.source) for m in models]
    return table(("model", "actions by", "prompt", "chunk", "shape from"), rows)


def device_list(devices: Iterable[Device]) -> str:
    """The known devices, each figure with its source below it."""
    blocks = []
    for device in devices:
        figures = {"GB/s": (device.memory, 1e9)}
        figures |= {f"TFLOP/s {d}": (r, 1e12) for d, r in device.compute.items()}
        rows = [
            (
                f"  {name}", f"{rate.peak / unit:.4g}", rate.peak_from,
                f"{rate.achieved / unit:.4g}", rate.achieved_from,
            )
            for name, (rate, unit) in figures.items()
        ]  # fmt: skip
        head = (device.name, "peak", "from", "achieved", "from")
        note = f"\n  {device.notes}" if device.notes else ""
        blocks.append(f"{device.title}{note}\n{table(head, rows)}")
    return "\n\n".join(blocks)


def executed_table(verdicts: Sequence[CandidateVerdict]) -> str:
    """One line a number of actions executed of every chunk."""
    rows = [
        (
            f"{v.executed}", hz(v.commands_hz), f"{v.usual_s * 1e3:.0f}", f"{v.age_s * 1e3:.0f}",
            "yes" if v.meets else "; ".join(v.missing),
        )
        for v in verdicts
    ]  # fmt: skip
    heads = ("executed of a chunk", "commands/s", "observation ms", "at worst", "meets")
    return table(heads, rows)


def verdict_table(verdicts: Sequence[CandidateVerdict], limits: Requirements) -> str:
    """Advice, best first."""
    rows = [
        (
            "yes" if v.meets else "no", v.candidate.name, ms(v.candidate.seconds),
            hz(v.answers_hz), hz(v.commands_hz), f"{v.usual_s * 1e3:.0f}", f"{v.age_s * 1e3:.0f}",
            "; ".join(filter(None, (*v.missing, v.candidate.note))) or v.parameters,
        )
        for v in verdicts
    ]  # fmt: skip
    heads = (
        "meets",
        "decoding",
        "ms",
        "answers/s",
        "commands/s",
        "observation ms",
        "at worst",
        "remark",
    )
    limit = (
        f"camera {limits.camera_hz:g} Hz, control {limits.control_hz:g} Hz, observation at most"
        f" {limits.max_age_s * 1e3:g} ms old when a command is issued"
    )
    return f"{limit}\n\n{table(heads, rows)}"


def served_table(
    found: Sequence[DecodingTime], given: Mapping[str, ServedRate], camera_hz: float
) -> str:
    """One line a decoding: a chunk's time, actions a second, and how old their observation is."""
    rows = [
        (
            s.name, ms(s.seconds), hz(given[s.name].executed * s.rate_hz),
            hz(given[s.name].actions_hz), ms(given[s.name].age_s), ms(given[s.name].worst_s),
        )
        for s in found
    ]  # fmt: skip
    executed = given[found[0].name].executed
    heads = (
        f"{executed} of {found[0].chunk} executed", "ms a chunk", "actions/s",
        f"actions/s at {camera_hz:g} Hz", "observation ms", "at worst",
    )  # fmt: skip
    return table(heads, rows)


def head_line(head: HeadTime, given: DecodingTime, assumed: bool) -> str:
    """Costs of a level, and the source of the coverage."""
    level, taps = head.level, head.taps
    lines = [
        f"recursive head, {head.width} wide: a level reads {scaled(level.bytes, 'B')},"
        f" {scaled(level.flops, 'FLOP')}, {ms(level.seconds)} ms ({level.bound}); the taps once a"
        f" round {scaled(taps.bytes, 'B')}, {ms(taps.seconds)} ms",
        f"  {given.draft_levels} of at most {LEVELS} levels, trees of {Budget().alone} nodes,"
        f" {given.draft_passes:.1f} passes of the head a chunk",
    ]
    if assumed:
        lines.append(
            f"  assumed: coverage {given.coverage:.2f}, as the head misses {MISSED:g} of what the"
            f" last chunk misses at alpha {given.alpha:g}; give --coverage if you know it"
        )
    return "\n".join(lines)


def coverage_table(rows: Sequence[DecodingTime], plain: DecodingTime) -> str:
    """One line a coverage; the last is what the decoding above was calculated with."""
    cells = [
        (
            f"{s.coverage:.2f}", f"{s.draft_levels}", f"{s.passes:.2f}", f"{s.draft_passes:.1f}",
            ms(s.seconds), f"{plain.seconds / s.seconds:.2f}",
        )
        for s in rows
    ]  # fmt: skip
    return table(("coverage", "levels", "passes", "head's", "ms", f"x {plain.name[:4]}."), cells)
