"""Strip charts: the last minute of what the policy did, as lines to draw.

Commands are added as they come; every :data:`EVERY_NS` one point of each line is made of those
since the last. Where nothing was measured there is NaN, and no line. Not thread-safe.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vla_ros.core import STAGES, CommandKind, Floats
from vla_ros.monitoring import CommandSeen, StatusSeen
from vla_ros.timing import MS, SECOND

EVERY_NS = SECOND // 5
SECONDS = 60
_RATE_OVER_NS = SECOND
_PALETTE = (
    "#2563eb", "#dc2626", "#16a34a", "#d97706", "#7c3aed", "#0891b2", "#db2777",
    "#65a30d", "#4b5563", "#b45309", "#0f766e", "#9333ea", "#be123c", "#1d4ed8",
)  # fmt: skip
LIMIT = "#b91c1c"
QUIET = "#9ca3af"
STANDARD = ("x", "y", "z", "rx", "ry", "rz", "gripper")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. ``dashed``: a limit, not a measurement."""

    label: str
    colour: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Strip:
    """One chart. ``x``: float64 [n], seconds before now, rising to 0; ``y``: float64 [n] for each
    line, NaN where nothing was measured. ``low`` and ``high``: the axis."""

    name: str
    title: str
    lines: tuple[Line, ...]
    x: Floats
    y: tuple[Floats, ...]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CommandShown:
    """One command as the charts need it. ``units``: "1" is a gripper's opening."""

    seen: CommandSeen
    action: tuple[float, ...]
    names: tuple[str, ...]
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Point:
    steady_ns: int
    age_ms: float
    max_age_ms: float
    actions_hz: float
    commands_hz: float
    wanted_hz: float
    stages_ms: tuple[float, ...]
    action: tuple[float, ...]
    acceptance: tuple[float, ...]


class Strips:
    """Keeps the last :data:`SECONDS` seconds."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=SECONDS * SECOND // EVERY_NS)
        self._since: list[CommandShown] = []
        self._last: CommandShown | None = None
        self._commands: deque[int] = deque(maxlen=1000)
        self._actions: deque[int] = deque(maxlen=1000)
        self._low: tuple[float, ...] = ()
        self._high: tuple[float, ...] = ()
        self._names: tuple[str, ...] = STANDARD

    def set_bounds(self, low: Sequence[float], high: Sequence[float]) -> None:
        """Of every number of an action but the grippers', in order."""
        self._low, self._high = tuple(low), tuple(high)

    def add(self, command: CommandShown, steady_ns: int) -> None:
        """A command that arrived at ``steady_ns``."""
        self._since.append(command)
        self._commands.append(steady_ns)
        if command.seen.kind is CommandKind.POLICY:
            self._actions.append(steady_ns)
        if command.names and command.names != self._names:
            self._names = command.names
            self._points.clear()  # other lines

    def sample(self, status: StatusSeen | None, steady_ns: int) -> bool:
        """Make a point of each line, if it is time; says whether it did."""
        if self._points and steady_ns - self._points[-1].steady_ns < EVERY_NS:
            return False
        since, self._since = self._since[-200:], []
        new = [c for c in since if c.seen.kind is CommandKind.POLICY]
        ages = [_age_ms(c.seen) for c in since if c.seen.observed_ns]
        nothing = (math.nan,) * len(STAGES)
        stages = new[-1].seen.stages.durations_ms if new else nothing
        shares = self._shares(since[-1]) if since else (math.nan,) * len(self._names)
        point = _Point(
            steady_ns=steady_ns,
            age_ms=max(ages, default=math.nan),
            max_age_ms=status.max_age_ms if status else math.nan,
            actions_hz=_rate(self._actions, steady_ns),
            commands_hz=_rate(self._commands, steady_ns),
            wanted_hz=status.control_rate_hz if status else math.nan,
            stages_ms=stages,
            action=shares,
            acceptance=status.acceptance if status else (),
        )
        self._points.append(point)
        return True

    def _shares(self, command: CommandShown) -> tuple[float, ...]:
        """Each number as a share of its bound, -1 to 1; a gripper's opening as it is."""
        values = list(command.action[: len(self._names)])
        values += [math.nan] * (len(self._names) - len(values))
        bound = 0
        for i, unit in enumerate(command.units[: len(values)]):
            if unit == "1":
                continue
            if bound < min(len(self._low), len(self._high)):
                edge = self._high[bound] if values[i] >= 0 else -self._low[bound]
                values[i] = values[i] / edge if edge > 0 else math.nan
            bound += 1
        return tuple(values)

    @property
    def age_ms(self) -> float:
        """The newest point's; NaN where nothing rests on an observation."""
        return self._points[-1].age_ms if self._points else math.nan

    def strips(self, steady_ns: int) -> tuple[Strip, ...]:
        """Every chart, as of now."""
        points = tuple(self._points)
        x = np.array([(p.steady_ns - steady_ns) / SECOND for p in points], np.float64)
        return (
            self._age(points, x),
            self._rate(points, x),
            self._stages(points, x),
            self._action(points, x),
            self._acceptance(points, x),
        )

    def _age(self, points: tuple[_Point, ...], x: Floats) -> Strip:
        y = (_column(points, "age_ms"), _column(points, "max_age_ms"))
        lines = (Line("observation age", _PALETTE[0]), Line("max_age", LIMIT, dashed=True))
        top = max(_top(y[0]), _top(y[1]), 10.0)
        return Strip("age", "observation age, ms", lines, x, y, 0.0, _round_up(1.15 * top))

    def _rate(self, points: tuple[_Point, ...], x: Floats) -> Strip:
        y = tuple(_column(points, name) for name in ("actions_hz", "commands_hz", "wanted_hz"))
        lines = (
            Line("new actions", _PALETTE[2]),
            Line("commands", QUIET),
            Line("control rate", LIMIT, dashed=True),
        )
        top = max(max(map(_top, y)), 1.0)
        return Strip("rate", "rate, Hz", lines, x, y, 0.0, _round_up(1.15 * top))

    def _stages(self, points: tuple[_Point, ...], x: Floats) -> Strip:
        lines = tuple(Line(name, _PALETTE[i]) for i, name in enumerate(STAGES))
        y = tuple(np.array([p.stages_ms[i] for p in points]) for i in range(len(STAGES)))
        top = max(max(map(_top, y)), 1.0)
        return Strip("stages", "stages of an action, ms", lines, x, y, 0.0, _round_up(1.1 * top))

    def _action(self, points: tuple[_Point, ...], x: Floats) -> Strip:
        names = self._names
        lines = tuple(Line(n, _PALETTE[i % len(_PALETTE)]) for i, n in enumerate(names))
        y = tuple(np.array([p.action[i] for p in points]) for i in range(len(names)))
        bounds = (Line("bound", LIMIT, dashed=True), Line("-bound", LIMIT, dashed=True))
        y += (np.ones_like(x), -np.ones_like(x))
        title = "action, share of its bound" if self._low else "action, m and rad"
        return Strip("action", title, (*lines, *bounds), x, y, -1.2, 1.2)

    def _acceptance(self, points: tuple[_Point, ...], x: Floats) -> Strip:
        count = max((len(p.acceptance) for p in points), default=0)
        names = self._names if count == len(self._names) else tuple(map(str, range(count)))
        lines = tuple(Line(n, _PALETTE[i % len(_PALETTE)]) for i, n in enumerate(names))
        rows = [(*p.acceptance, *(math.nan,) * (count - len(p.acceptance))) for p in points]
        y = tuple(np.array([row[i] for row in rows]) for i in range(count))
        if not count:
            lines, y = (Line("no drafts", QUIET),), (np.full_like(x, math.nan),)
        return Strip("acceptance", "draft acceptance, share", lines, x, y, 0.0, 1.05)


def _age_ms(seen: CommandSeen) -> float:
    return (seen.published_ns - seen.observed_ns) / MS


def _rate(times: deque[int], steady_ns: int) -> float:
    """Per second, over the last second."""
    while times and steady_ns - times[0] > _RATE_OVER_NS:
        times.popleft()
    return len(times) * SECOND / _RATE_OVER_NS


def _column(points: tuple[_Point, ...], name: str) -> Floats:
    return np.array([getattr(point, name) for point in points], np.float64)


def _top(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 0.0


def _round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten in ten steps: an axis must not twitch."""
    step = 10.0 ** math.floor(math.log10(value)) / 2
    return math.ceil(value / step) * step
