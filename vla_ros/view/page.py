"""What the page says in words: for which messages which text in which colour.

Free of ROS and of the browser; not thread-safe. Times are nanoseconds of the steady clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from vla_ros.core import PolicyState
from vla_ros.monitoring import StatusSeen
from vla_ros.timing import SECOND

LOG_LINES = 10
SILENT_NS = 3 * SECOND  # a policy says once a second how it is
_LONGEST = 160  # characters of a log line

#: A state's colour; white text is readable on each.
COLOURS = {
    PolicyState.UNCONFIGURED: "#6b7280",
    PolicyState.INACTIVE: "#475569",
    PolicyState.WAITING: "#b45309",
    PolicyState.RUNNING: "#15803d",
    PolicyState.HOLD: "#c2410c",
    PolicyState.FAULT: "#b91c1c",
}
UNHEARD = "#1f2937"
#: Of log lines, by rcl_interfaces/Log's levels: the highest that is not above the line's.
LEVELS = ((50, "#fca5a5"), (40, "#fca5a5"), (30, "#fcd34d"), (0, "#d1d5db"))


@dataclass(frozen=True, slots=True)
class Banner:
    """The state in one word and why, and the colour behind both."""

    word: str
    reason: str
    colour: str


@dataclass(frozen=True, slots=True)
class World:
    """What a simulation says of its episode."""

    environment: str
    task: str
    number: int
    step: int
    max_steps: int
    state: str  # running, success, failure, resetting


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a node's log. ``level`` is rcl_interfaces/Log's."""

    node: str
    level: int
    text: str


class Page:
    """Give it what is heard, ask it what to show."""

    def __init__(self) -> None:
        self.status: StatusSeen | None = None
        self.instruction = ""
        self.world: World | None = None
        self.passes: float | None = None  # of the target model, an action
        self._heard_ns = 0
        self._log: deque[LogLine] = deque(maxlen=LOG_LINES)
        self._sentences: dict[str, None] = {}  # in the order in which they were first heard

    def hear_status(self, status: StatusSeen, instruction: str, steady_ns: int) -> None:
        """The policy says how it is and what it was told."""
        self.status, self.instruction, self._heard_ns = status, instruction, steady_ns
        if instruction:
            self._sentences[instruction] = None

    def hear_inference(self, target_passes: int, actions: int) -> None:
        """One answer of the policy: ``actions`` of it share its passes."""
        self.passes = target_passes / max(1, actions) if target_passes else None

    def hear_log(self, line: LogLine) -> None:
        """A line of any node's log."""
        self._log.append(line)

    def banner(self, steady_ns: int) -> Banner:
        """Silence counts: what was said last need not be so any more."""
        status = self.status
        if status is None:
            return Banner("NO POLICY", "nothing was heard of a policy yet", UNHEARD)
        silent_ns = steady_ns - self._heard_ns
        if silent_ns > SILENT_NS:
            was = f"silent for {silent_ns / SECOND:.0f} s; it was {status.state.name}"
            return Banner("SILENT", was, UNHEARD)
        return Banner(status.state.name, status.reason, COLOURS[status.state])

    def facts(self) -> tuple[tuple[str, str], ...]:
        """Name and value of what stands under the state."""
        found: list[tuple[str, str]] = []
        if (status := self.status) is not None:
            found.append(("policy", status.policy or "-"))
            if status.checkpoint:
                found.append(("checkpoint", _end_of(status.checkpoint)))
            found.append(("schedule", _schedule(status, self.passes)))
            found.append(("runs on", f"{status.device or '-'} {status.dtype}".strip()))
        if (world := self.world) is not None:
            step = f"step {world.step} of {world.max_steps}"
            found.append(("episode", f"{world.number}, {world.task}: {world.state}, {step}"))
        return tuple(found)

    def suggestions(self, tasks: Iterable[str]) -> tuple[str, ...]:
        """Sentences to choose from: the world's tasks, then what was said before."""
        return tuple(dict.fromkeys([*tasks, *self._sentences]))

    # ------------------------------------------------------------------ as HTML

    def banner_html(self, steady_ns: int) -> str:
        """State, reason and instruction, escaped."""
        banner = self.banner(steady_ns)
        told = escape(self.instruction) or "<i>nothing: it stands still</i>"
        return (
            f'<div id="vla-state" style="background:{banner.colour};color:#fff;padding:10px 12px;'
            f'border-radius:6px;margin:0 8px 8px;font-family:sans-serif">'
            f'<div id="vla-word" style="font-size:22px;font-weight:700">{banner.word}</div>'
            f'<div id="vla-reason" style="font-size:13px">{escape(banner.reason)}</div>'
            f'<div style="font-size:13px;margin-top:6px">told: '
            f'<b id="vla-told">{told}</b></div></div>'
        )

    def facts_html(self) -> str:
        """The facts as a table of two columns."""
        rows = "".join(
            f'<tr><td style="opacity:.65;padding-right:10px;vertical-align:top">{escape(name)}</td>'
            f"<td>{escape(value)}</td></tr>"
            for name, value in self.facts()
        )
        return f'<table id="vla-facts" style="font-size:12px;margin:0 12px">{rows}</table>'

    def log_html(self) -> str:
        """The last lines, oldest first, one a row, in the colours of their levels."""
        rows = "".join(
            f'<div style="color:{_colour(line.level)};white-space:pre-wrap">'
            f"{escape(f'[{line.node}] {line.text[:_LONGEST]}')}</div>"
            for line in self._log
        )
        return (
            '<div id="vla-log" style="font:11px/1.35 monospace;background:#111827;color:#d1d5db;'
            f'padding:8px;margin:0 8px;border-radius:6px;min-height:3em">{rows}</div>'
        )


def _schedule(status: StatusSeen, passes: float | None) -> str:
    if status.schedule in ("", "none"):
        return "none: no model"
    told = f", {passes:.2g} passes an action" if passes is not None else ""
    return f"{status.schedule}{told}"


def _end_of(checkpoint: str) -> str:
    """The end of a long path says more than its begin."""
    return checkpoint if len(checkpoint) <= 40 else "…" + checkpoint[-39:]


def _colour(level: int) -> str:
    return next(colour for least, colour in LEVELS if level >= least)
