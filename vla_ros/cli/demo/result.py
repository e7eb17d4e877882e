"""What `vla-ros demo` found out, its verdict, and its one line of JSON.

All figures are those of the episode alone, from its first action to the end: neither loading
nor warm-up is in them. None and an empty distribution are what was not measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vla_ros.core.clock import Distribution
from vla_ros.core.console import WIDTH
from vla_ros.core.types import INFERENCE_STAGES, STAGES

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text


_RANDOM = "random"  # a checkpoint of weights drawn from a seed is called random:<size>
PERCENTILES = ("p50", "p95", "p99", "max")


@dataclass(frozen=True, slots=True)
class Setup:
    """What ran, and where. ``asked``: the decoding that was asked for; it may be "auto"."""

    mode: str
    policy: str
    decoding: str
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
    def decoded(self) -> str:
        """The decoding, and that it was picked where it was."""
        picked = self.asked == "auto" and self.decoding not in ("", "auto")
        return f"{self.decoding} (auto)" if picked else self.decoding


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
        """Actions were published, and none of them on an observation that was too old."""
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
        "decoding": setup.decoding,
        "decoding_asked": setup.asked,
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


# The result of a demo as a card: a dash is what was not measured.


_LABEL, _FIGURE = 18, 9  # columns
_DASH = "-"
_VERDICTS = {
    "success": ("SOLVED", "bold green"),
    "failure": ("NOT SOLVED", "bold red"),
    "timeout": ("TIME-OUT", "bold red"),
}


class Card:
    """To be printed by a rich console: with lines on a terminal, with + - | elsewhere."""

    def __init__(self, result: DemoResult) -> None:
        self._result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich import box
        from rich.table import Table

        card = Table(
            box=box.ROUNDED if console.is_terminal else box.ASCII2,
            show_header=False,
            show_lines=True,
            width=min(WIDTH, options.max_width),
        )
        card.add_column(overflow="fold")
        for section in _sections(self._result):
            card.add_row(section)
        yield card


def _sections(result: DemoResult) -> Iterable[RenderableType]:
    yield _title(result.setup)
    yield _facts(_episode(result))
    yield _figures(_rates(result))
    yield _times(result)
    yield _figures(_counts(result))
    yield _facts(_what_ran(result.setup))
    if result.trouble:
        yield _facts([("note" if i == 0 else "", line) for i, line in enumerate(result.trouble)])


# How it is laid out


def _grid(*widths: int | None) -> Table:
    """Columns of these widths; None takes what is left and breaks its lines."""
    from rich.table import Table

    grid = Table.grid(expand=True)
    for width in widths:
        if width is None:
            grid.add_column(ratio=1, overflow="fold")
        else:
            grid.add_column(width=width, no_wrap=True)
    return grid


def _facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """A name and what is to be said of it."""
    from rich.text import Text

    grid = _grid(_LABEL, None)
    for label, said in rows:
        grid.add_row(label, Text(said) if isinstance(said, str) else said)
    return grid


def _figures(rows: Iterable[tuple[str, str, str]]) -> Table:
    """A name, a figure and a few words behind it."""
    from rich.text import Text

    grid = _grid(_LABEL, _FIGURE, 2, None)
    for label, figure, words in rows:
        grid.add_row(label, Text(figure, justify="right"), "", Text(words))
    return grid


def _title(setup: Setup) -> Table:
    from rich.text import Text

    grid = _grid(None, None)
    left, right = Text("vla-ros demo", "bold"), Text(f"version {setup.version}", justify="right")
    grid.add_row(left, right)
    return grid


# What it says


def _episode(result: DemoResult) -> Iterable[tuple[str, str | Text]]:
    from rich.text import Text

    yield "task", f"{result.task or _DASH}, initial state {_count(result.initial_state)}"
    yield "instruction", result.instruction or _DASH
    word, style = _VERDICTS[result.ended]
    time = _DASH if result.episode_s is None else f"{result.episode_s:.1f} s"
    steps = f", step {_count(result.steps)} of {_count(result.max_steps)}, {time}"
    yield "result", Text.assemble((word, style), steps)
    if result.reason and not result.success:
        yield "", result.reason
    if result.blocked and not result.success:
        yield "", f"{result.blocked} actions blocked; the last: {result.last_block}"
    if not result.setup.can_solve:
        who = "no policy" if result.setup.policy == "zero" else "random weights"
        fine = "ran properly" if result.graph_ok else "DID NOT RUN PROPERLY"
        yield "", f"({who}: no success is expected; the graph {fine})"


def _rates(result: DemoResult) -> Iterable[tuple[str, str, str]]:
    yield "control rate", _rate(result.control_rate_hz), "Hz, asked for"
    yield "commands", _rate(result.achieved_rate_hz), "Hz, achieved"
    yield "new actions", _rate(result.action_rate_hz), "Hz"
    yield "camera", _rate(result.camera_rate_hz), "Hz"


def _times(result: DemoResult) -> Table:
    """The observation age and the stages it consists of, the model's four together; how much of
    it is behind the time line of the action's chunk."""
    from rich.text import Text

    grid = _grid(_LABEL, *[_FIGURE] * len(PERCENTILES), None)
    heads = [Text(name, "bold", justify="right") for name in PERCENTILES]
    grid.add_row("milliseconds", *heads)
    for label, spread in _breakdown(result):
        grid.add_row(label, *[Text(_ms(spread, name), justify="right") for name in PERCENTILES])
    if result.setup.mode != "lockstep":
        return grid
    whole = _grid(None)
    whole.add_row(grid)
    whole.add_row("(the world waits for every answer: ages are simulated time)")
    return whole


def _breakdown(result: DemoResult) -> Iterable[tuple[str, Distribution]]:
    yield "observation age", result.observation_age
    for stage in STAGES:
        if stage == INFERENCE_STAGES[0]:
            yield "  inference", result.inference
        indent = "    " if stage in INFERENCE_STAGES else "  "
        yield f"{indent}{stage}", result.stages.get(stage, Distribution())
    yield "staleness", result.staleness


def _counts(result: DemoResult) -> Iterable[tuple[str, str, str]]:
    limit = _DASH if result.max_age_ms is None else f"{result.max_age_ms:.0f} ms"
    yield "new actions", _count(result.actions), ""
    yield "passes an action", _rate(result.passes), "of the model"
    yield "missed deadlines", _count(result.missed_deadlines), "periods without a new action"
    yield "blocked actions", _count(result.blocked), "stopped by the gate"
    yield "stale published", _count(result.stale_published), f"older than {limit}; must be 0"
    yield "lost commands", _count(result.lost_commands), ""
    yield "worker restarts", _count(result.worker_restarts), ""


def _what_ran(setup: Setup) -> Iterable[tuple[str, str]]:
    yield "policy", setup.policy
    yield "decoding", setup.decoded or _DASH
    yield "checkpoint", setup.checkpoint or "none"
    yield "device", ", ".join(filter(None, (setup.device, setup.dtype))) or _DASH
    yield "mode", setup.mode
    yield "machine", setup.machine


def _count(value: int | None) -> str:
    return _DASH if value is None else str(value)


def _rate(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"


def _ms(spread: Distribution, name: str) -> str:
    return f"{getattr(spread, name):.2f}" if spread.count else _DASH
