"""A roofline as values for JSON, and as text for a person."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from vla_ros.core.console import Table, text_of
from vla_ros.engine.decoding.draft_heads import LEVELS
from vla_ros.engine.decoding.draft_tree import Budget
from vla_ros_lab.roofline.advice import Requirements
from vla_ros_lab.roofline.decodings import PHASES, DecodingTime, HeadTime, ServedRate
from vla_ros_lab.roofline.devices import Device
from vla_ros_lab.roofline.published import NOT_REPRODUCED
from vla_ros_lab.roofline.roofline import Memory, Roofline
from vla_ros_lab.roofline.shapes import ModelShape
from vla_ros_lab.roofline.speculation import MISSED, break_even, expected_tokens, fused, speedup
from vla_ros_lab.roofline.work import COMPUTE, PARTS


def roofline(roof: Roofline, found: Sequence[DecodingTime], camera_hz: float) -> dict[str, Any]:
    """Model, device, stages and decodings."""
    columns = decoding_columns(camera_hz, found[0])
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
        "stages": [STAGES.json(s) for s in roof.stages()],
        "decodings": {s.name: columns.json(s) for s in found},
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


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table and a key of JSON: its ``value`` of a row, and the value's text. ``head``
    "": of JSON alone; ``key`` "": of the table alone."""

    head: str
    key: str
    value: Callable[[Any], Any]
    text: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind of row."""

    columns: tuple[Column, ...]

    def table(self, rows: Iterable[Any]) -> str:
        """The rows as text."""
        own = [column for column in self.columns if column.head]
        lines = [[column.text(column.value(row)) for column in own] for row in rows]
        return table([column.head for column in own], lines)

    def json(self, row: Any) -> dict[str, Any]:
        """A row as values."""
        return {column.key: column.value(row) for column in self.columns if column.key}


def _ms(value: float) -> str:
    return ms(value / 1e3)


def _plain(digits: int, unit: str = "") -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}{unit}"


STAGES = Columns((
    Column("stage", "stage", lambda s: s.name),
    Column("arithmetic", "flop", lambda s: s.flops, lambda v: scaled(v, "FLOP")),
    Column("traffic", "bytes", lambda s: s.bytes, lambda v: scaled(v, "B")),
    Column("FLOP/B", "flop_per_byte", lambda s: s.intensity, _plain(1)),
    Column("bound by", "bound", lambda s: s.bound),
    Column("ms", "ms", lambda s: s.ms, _ms),
))  # fmt: skip
FIGURES = Columns((
    Column("figure", "figure", lambda f: f.name),
    Column("", "unit", lambda f: f.unit),
    Column("", "published", lambda f: f.published),
    Column("", "ours", lambda f: f.ours),
    Column("published", "", lambda f: f"{f.published:g} {f.unit}".strip()),
    Column("ours", "", lambda f: f"{f.ours:.3g} {f.unit}".strip()),
    Column("off", "off", lambda f: f.off, lambda v: f"{100 * v:+.1f} %"),
    Column("within 10 %", "within_10_percent", lambda f: f.reproduced,
           lambda v: "yes" if v else "NO"),
    Column("how", "note", lambda f: f.note),
))  # fmt: skip
_AGES = (
    Column("observation ms", "usual_observation_ms", lambda v: v.usual_s * 1e3, _plain(0)),
    Column("at worst", "oldest_observation_ms", lambda v: v.age_s * 1e3, _plain(0)),
)
VERDICTS = Columns((
    Column("meets", "meets", lambda v: v.meets, lambda v: "yes" if v else "no"),
    Column("decoding", "decoding", lambda v: v.candidate.name),
    Column("", "lossless", lambda v: v.candidate.lossless),
    Column("ms", "ms", lambda v: v.candidate.seconds * 1e3, _ms),
    Column("answers/s", "answers_hz", lambda v: v.answers_hz, lambda v: hz(v)),
    Column("actions/s", "actions_hz", lambda v: v.actions_hz, lambda v: hz(v)),
    *_AGES,
    Column("remark", "", lambda v: "; ".join(filter(None, (*v.missing, v.candidate.note)))
           or v.parameters),
    Column("", "missing", lambda v: list(v.missing)),
    Column("", "executed", lambda v: v.executed),
    Column("", "parameters", lambda v: v.parameters),
    Column("", "note", lambda v: v.candidate.note),
))  # fmt: skip
EXECUTED = Columns((
    Column("executed of a chunk", "", lambda v: v.executed),
    Column("actions/s", "", lambda v: v.actions_hz, lambda v: hz(v)),
    *_AGES,
    Column("meets", "", lambda v: "yes" if v.meets else "; ".join(v.missing)),
))  # fmt: skip


def decoding_columns(camera_hz: float, plain: DecodingTime) -> Columns:
    """Columns of a decoding: free-running, beside the ``plain`` one, and behind the camera."""
    camera = f"{camera_hz:g} Hz"
    return Columns((
        Column("decoding", "", lambda s: s.name),
        Column("passes", "passes", lambda s: s.passes, _plain(2)),
        Column("deep", "depth", lambda s: s.depth),
        Column("ms", "ms", lambda s: s.seconds * 1e3, _ms),
        Column("Hz", "rate_hz", lambda s: s.rate_hz, hz),
        Column("latency ms", "latency_ms", lambda s: s.latency_s * 1e3, _ms),
        Column(f"x {plain.name[:4]}.", "", lambda s: plain.seconds / s.seconds, _plain(2)),
        Column(f"Hz at {camera}", "clocked_rate_hz", lambda s: s.clocked(camera_hz).rate_hz, hz),
        Column("latency ms", "clocked_latency_ms",
               lambda s: s.clocked(camera_hz).latency_s * 1e3, _ms),
        Column("worst ms", "clocked_worst_ms", lambda s: s.clocked(camera_hz).worst_s * 1e3, _ms),
        Column("", "draft_passes", lambda s: s.draft_passes),
        Column("", "chunk", lambda s: s.chunk),
        Column("", "alpha", lambda s: s.alpha),
        Column("", "coverage", lambda s: s.coverage),
        Column("", "camera_hz", lambda s: camera_hz),
        Column("", "share", lambda s: s.shares),
    ))  # fmt: skip


def served_columns(
    given: Mapping[str, ServedRate], first: DecodingTime, camera_hz: float
) -> Columns:
    """Columns of a policy whose answers are chunks: a chunk's time, actions a second, and the age
    of their observation."""
    executed = given[first.name].executed
    return Columns((
        Column(f"{executed} of {first.chunk} executed", "", lambda s: s.name),
        Column("ms a chunk", "", lambda s: s.seconds, ms),
        Column("actions/s", "", lambda s: given[s.name].executed * s.rate_hz, hz),
        Column("", "executed", lambda s: given[s.name].executed),
        Column(f"actions/s at {camera_hz:g} Hz", "actions_hz",
               lambda s: given[s.name].actions_hz, hz),
        Column("observation ms", "observation_ms", lambda s: given[s.name].age_s * 1e3, _ms),
        Column("at worst", "oldest_observation_ms", lambda s: given[s.name].worst_s * 1e3, _ms),
    ))  # fmt: skip


def efficiency_columns(title: str) -> Columns:
    """Columns of what is possible beside what was measured."""
    return Columns((
        Column(title, "", lambda e: e.name),
        Column("possible ms", "possible_ms", lambda e: e.possible_ms, _ms),
        Column("measured ms", "measured_ms", lambda e: e.measured_ms, _ms),
        Column("reached", "efficiency", lambda e: e.efficiency, lambda v: f"{100 * v:.0f} %"),
        Column("measured by", "", lambda e: e.how),
    ))  # fmt: skip


def coverage_columns(plain: DecodingTime) -> Columns:
    """Columns of a recursive head by its coverage."""
    return Columns((
        Column("coverage", "coverage", lambda s: s.coverage, _plain(2)),
        Column("levels", "levels", lambda s: s.draft_levels),
        Column("passes", "passes", lambda s: s.passes, _plain(2)),
        Column("head's", "head_passes", lambda s: s.draft_passes, _plain(1)),
        Column("ms", "ms", lambda s: s.seconds * 1e3, _ms),
        Column(f"x {plain.name[:4]}.", "", lambda s: plain.seconds / s.seconds, _plain(2)),
    ))  # fmt: skip


def limits_line(limits: Requirements) -> str:
    """The limits of an advice."""
    return (
        f"camera {limits.camera_hz:g} Hz, actions {limits.action_hz:g} Hz, commands"
        f" {limits.control_hz:g} Hz, observation at most {limits.max_age_s * 1e3:g} ms old when a"
        " command is issued"
    )


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


def not_reproduced() -> str:
    """Reasons why some published figures are not those of a roofline."""
    return "\n".join(f"- {line}" for line in NOT_REPRODUCED)


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
