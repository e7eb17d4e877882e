"""A benchmark of `vla-ros bench`, read for comparison: what was measured, on which shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "bf16"}
#: rows that exist to be compared with, and rows that are bounds: neither is a choice
REFERENCES = (
    *("generate", "naive_pipe", "vanilla_speculative"),
    *("naive", "transformers", "lerobot"),  # of flow policies
)
BOUNDS = ("speculative_hit", "speculative_miss", "speculative_miss_always")
#: rows whose answer leaves with the K-th call, K the tokens of an action
PIPELINED = ("actionflow", "naive_pipe")


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One row. Milliseconds a call; ``latency_ms`` from observation to action, free-running."""

    name: str
    median_ms: float
    p95_ms: float
    latency_ms: float
    passes: float
    acceptance: float | None = None
    lossless: bool = True
    chunk: int = 1
    stages_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Calls from a frame to its answer: 7 in a pipeline of 7."""
        return max(round(self.latency_ms / self.median_ms), 1)


@dataclass(frozen=True, slots=True)
class BenchFile:
    """A benchmark. ``prompt`` and ``action_tokens`` 0 where the file has none."""

    path: str
    rows: Mapping[str, BenchRow]
    checkpoint: str = ""
    device: str = ""
    dtype: str = "bf16"
    machine: str = ""
    threads: int | None = None
    prompt: int = 0
    action_tokens: int = 0


def read_bench(path: Path) -> BenchFile:
    """Read the JSON that `vla-ros bench --json` prints, or its bench.json.

    The last line counts, so a whole saved output will do.

    Raises:
        ValueError: it is none, has no rows, or an entry is not what a benchmark writes there.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    try:
        content = _parse(text)
    except (json.JSONDecodeError, IndexError, RecursionError):
        raise ValueError(f"{path} holds no JSON: give the output of `vla-ros bench`") from None
    try:
        return _bench(str(path), content)
    except ValueError as error:
        raise ValueError(f"{path} is no benchmark of one model: {error}") from None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return json.loads(text.splitlines()[-1])


def _bench(path: str, content: Any) -> BenchFile:
    entries = _mapping("the file", content)
    shapes = _mapping("shapes", entries.get("shapes") or {})
    tokens = round(_number("shapes.action_tokens", shapes.get("action_tokens") or 0))
    decodings = _mapping("decodings", entries.get("decodings"))
    if not decodings:
        raise ValueError("decodings is empty")
    rows = {str(name): _row(str(name), row, tokens) for name, row in decodings.items()}
    machine = entries.get("machine") or ""
    if isinstance(machine, Mapping):
        machine = machine.get("gpu") or machine.get("cpu") or ""
    threads = entries.get("threads")
    return BenchFile(
        path,
        rows,
        checkpoint=str(entries.get("checkpoint") or ""),
        device=str(entries.get("device") or ""),
        dtype=DTYPES.get(str(entries.get("dtype")), "bf16"),
        machine=str(machine),
        threads=None if not threads else round(_number("threads", threads)),
        prompt=round(_number("shapes.prompt_tokens", shapes.get("prompt_tokens") or 0)),
        action_tokens=tokens,
    )


def _row(name: str, content: Any, tokens: int) -> BenchRow:
    where = f"decodings.{name}"
    row = _mapping(where, content)

    def number(key: str, default: float | None) -> float:
        given = row.get(key)
        return (
            default if given is None and default is not None else _number(f"{where}.{key}", given)
        )

    median = number("median_ms", None)
    if not median > 0:
        raise ValueError(f"{where}.median_ms is {median:g}")
    stages = _mapping(f"{where}.stages_ms", row.get("stages_ms") or {})
    return BenchRow(
        name,
        median_ms=median,
        p95_ms=number("p95_ms", median),
        latency_ms=_latency(name, row.get("latency_ms"), median, tokens),
        passes=number("passes_per_action", 0.0),
        acceptance=None if row.get("acceptance") is None else number("acceptance", None),
        lossless=bool(row.get("lossless", True)),
        chunk=max(round(number("actions_per_call", 1.0)), 1),
        stages_ms={str(k): _number(f"{where}.stages_ms.{k}", v) for k, v in stages.items()},
    )


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is {_short(value)}, not an object with entries")
    return value


def _number(where: str, value: Any) -> float:
    """A finite number, 0 or more. Below 1e9: milliseconds, tokens and threads all are."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{where} is {_short(value)}, not a number of 0 or more")
    return float(value)


def _short(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _latency(name: str, measured: Any, median: float, tokens: int) -> float:
    """The measured latency; null where fewer frames were timed than the row's pipeline is deep."""
    if measured is not None:
        return _number(f"decodings.{name}.latency_ms", measured)
    if name in PIPELINED and tokens:
        return tokens * median
    raise ValueError(
        f"decodings.{name}.latency_ms is null, so the depth of its pipeline is unknown:"
        " measure again with more frames (--timed)"
    )


def kind_of(bench: BenchFile) -> str:
    """Kind of the measured checkpoint, as its shape has it: ``tokens`` or ``parallel``.

    Where the checkpoint is not here its rows decide: no OFT checkpoint runs a token decoding,
    while the bench makes an OFT head of its own for the row ``parallel`` of a token checkpoint.
    """
    from vla_ros_lab.roofline.shapes import load_model

    try:
        return load_model(bench.checkpoint).kind
    except ValueError:
        return "parallel" if set(bench.rows) == {"parallel"} else "tokens"
