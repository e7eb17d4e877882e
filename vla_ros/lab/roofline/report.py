"""A roofline as text that a person can read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vla_ros.analysis.advice import Requirements, Verdict
from vla_ros.analysis.compare import Efficiency
from vla_ros.analysis.devices import Device
from vla_ros.analysis.memory import Memory
from vla_ros.analysis.published import NOT_REPRODUCED, Figure
from vla_ros.analysis.roofline import Roofline, StageTime
from vla_ros.analysis.schedule_time import PHASES, ScheduleTime
from vla_ros.analysis.shapes import ModelShape
from vla_ros.analysis.work import COMPUTE, PARTS


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the first and text columns left, numbers right."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    left = [i == 0 or not _numeric([line[i] for line in lines[1:]]) for i in range(len(heads))]

    def shown(line: Sequence[str]) -> str:
        cells = [
            c.ljust(w) if to_left else c.rjust(w)
            for c, w, to_left in zip(line, widths, left, strict=True)
        ]
        return "  ".join(cells).rstrip()

    return "\n".join(shown(line) for line in lines)


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
    """What is calculated for what."""
    model, device, precision = roof.model, roof.device, roof.precision
    formats = ", ".join(
        f"{part} {getattr(precision, part)}" for part in ("vision", "decoder", "head", "kv")
    )
    used = dict.fromkeys(COMPUTE[getattr(precision, part)] for part in PARTS if part != "kv")
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
    """What takes how much."""
    parts = (
        (memory.weights, "weights"),
        (memory.cache, "cache"),
        (memory.activations, "activations"),
        (memory.runtime, "CUDA and graphs (assumed)"),
    )
    said = ", ".join(f"{scaled(size, 'B')} {what}" for size, what in parts)
    return f"{scaled(memory.total, 'B')}: {said}"


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


def schedule_table(found: Sequence[ScheduleTime], camera_hz: float) -> str:
    """One line a schedule, free-running and behind the camera, and the share of each phase."""
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
        "schedule", "passes", "deep", "ms", "Hz", "latency ms", f"x {plain.name[:4]}.",
        f"Hz at {camera}", "latency ms", "worst ms",
    )  # fmt: skip
    return table(heads, rows)


def share_table(found: Iterable[ScheduleTime]) -> str:
    """The part of an inference that each phase takes."""
    found = list(found)
    used = [p for p in PHASES if any(p in s.shares for s in found)]
    rows = [
        (s.name, *(f"{100 * s.shares[p]:.1f} %" if p in s.shares else "-" for p in used))
        for s in found
    ]
    return table(("share of the time", *used), rows)


def device_table(roofs: Iterable[Roofline], found: Iterable[Sequence[ScheduleTime]]) -> str:
    """One line a device: the stages, and rate and free-running latency of each schedule."""
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
    """Why some published figures are not what a roofline gives."""
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


def executed_table(verdicts: Sequence[Verdict]) -> str:
    """What executing so much of every chunk gives."""
    rows = [
        (
            f"{v.executed}", hz(v.commands_hz), f"{v.usual_s * 1e3:.0f}", f"{v.age_s * 1e3:.0f}",
            "yes" if v.meets else "; ".join(v.missing),
        )
        for v in verdicts
    ]  # fmt: skip
    heads = ("executed of a chunk", "commands/s", "evidence ms", "at worst", "meets")
    return table(heads, rows)


def verdict_table(verdicts: Sequence[Verdict], limits: Requirements) -> str:
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
        "schedule",
        "ms",
        "answers/s",
        "commands/s",
        "evidence ms",
        "at worst",
        "remark",
    )
    limit = (
        f"camera {limits.camera_hz:g} Hz, control {limits.control_hz:g} Hz, evidence at most"
        f" {limits.max_age_s * 1e3:g} ms old when a command is issued"
    )
    return f"{limit}\n\n{table(heads, rows)}"
