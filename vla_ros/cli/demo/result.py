"""What `vla-ros demo` found out, its verdict, and its one line of JSON.

All figures are those of the episode alone, from its first action to the end: neither loading
nor warm-up is in them. None and an empty distribution are what was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from vla_ros.timing import Distribution

_RANDOM = "random"  # a checkpoint of weights drawn from a seed is called random:<size>
PERCENTILES = ("p50", "p95", "p99", "max")


@dataclass(frozen=True, slots=True)
class Setup:
    """What ran, and where. ``asked``: the schedule that was asked for; it may be "auto"."""

    mode: str
    policy: str
    schedule: str
    checkpoint: str
    device: str
    dtype: str
    machine: str
    version: str
    asked: str = ""

    @property
    def can_solve(self) -> bool:
        """Whether success can be asked for: nobody expects it of no policy or random weights."""
        return self.policy != "zero" and not self.checkpoint.startswith(_RANDOM)

    @property
    def decoding(self) -> str:
        """The schedule, and that it was picked where it was."""
        picked = self.asked == "auto" and self.schedule not in ("", "auto")
        return f"{self.schedule} (auto)" if picked else self.schedule


@dataclass(frozen=True, slots=True)
class DemoResult:
    """One episode. Rates in Hz, distributions in ms, ``episode_s`` in seconds of wall time.

    ``ended``: how the episode ended, "success", "failure" or "timeout". ``blocked`` actions were
    stopped by the gate, the last one for ``last_block``. ``staleness``: age less due time of an
    action of a chunk, the age of any other. ``passes`` of the target model an
    action. ``trouble`` are lines about the graph that the user should read (a node that did not
    end cleanly).
    """

    setup: Setup
    task: str
    instruction: str
    ended: str
    reason: str = ""
    initial_state: int | None = None
    steps: int | None = None
    max_steps: int | None = None
    episode_s: float | None = None
    control_rate_hz: float | None = None
    max_age_ms: float | None = None
    achieved_rate_hz: float | None = None
    action_rate_hz: float | None = None
    camera_rate_hz: float | None = None
    observation_age: Distribution = Distribution()
    staleness: Distribution = Distribution()
    inference: Distribution = Distribution()
    stages: Mapping[str, Distribution] = field(default_factory=dict)
    passes: float | None = None
    actions: int = 0
    missed_deadlines: int | None = None
    blocked: int | None = None
    last_block: str = ""
    stale_published: int = 0
    lost_commands: int | None = None
    worker_restarts: int | None = None
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
    """The result as one line of JSON; null is what was not measured."""
    setup = result.setup
    content = {
        "success": result.success,
        "graph_ok": result.graph_ok,
        "judged_by": "task" if setup.can_solve else "graph",
        "ended": result.ended,
        "reason": result.reason,
        "policy": setup.policy,
        "schedule": setup.schedule,
        "schedule_asked": setup.asked,
        "checkpoint": setup.checkpoint,
        "device": setup.device,
        "dtype": setup.dtype,
        "mode": setup.mode,
        "task": result.task,
        "instruction": result.instruction,
        "initial_state": result.initial_state,
        "steps": result.steps,
        "max_steps": result.max_steps,
        "episode_s": _rounded(result.episode_s),
        "control_rate_hz": result.control_rate_hz,
        "achieved_rate_hz": _rounded(result.achieved_rate_hz),
        "action_rate_hz": _rounded(result.action_rate_hz),
        "camera_rate_hz": _rounded(result.camera_rate_hz),
        "observation_age_ms": _percentiles(result.observation_age),
        "staleness_ms": _percentiles(result.staleness),
        "inference_ms": _percentiles(result.inference),
        "stages_ms": {name: _percentiles(d) for name, d in result.stages.items()},
        "passes_per_action": _rounded(result.passes),
        "actions": result.actions,
        "missed_deadlines": result.missed_deadlines,
        "actions_blocked": result.blocked,
        "last_block": result.last_block,
        "stale_published": result.stale_published,
        "max_age_ms": result.max_age_ms,
        "lost_commands": result.lost_commands,
        "worker_restarts": result.worker_restarts,
        "notes": list(result.trouble),
        "machine": setup.machine,
        "version": setup.version,
    }
    return json.dumps(content, allow_nan=False)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _percentiles(d: Distribution) -> dict[str, float | None]:
    return {name: round(getattr(d, name), 3) if d.count else None for name in PERCENTILES}
