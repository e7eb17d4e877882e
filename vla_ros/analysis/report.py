"""A roofline as plain values for JSON: lists, numbers and strings only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from vla_ros.analysis.advice import Verdict
from vla_ros.analysis.compare import Efficiency
from vla_ros.analysis.memory import Memory
from vla_ros.analysis.published import Figure
from vla_ros.analysis.roofline import Roofline, StageTime
from vla_ros.analysis.schedule_time import ScheduleTime
from vla_ros.analysis.speculation import break_even, expected_tokens, fused, speedup
from vla_ros.analysis.work import PARTS


def rounded(value: Any) -> Any:
    """Floats to six significant digits, at any depth."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    return value


def stage(found: StageTime) -> dict[str, Any]:
    return {
        "stage": found.name,
        "flop": found.flops,
        "bytes": found.bytes,
        "flop_per_byte": found.intensity,
        "bound": found.bound,
        "ms": found.ms,
    }


def schedule(found: ScheduleTime, camera_hz: float) -> dict[str, Any]:
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


def roofline(roof: Roofline, found: Iterable[ScheduleTime], camera_hz: float) -> dict[str, Any]:
    """Model, device, stages and schedules."""
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
        "schedules": {s.name: schedule(s, camera_hz) for s in found},
    }


def memory(found: Memory) -> dict[str, float]:
    """Gigabytes (10^9 bytes) by what takes them."""
    parts = {field.name: getattr(found, field.name) / 1e9 for field in fields(found)}
    return {**parts, "total": found.total / 1e9}


def speculation(c: float, gamma: int, alpha: float, tokens: int) -> dict[str, Any]:
    """What a draft of relative cost c is worth, unfused and fused into the prefill."""
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


def verdicts(found: Sequence[Verdict]) -> list[dict[str, Any]]:
    return [
        {
            "schedule": v.candidate.name,
            "lossless": v.candidate.lossless,
            "meets": v.meets,
            "missing": list(v.missing),
            "ms": v.candidate.seconds * 1e3,
            "answers_hz": v.answers_hz,
            "commands_hz": v.commands_hz,
            "usual_evidence_ms": v.usual_s * 1e3,
            "oldest_evidence_ms": v.age_s * 1e3,
            "executed": v.executed,
            "parameters": v.parameters,
            "note": v.candidate.note,
        }
        for v in found
    ]
