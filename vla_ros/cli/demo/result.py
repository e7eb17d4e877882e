"""Result of `vla-ros demo`: its verdict, its line of JSON, and its summary for a terminal.

All figures are those of the episode alone, from its first action to the end: neither loading
nor warm-up is in them. None and an empty distribution: not measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
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
    """Policy, model and machine of the run. ``asked``, ``dtype_asked``: the decoding and the dtype
    asked for; they may be "auto"."""

    mode: str
    policy: str
    decoding: str
    checkpoint: str
    device: str
    dtype: str
    machine: str
    version: str
    asked: str = ""
    dtype_asked: str = ""

    @property
    def can_solve(self) -> bool:
        """True where success is expected: neither of the zero policy nor of random weights."""
        return self.policy != "zero" and not self.checkpoint.startswith(_RANDOM)

    @property
    def decoded(self) -> str:
        """The decoding, with "(auto)" where it was picked."""
        picked = self.asked == "auto" and self.decoding not in ("", "auto")
        return f"{self.decoding} (auto)" if picked else self.decoding

    @property
    def computed(self) -> str:
        """The dtype, with "(auto)" where it was picked."""
        picked = self.dtype_asked == "auto" and self.dtype not in ("", "auto", "none")
        return f"{self.dtype} (auto)" if picked else self.dtype


@dataclass(frozen=True, slots=True)
class DemoResult:
    """One episode. Rates in Hz, distributions in ms, ``episode_s`` in seconds of wall time.

    ``steps`` and ``max_steps`` count actions, ``actions`` the policy's new ones; ``action_rate_hz``
    is that of the data.

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
    action_rate_hz: float | None = None
    control_rate_hz: float | None = None
    max_age_ms: float | None = None
    achieved_rate_hz: float | None = None
    achieved_action_rate_hz: float | None = None
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
        """True where the simulation's own predicate reports the task solved."""
        return self.ended == "success"

    @property
    def graph_ok(self) -> bool:
        """True where actions were published, none of them on an observation that was too old."""
        return self.actions > 0 and self.stale_published == 0

    @property
    def exit_status(self) -> int:
        """0: the graph ran properly and, where it can be expected, the task was solved."""
        return int(not (self.graph_ok and (self.success or not self.setup.can_solve)))


#: fields whose JSON has another name: with the unit, or with what they count
_NAMES = {
    "asked": "decoding_asked",
    "observation_age": "observation_age_ms",
    "staleness": "staleness_ms",
    "inference": "inference_ms",
    "stages": "stages_ms",
    "passes": "passes_per_action",
    "blocked": "actions_blocked",
    "trouble": "notes",
}


def json_line(result: DemoResult) -> str:
    """The result as one line of JSON; null is what was not measured."""
    setup = result.setup
    found = {one.name: getattr(setup, one.name) for one in fields(setup)}
    found |= {one.name: getattr(result, one.name) for one in fields(result) if one.name != "setup"}
    content = {
        "success": result.success,
        "graph_ok": result.graph_ok,
        "judged_by": "task" if setup.can_solve else "graph",
        **{_NAMES.get(name, name): _plain(value) for name, value in found.items()},
    }
    return json.dumps(content, allow_nan=False)


def _plain(value: object) -> object:
    """Value that JSON can hold, with three decimals."""
    if isinstance(value, Distribution):
        known = value if value.count else None
        return {name: known and round(getattr(known, name), 3) for name in PERCENTILES}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


# The summary for a terminal: a dash stands for a figure that was not measured.


_LABEL, _FIGURE = 18, 9  # columns
_DASH = "-"
_VERDICTS = {
    "success": ("SOLVED", "bold green"),
    "failure": ("NOT SOLVED", "bold red"),
    "timeout": ("TIME-OUT", "bold red"),
}


class Summary:
    """Table of the result for a rich console: with lines on a terminal, with + - | elsewhere."""

    def __init__(self, result: DemoResult) -> None:
        self._result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich import box
        from rich.table import Table

        table = Table(
            box=box.ROUNDED if console.is_terminal else box.ASCII2,
            show_header=False,
            show_lines=True,
            width=min(WIDTH, options.max_width),
        )
        table.add_column(overflow="fold")
        for section in _sections(self._result):
            table.add_row(section)
        yield table


def _sections(result: DemoResult) -> Iterable[RenderableType]:
    yield _title(result.setup)
    yield _facts(_episode(result))
    yield _figures(_rates(result))
    yield _times(result)
    yield _figures(_counts(result))
    yield _facts(_what_ran(result.setup))
    if result.trouble:
        yield _facts([("note" if i == 0 else "", line) for i, line in enumerate(result.trouble)])


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
    """Rows of a name and a text."""
    from rich.text import Text

    grid = _grid(_LABEL, None)
    for label, text in rows:
        grid.add_row(label, Text(text) if isinstance(text, str) else text)
    return grid


def _figures(rows: Iterable[tuple[str, str, str]]) -> Table:
    """Rows of a name, a figure and a few words."""
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
    yield "action rate", _rate(result.action_rate_hz), "Hz, of the data"
    yield "control rate", _rate(result.control_rate_hz), "Hz, asked for"
    yield "commands", _rate(result.achieved_rate_hz), "Hz, achieved"
    yield "new actions", _rate(result.achieved_action_rate_hz), "Hz, achieved"
    yield "camera", _rate(result.camera_rate_hz), "Hz"


def _times(result: DemoResult) -> Table:
    """Table of the observation age and its stages, the model's four together, and the staleness."""
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
    yield "missed deadlines", _count(result.missed_deadlines), "periods without an action"
    yield "blocked actions", _count(result.blocked), "stopped by the gate"
    yield "stale published", _count(result.stale_published), f"older than {limit}; must be 0"
    yield "lost commands", _count(result.lost_commands), ""
    yield "worker restarts", _count(result.worker_restarts), ""


def _what_ran(setup: Setup) -> Iterable[tuple[str, str]]:
    yield "policy", setup.policy
    yield "decoding", setup.decoded or _DASH
    yield "checkpoint", setup.checkpoint or "none"
    yield "device", ", ".join(filter(None, (setup.device, setup.computed))) or _DASH
    yield "mode", setup.mode
    yield "machine", setup.machine


def _count(value: int | None) -> str:
    return _DASH if value is None else str(value)


def _rate(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"


def _ms(spread: Distribution, name: str) -> str:
    return f"{getattr(spread, name):.2f}" if spread.count else _DASH
