"""What `vla-ros demo` found out: one result, as a card of text and as one line of JSON.

All figures are those of the episode alone, from the first action to the end: neither
loading nor warm-up is in them.
"""

from __future__ import annotations

import json
import os
import platform
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vla_ros.timing import Distribution

WIDTH = 72  # of the card, with its frame
_LABEL = 18
_RANDOM = "random"  # a checkpoint of weights drawn from a seed is called random:<size>


@dataclass(frozen=True, slots=True)
class Setup:
    """What ran, and where."""

    mode: str
    policy: str
    schedule: str
    checkpoint: str
    device: str
    dtype: str
    machine: str
    version: str

    @property
    def can_solve(self) -> bool:
        """Whether success can be asked for: nobody expects it of no policy or random weights."""
        return self.policy != "zero" and not self.checkpoint.startswith(_RANDOM)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """One episode. Rates in Hz, distributions in ms, ``episode_s`` in seconds of wall time.

    ``ended``: how the episode ended, "success", "failure" or "timeout". ``trouble`` are
    lines about the graph that the user should read (a node that did not end cleanly).
    """

    setup: Setup
    task: str
    instruction: str
    ended: str
    reason: str = ""
    initial_state: int = 0
    steps: int = 0
    max_steps: int = 0
    episode_s: float = 0.0
    control_rate_hz: float = 0.0
    max_age_ms: float = 0.0
    achieved_rate_hz: float = 0.0
    action_rate_hz: float = 0.0
    camera_rate_hz: float = 0.0
    observation_age: Distribution = Distribution()
    inference: Distribution = Distribution()
    stages: Mapping[str, Distribution] = field(default_factory=dict)
    actions: int = 0
    missed_deadlines: int = 0
    stale_published: int = 0
    lost_commands: int = 0
    worker_restarts: int = 0
    trouble: tuple[str, ...] = ()

    @property
    def success(self) -> bool:
        """The simulation's own predicate said that the task is solved."""
        return self.ended == "success"

    @property
    def graph_ok(self) -> bool:
        """Actions were published, and none of them on evidence that was too old."""
        return self.actions > 0 and self.stale_published == 0

    @property
    def exit_status(self) -> int:
        """0: the graph ran properly and, where it can be expected, the task was solved."""
        return int(not (self.graph_ok and (self.success or not self.setup.can_solve)))


def json_line(result: DemoResult) -> str:
    """The result as one line of JSON."""
    setup = result.setup
    content = {
        "success": result.success,
        "graph_ok": result.graph_ok,
        "judged_by": "task" if setup.can_solve else "graph",
        "ended": result.ended,
        "reason": result.reason,
        "policy": setup.policy,
        "schedule": setup.schedule,
        "checkpoint": setup.checkpoint,
        "device": setup.device,
        "dtype": setup.dtype,
        "mode": setup.mode,
        "task": result.task,
        "instruction": result.instruction,
        "initial_state": result.initial_state,
        "steps": result.steps,
        "max_steps": result.max_steps,
        "episode_s": round(result.episode_s, 3),
        "control_rate_hz": result.control_rate_hz,
        "achieved_rate_hz": round(result.achieved_rate_hz, 3),
        "action_rate_hz": round(result.action_rate_hz, 3),
        "camera_rate_hz": round(result.camera_rate_hz, 3),
        "observation_age_ms": _percentiles(result.observation_age),
        "inference_ms": _percentiles(result.inference),
        "stages_ms": {name: _percentiles(d) for name, d in result.stages.items()},
        "actions": result.actions,
        "missed_deadlines": result.missed_deadlines,
        "stale_published": result.stale_published,
        "max_age_ms": result.max_age_ms,
        "lost_commands": result.lost_commands,
        "worker_restarts": result.worker_restarts,
        "notes": list(result.trouble),
        "machine": setup.machine,
        "version": setup.version,
    }
    return json.dumps(content)


def _percentiles(d: Distribution) -> dict[str, Any]:
    return {name: round(getattr(d, name), 3) for name in ("p50", "p95", "p99", "max")}


def card(result: DemoResult) -> str:
    """The result as a box of text, numbers aligned."""
    rule = "+" + "-" * (WIDTH - 2) + "+"
    setup = result.setup
    sections = [
        [_ends("vla-ros demo", f"version {setup.version}")],
        _episode(result),
        _rates(result),
        _times(result),
        _counts(result),
        _what_ran(setup),
    ]
    if result.trouble:
        sections.append([piece for line in result.trouble for piece in _wrapped("note", line)])
    lines = [rule]
    for section in sections:
        lines += [f"| {line:<{WIDTH - 4}} |" for line in section]
        lines.append(rule)
    return "\n".join(lines)


def _ends(left: str, right: str) -> str:
    return f"{left}{right:>{WIDTH - 4 - len(left)}}"


def _row(label: str, value: str) -> str:
    room = WIDTH - 4 - _LABEL
    return f"{label:<{_LABEL}}{value if len(value) <= room else value[: room - 3] + '...'}"


def _wrapped(label: str, value: str) -> list[str]:
    """A row that continues below instead of being cut."""
    pieces = textwrap.wrap(value, WIDTH - 4 - _LABEL) or [""]
    return [_row(label if i == 0 else "", piece) for i, piece in enumerate(pieces)]


def _episode(result: DemoResult) -> list[str]:
    verdict = {"success": "SOLVED", "failure": "NOT SOLVED", "timeout": "TIME-OUT"}[result.ended]
    steps = f"{verdict}, step {result.steps} of {result.max_steps}, {result.episode_s:.1f} s"
    lines = [
        _row("task", f"{result.task}, initial state {result.initial_state}"),
        *_wrapped("instruction", result.instruction),
        _row("result", steps),
    ]
    if result.reason and not result.success:
        lines += _wrapped("", result.reason)
    if not result.setup.can_solve:
        who = "no policy" if result.setup.policy == "zero" else "random weights"
        fine = "ran properly" if result.graph_ok else "DID NOT RUN PROPERLY"
        lines += _wrapped("", f"({who}: no success is expected; the graph {fine})")
    return lines


def _rates(result: DemoResult) -> list[str]:
    def rate(label: str, value: float, note: str) -> str:
        return _row(label, f"{value:9.2f} Hz  {note}")

    return [
        rate("control rate", result.control_rate_hz, "asked for"),
        rate("commands", result.achieved_rate_hz, "achieved"),
        rate("new actions", result.action_rate_hz, ""),
        rate("camera", result.camera_rate_hz, ""),
    ]


def _times(result: DemoResult) -> list[str]:
    heads = "".join(f"{name:>9}" for name in ("p50", "p95", "p99", "max"))
    lines = [_row("milliseconds", heads)]
    rows = {"observation age": result.observation_age, "inference": result.inference}
    rows |= {f"  {name}": d for name, d in result.stages.items()}
    for label, d in rows.items():
        lines.append(_row(label, "".join(f"{v:9.2f}" for v in (d.p50, d.p95, d.p99, d.max))))
    if result.setup.mode == "lockstep":
        lines += _wrapped("", "(the world waits for every answer: ages are simulated time)")
    return lines


def _counts(result: DemoResult) -> list[str]:
    counts = {
        "new actions": (result.actions, ""),
        "missed deadlines": (result.missed_deadlines, "periods without a new action"),
        "stale published": (
            result.stale_published,
            f"older than {result.max_age_ms:.0f} ms; must be 0",
        ),
        "lost commands": (result.lost_commands, ""),
        "worker restarts": (result.worker_restarts, ""),
    }
    return [_row(label, f"{n:9d}     {note}") for label, (n, note) in counts.items()]


def _what_ran(setup: Setup) -> list[str]:
    return [
        _row("policy", f"{setup.policy}, schedule {setup.schedule}"),
        *_wrapped("checkpoint", setup.checkpoint or "none"),
        _row("device", f"{setup.device}, {setup.dtype}"),
        _row("mode", setup.mode),
        *_wrapped("machine", setup.machine),
    ]


def machine(device: str = "cpu") -> str:
    """This machine in one line: processor, number of CPUs, GPU when one is used, versions."""
    parts = [f"{_processor()}, {len(os.sched_getaffinity(0))} CPUs"]
    if device.startswith("cuda"):
        import torch

        parts.append(torch.cuda.get_device_name(torch.device(device)))
    parts.append(f"Linux {platform.release()}, Python {platform.python_version()}")
    return "; ".join(parts)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
