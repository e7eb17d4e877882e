"""A benchmark of `vla-ros bench`, read for comparison: what was measured, on which shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "bf16"}
#: rows that exist to be compared with, and rows that are bounds: nobody would choose them
REFERENCES = ("generate", "naive_pipe", "vanilla_speculative")
BOUNDS = ("speculative_hit", "speculative_miss", "speculative_miss_always")
#: rows whose answer leaves with the K-th call, K the tokens of an action
PIPELINED = ("actionflow", "naive_pipe")


@dataclass(frozen=True, slots=True)
class Measured:
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
    """A benchmark. ``prompt`` and ``action_tokens`` 0 where the file does not say."""

    path: str
    rows: Mapping[str, Measured]
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
        ValueError: it is none, or has no rows.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    try:
        content = _parse(text)
        return _bench(str(path), content)
    except (json.JSONDecodeError, IndexError):
        raise ValueError(f"{path} holds no JSON: give the output of `vla-ros bench`") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{path} is no benchmark of one model: {error!r} is missing") from None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return json.loads(text.splitlines()[-1])


def _bench(path: str, content: Mapping[str, Any]) -> BenchFile:
    shapes = content.get("shapes") or {}
    tokens = int(shapes.get("action_tokens") or 0)
    rows = {name: _row(name, row, tokens) for name, row in content["schedules"].items()}
    if not rows:
        raise KeyError("schedules")
    machine = content.get("machine") or {}
    if isinstance(machine, Mapping):
        machine = machine.get("gpu") or machine.get("cpu") or ""
    return BenchFile(
        path,
        rows,
        checkpoint=str(content.get("checkpoint") or ""),
        device=str(content.get("device") or ""),
        dtype=DTYPES.get(str(content.get("dtype")), "bf16"),
        machine=str(machine),
        threads=content.get("threads"),
        prompt=int(shapes.get("prompt_tokens") or 0),
        action_tokens=tokens,
    )


def _row(name: str, row: Mapping[str, Any], tokens: int) -> Measured:
    median = float(row["median_ms"])
    if not median > 0:
        raise KeyError(f"schedules.{name}.median_ms above 0")
    return Measured(
        name,
        median_ms=median,
        p95_ms=float(row.get("p95_ms") or median),
        latency_ms=_latency(name, row.get("latency_ms"), median, tokens),
        passes=float(row.get("passes_per_action") or 0.0),
        acceptance=row.get("acceptance"),
        lossless=bool(row.get("lossless", True)),
        chunk=int(row.get("actions_per_call") or 1),
        stages_ms=row.get("stages_ms") or {},
    )


def _latency(name: str, measured: float | None, median: float, tokens: int) -> float:
    """What was measured; null where fewer frames were timed than the row's pipeline is deep."""
    if measured is not None:
        return float(measured)
    if name in PIPELINED and tokens:
        return tokens * median
    raise ValueError(
        f"schedules.{name}.latency_ms is null, so nobody knows how deep its pipeline is:"
        " measure again with more frames (--timed)"
    )


def kind_of(bench: BenchFile) -> str:
    """How the measured checkpoint makes actions: ``tokens`` or ``parallel``, as its shape says.

    Where the checkpoint is not here its rows say it: no OFT checkpoint runs a token schedule,
    while the bench makes an OFT head of its own for the row ``parallel`` of a token checkpoint.
    """
    from vla_ros.analysis.models import load_model

    try:
        return load_model(bench.checkpoint).kind
    except ValueError:
        return "parallel" if set(bench.rows) == {"parallel"} else "tokens"
