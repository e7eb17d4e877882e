"""Stages of one question as one table: the engines, formats of weights, families of policies."""

from __future__ import annotations

import math

ENGINES, WEIGHTS, FAMILIES = "engines", "weights", "families"
FIRST = ("generate", "autoregressive")  # what the others are held against


def number(value: object, form: str) -> str:
    good = isinstance(value, (int, float)) and math.isfinite(value)
    return form.format(value) if good else "-"


def ended(end: dict) -> str:
    """How a stage ended, in a word or two."""
    if not end:
        return "not run"
    if end.get("skipped"):
        return "skipped"
    if end.get("refused"):
        return "refused"
    return {0: "done", None: "out of time"}.get(end["status"], f"status {end['status']}")


def combined(stages: dict[str, dict]) -> tuple[list[str], list[str]]:
    """The tables of the three groups, and the stages that are in none of them."""
    groups: dict[str, dict[str, dict]] = {}
    for name, found in stages.items():
        groups.setdefault(found["group"], {})[name] = found
    lines = engines(groups.pop(ENGINES, {}), groups.pop(WEIGHTS, {}))
    lines += families(groups.pop(FAMILIES, {}))
    return lines, [name for group in groups.values() for name in group]


def engines(found: dict[str, dict], formats: dict[str, dict]) -> list[str]:
    """Every decoding and drafter beside `generate`, each from a process of its own; then the same
    engine with weights in fewer bits, beside itself with them as they are stored."""
    if not found and not formats:
        return []
    rows = {name: row_of(stage) for name, stage in {**found, **formats}.items()}
    reference = next((r for n in FIRST if (r := rows.get(f"engine-{n}"))), {})
    plain = rows.get("engine-autoregressive", {})
    title = next((s["bench"] for s in found.values() if s["bench"]), {})
    lines = ["", f"## Engines: `{title.get('checkpoint', '')}`, {title.get('dtype', '')}", ""]
    lines.append(
        "Each in a process of its own. Same: of the frames that both answered, as many with"
        f" the tokens of {'`generate`' if rows.get('engine-generate') else 'the first'}."
    )
    lines += heads("engine", "ms", "p95", "rate Hz", "latency ms", "passes", "times generate",
                   "same %", "captured in service", "GPU MB", "ended")  # fmt: skip
    for name, stage in found.items():
        lines.append(engine_line(name.removeprefix("engine-"), stage, rows[name], reference))
    if formats:
        lines += ["", "## Weights in fewer bits, `autoregressive`"]
        lines += heads("weights", "ms", "p95", "rate Hz", "latency ms", "passes", "times as stored",
                       "same %", "captured in service", "GPU MB", "ended")  # fmt: skip
        if plain:
            stage = found["engine-autoregressive"]
            lines.append(engine_line("as stored", stage, plain, plain))
        for name, stage in formats.items():
            lines.append(engine_line(name.removeprefix("weights-"), stage, rows[name], plain))
    return lines


def engine_line(name: str, stage: dict, row: dict, reference: dict) -> str:
    times = ratio(reference.get("median_ms"), row.get("median_ms"))
    captured = stage["bench"].get("captures", {}).get("in_service")
    cells = [
        name, number(row.get("median_ms"), "{:.2f}"), number(row.get("p95_ms"), "{:.2f}"),
        number(row.get("rate_hz"), "{:.2f}"), number(row.get("latency_ms"), "{:.2f}"),
        number(row.get("passes_per_action"), "{:.2f}"), number(times, "{:.2f}"),
        number(same(row.get("said", ""), reference.get("said", "")), "{:.0f}"),
        number(captured, "{}"), number(row.get("peak_memory_mb"), "{:.0f}"), how(stage["end"]),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def families(found: dict[str, dict]) -> list[str]:
    """The policies with an action head, by phases."""
    if not found:
        return []
    lines = ["", "## Families, random weights of the shapes named"]
    lines += heads("family", "parameters", "vision ms", "prefix ms", "a step ms", "steps",
                   "chunk ms", "p95", "chunks/s", "ended")  # fmt: skip
    for name, stage in found.items():
        row, shapes = row_of(stage), stage["bench"].get("shapes", {})
        spent, steps = row.get("stages_ms", {}), shapes.get("steps")
        many = shapes.get("parameters")
        cells = [
            name.removeprefix("family-"),
            number(many / 1e6 if many else None, "{:.0f} M"),
            number(spent.get("vision"), "{:.2f}"), number(spent.get("prefill"), "{:.2f}"),
            number(row.get("step_ms"), "{:.3f}"), number(steps, "{}"),
            number(row.get("median_ms"), "{:.2f}"), number(row.get("p95_ms"), "{:.2f}"),
            number(row.get("rate_hz"), "{:.2f}"), how(stage["end"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def heads(*names: str) -> list[str]:
    return ["", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def row_of(stage: dict) -> dict:
    """The only row of a stage; {} where there is none."""
    found: dict = next(iter(stage["bench"].get("decodings", {}).values()), {})
    return found


def how(end: dict) -> str:
    """With its line, where it did not end well."""
    word = ended(end)
    if word == "done" or word == "not run":
        return word
    line = str(end.get("skipped") or end.get("last", "")).replace("|", "/")
    return f"{word}: {line}" if line else word


def ratio(other: object, own: object) -> float | None:
    if isinstance(other, (int, float)) and isinstance(own, (int, float)) and own:
        return other / own
    return None


def same(own: str, other: str) -> float | None:
    """Per cent of the frames that both answered; None where there are none."""
    pairs = [(a, b) for a, b in zip(own.split(), other.split(), strict=False) if "-" not in (a, b)]
    return 100.0 * sum(a == b for a, b in pairs) / len(pairs) if pairs else None
