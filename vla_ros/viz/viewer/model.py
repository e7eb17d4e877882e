"""The content of the page in the browser: text, strip charts, the scene's past, camera images.

Free of ROS and of the browser; not thread-safe. Times are nanoseconds of the steady clock.
"""

from __future__ import annotations

import functools
import html
import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.assumption import Assumption
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.text import printable
from vla_ros.core.types import STAGES, STOPPED, CommandKind, Floats, Image, PolicyState
from vla_ros.runtime.monitor.seen import CommandSeen, StatusSeen
from vla_ros.sim.env import SimError
from vla_ros.sim.libero.suites import find_package, tasks_of
from vla_ros.viz.robot_model import Shape

LOG_LINES = 10
SILENT_NS = 3 * SECOND  # a policy publishes its status once a second
_LONGEST = 160  # characters of a log line
_LONGEST_TEXT = 1000  # of a reason, an instruction

#: A state's color; white text is readable on each.
STATE_COLORS = {
    PolicyState.UNCONFIGURED: "#6b7280",
    PolicyState.INACTIVE: "#475569",
    PolicyState.WAITING: "#0e7490",
    PolicyState.RUNNING: "#15803d",
    PolicyState.HOLD: "#c2410c",
    PolicyState.FAULT: "#b91c1c",
    PolicyState.TAKEOVER: "#1d4ed8",
}
UNHEARD = "#1f2937"
STOPPED_COLOR = "#6d28d9"  # WAITING, but for a person: only Resume or an instruction ends it
#: Of log lines, by rcl_interfaces/Log's levels: the highest that is not above the line's.
LEVELS = ((50, "#fca5a5"), (40, "#fca5a5"), (30, "#fcd34d"), (0, "#d1d5db"))


@dataclass(frozen=True, slots=True)
class Banner:
    """The state in one word and why, and the color behind both."""

    word: str
    reason: str
    color: str


@dataclass(frozen=True, slots=True)
class SimulationState:
    """A simulation's report on its episode."""

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
    """Status, log and facts of a run, as the page shows them."""

    def __init__(self) -> None:
        self.status: StatusSeen | None = None
        self.instruction = ""
        self.world: SimulationState | None = None
        self.note = ""  # label of every image of this simulation
        self.passes: float | None = None  # of the target model, an action
        self.assumptions: tuple[Assumption, ...] = ()
        self._heard_ns = 0
        self._log: deque[LogLine] = deque(maxlen=LOG_LINES)
        self._instructions: dict[str, None] = {}  # in the order in which they first came

    def hear_status(self, status: StatusSeen, instruction: str, steady_ns: int) -> None:
        """The policy's status and its instruction."""
        self.status, self.instruction, self._heard_ns = status, instruction, steady_ns
        if instruction:
            self._instructions[instruction] = None

    def hear_inference(self, target_passes: int, actions: int) -> None:
        """One answer of the policy: ``actions`` of it share its passes."""
        self.passes = target_passes / max(1, actions) if target_passes else None

    def hear_log(self, line: LogLine) -> None:
        """A line of any node's log."""
        self._log.append(line)

    def banner(self, steady_ns: int) -> Banner:
        """The state; silence counts, since the last status need not hold any more."""
        status = self.status
        if status is None:
            return Banner("NO POLICY", "no policy has published its status yet", UNHEARD)
        silent_ns = steady_ns - self._heard_ns
        if silent_ns > SILENT_NS:
            was = f"silent for {silent_ns / SECOND:.0f} s; it was {status.state.name}"
            return Banner("SILENT", was, UNHEARD)
        word, color = status.state.name, STATE_COLORS[status.state]
        if status.state is PolicyState.WAITING and status.reason.startswith(STOPPED):
            word, color = "STOPPED", STOPPED_COLOR
        reason = status.reason.removeprefix(STOPPED) if word == "STOPPED" else status.reason
        reason = for_page(reason)
        if status.shadow:
            word = f"SHADOW, {word}"
        return Banner(word, "" if reason.upper() == word else reason, color)

    def facts(self) -> tuple[tuple[str, str], ...]:
        """Name and value of what stands under the state."""
        found: list[tuple[str, str]] = []
        if (status := self.status) is not None:
            found.append(("policy", status.policy or "-"))
            if status.checkpoint:
                found.append(("checkpoint", _end_of(status.checkpoint)))
            found.append(("decoding", _decoding(status, self.passes)))
            found.append(("device", f"{status.device or '-'} {status.dtype}".strip()))
            if status.two_rates:
                found.append(("rates", status.rates))
        if (world := self.world) is not None:
            step = f"step {world.step} of {world.max_steps}"
            found.append(("episode", f"{world.number}, {world.task}: {world.state}, {step}"))
            if self.note:
                found.append(("note", self.note))
        return tuple(found)

    def suggestions(self, tasks: Iterable[str]) -> tuple[str, ...]:
        """Instructions to choose from: the world's tasks, then earlier ones."""
        return tuple(dict.fromkeys([*tasks, *self._instructions]))

    # As HTML

    def banner_html(self, steady_ns: int) -> str:
        """State, reason and instruction, escaped."""
        banner = self.banner(steady_ns)
        instruction = _html(self.instruction) or "<i>none: it stands still</i>"
        return (
            f'<div id="vla-state" style="background:{banner.color};color:#fff;padding:10px 12px;'
            f'border-radius:6px;margin:0 8px 8px;font-family:sans-serif">'
            f'<div id="vla-word" style="font-size:22px;font-weight:700">{banner.word}</div>'
            f'<div id="vla-reason" style="font-size:13px">{_html(banner.reason)}</div>'
            f'<div style="font-size:13px;margin-top:6px">instruction: '
            f'<b id="vla-instruction">{instruction}</b></div></div>'
        )

    def facts_html(self) -> str:
        """The facts as a table of two columns."""
        rows = "".join(
            f'<tr><td style="opacity:.65;padding-right:10px;vertical-align:top">{_html(name)}</td>'
            f"<td>{_html(value)}</td></tr>"
            for name, value in self.facts()
        )
        return f'<table id="vla-facts" style="font-size:12px;margin:0 12px">{rows}</table>'

    def assumptions_html(self) -> str:
        """What is taken for granted, a row each: what nothing says first, with a mark."""
        rows = "".join(
            f'<tr><td style="padding-right:6px;font-weight:700">{"?" if a.default else ""}</td>'
            f'<td style="padding-right:10px;vertical-align:top">{_html(a.what)}</td>'
            f'<td style="overflow-wrap:anywhere">{_html(a.value)} <i>({_html(a.source)})</i>'
            "</td></tr>"
            for a in sorted(self.assumptions, key=lambda a: not a.default)
        )
        return f'<table id="vla-assumptions" style="font-size:12px;margin:0 12px">{rows}</table>'

    def log_html(self) -> str:
        """The last lines, oldest first, one a row, in the colors of their levels."""
        rows = "".join(
            f'<div style="color:{_color(line.level)};white-space:pre-wrap">'
            f"{_html(f'[{line.node}] {line.text[:_LONGEST]}')}</div>"
            for line in self._log
        )
        return (
            '<div id="vla-log" style="font:11px/1.35 monospace;background:#111827;color:#d1d5db;'
            f'padding:8px;margin:0 8px;border-radius:6px;min-height:3em">{rows}</div>'
        )


_BUTTONS = {"release": "Give back"}  # a service whose button has another name


def for_page(text: str) -> str:
    """A reason, or an answer of a service, to a person who has the buttons of the services."""
    name = lambda found: _BUTTONS.get(found[1], found[1].capitalize())  # noqa: E731
    press = lambda found: "press " + re.sub(r"~/(\w+)", name, found[1])  # noqa: E731
    return re.sub(r"call (~/\w+(?: or ~/\w+)*)", press, text)


def _html(text: str) -> str:
    """Text of a message as HTML that shows it, whatever is in it."""
    return html.escape(printable(text, _LONGEST_TEXT))


def _decoding(status: StatusSeen, passes: float | None) -> str:
    if status.decoding in ("", "none"):
        return "none: no model"
    spent = f", {passes:.2g} passes an action" if passes is not None else ""
    return f"{status.decoding}{spent}"


def _end_of(checkpoint: str) -> str:
    """The end of a long path, which tells checkpoints apart."""
    return checkpoint if len(checkpoint) <= 40 else "…" + checkpoint[-39:]


def _color(level: int) -> str:
    return next(color for least, color in LEVELS if level >= least)


# Strip charts: the last minute of what the policy did, as lines to draw.
#
# Commands are added as they come; every :data:`EVERY_NS` one point of each line is made of those
# since the last. Where nothing was measured there is NaN, and no line. Not thread-safe.


EVERY_NS = SECOND // 5
SECONDS = 60
_RATE_OVER_NS = SECOND
_PALETTE = (
    "#2563eb", "#dc2626", "#16a34a", "#d97706", "#7c3aed", "#0891b2", "#db2777",
    "#65a30d", "#4b5563", "#b45309", "#0f766e", "#9333ea", "#be123c", "#1d4ed8",
)  # fmt: skip
LIMIT = "#b91c1c"
QUIET = "#6b7280"


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a chart. ``dashed``: a limit, not a measurement. ``filled``: down to the axis."""

    label: str
    color: str
    dashed: bool = False
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. ``x``: float64 [n], seconds before now, rising to 0; ``y``: float64 [n] for each
    line, NaN where nothing was measured. ``low`` and ``high``: the axis."""

    name: str
    title: str
    lines: tuple[ChartLine, ...]
    x: Floats
    y: tuple[Floats, ...]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CommandShown:
    """One command as the charts need it. ``units``: "1" is a gripper's opening. ``displaces``: its
    numbers are displacements over one control period."""

    seen: CommandSeen
    action: tuple[float, ...]
    names: tuple[str, ...]
    units: tuple[str, ...]
    displaces: bool = True


@dataclass(frozen=True, slots=True)
class _Point:
    steady_ns: int
    age_ms: float
    max_age_ms: float
    actions_hz: float
    commands_hz: float
    action_rate_hz: float
    control_rate_hz: float
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
        self._newest = (0, 0)  # action
        self._low: tuple[float, ...] = ()
        self._high: tuple[float, ...] = ()
        self._names: tuple[str, ...] = END_EFFECTOR_DELTA.names

    def set_bounds(self, low: Sequence[float], high: Sequence[float]) -> None:
        """Bounds of every number of an action but the grippers', in order."""
        self._low, self._high = tuple(low), tuple(high)

    def add(self, command: CommandShown, steady_ns: int) -> None:
        """A command that arrived at ``steady_ns``."""
        self._since.append(command)
        self._commands.append(steady_ns)
        if command.seen.kind is CommandKind.POLICY and command.seen.action != self._newest:
            self._newest = command.seen.action
            self._actions.append(steady_ns)
        if command.names and command.names != self._names:
            self._names = command.names
            self._points.clear()  # other lines

    def sample(self, status: StatusSeen | None, steady_ns: int) -> bool:
        """Make a point of each line, if it is time; says whether it did."""
        if self._points and steady_ns - self._points[-1].steady_ns < EVERY_NS:
            return False
        since, self._since = self._since, []
        new = [c for c in since if c.seen.kind is CommandKind.POLICY]
        ages = [_age_ms(c.seen) for c in since if c.seen.observed_ns]
        nothing = (math.nan,) * len(STAGES)
        stages = new[-1].seen.stages.durations_ms if new else nothing
        part = status.actions_a_period if status else 1.0
        shares = self._shares(since[-1], part) if since else (math.nan,) * len(self._names)
        point = _Point(
            steady_ns=steady_ns,
            age_ms=max(ages, default=math.nan),
            max_age_ms=status.max_age_ms if status else math.nan,
            actions_hz=_rate(self._actions, steady_ns),
            commands_hz=_rate(self._commands, steady_ns),
            action_rate_hz=status.action_rate_hz if status and status.two_rates else math.nan,
            control_rate_hz=status.control_rate_hz if status else math.nan,
            stages_ms=stages,
            action=shares,
            acceptance=status.acceptance if status else (),
        )
        self._points.append(point)
        return True

    def _shares(self, command: CommandShown, part: float) -> tuple[float, ...]:
        """Each number as a share of its bound, -1 to 1; a gripper's opening as it is. ``part``: of
        the bound of a displacement, which is an action's."""
        part = part if command.displaces else 1.0
        values = list(command.action[: len(self._names)])
        values += [math.nan] * (len(self._names) - len(values))
        bound = 0
        for i, unit in enumerate(command.units[: len(values)]):
            if unit == "1":
                continue
            if bound < min(len(self._low), len(self._high)):
                edge = part * (self._high[bound] if values[i] >= 0 else -self._low[bound])
                values[i] = values[i] / edge if edge > 0 else math.nan
            bound += 1
        return tuple(values)

    @property
    def age_ms(self) -> float:
        """The newest point's; NaN where nothing rests on an observation."""
        return self._points[-1].age_ms if self._points else math.nan

    def strips(self, steady_ns: int) -> tuple[Chart, ...]:
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

    def _age(self, points: tuple[_Point, ...], x: Floats) -> Chart:
        y = (_column(points, "age_ms"), _column(points, "max_age_ms"))
        lines = (
            ChartLine("observation age", _PALETTE[0]),
            ChartLine("max_age", LIMIT, dashed=True),
        )
        top = max(_top(y[0]), _top(y[1]), 10.0)
        return Chart("age", "observation age, ms", lines, x, y, 0.0, _round_up(1.15 * top))

    def _rate(self, points: tuple[_Point, ...], x: Floats) -> Chart:
        names = ["actions_hz", "commands_hz", "action_rate_hz", "control_rate_hz"]
        lines = [
            ChartLine("new actions", _PALETTE[2]),
            ChartLine("commands", QUIET),
            ChartLine("action rate", _PALETTE[2], dashed=True),
            ChartLine("control rate", LIMIT, dashed=True),
        ]
        if not points or math.isnan(points[-1].action_rate_hz):
            del names[2], lines[2]  # there is one rate
        y = tuple(_column(points, name) for name in names)
        top = max(max(map(_top, y)), 1.0)
        return Chart("rate", "rate, Hz", tuple(lines), x, y, 0.0, _round_up(1.15 * top))

    def _stages(self, points: tuple[_Point, ...], x: Floats) -> Chart:
        """Stages on top of each other, the last one first: each area covers the one behind it."""
        spent = np.array([p.stages_ms for p in points], np.float64).reshape(-1, len(STAGES))
        sums = np.cumsum(spent, axis=1)
        order = range(len(STAGES) - 1, -1, -1)
        lines = tuple(ChartLine(STAGES[i], _PALETTE[i], filled=True) for i in order)
        y = tuple(np.ascontiguousarray(sums[:, i]) for i in order)
        top = max(_top(y[0]), 1.0)
        return Chart("stages", "stages of an action, ms", lines, x, y, 0.0, _round_up(1.1 * top))

    def _action(self, points: tuple[_Point, ...], x: Floats) -> Chart:
        names = self._names
        lines = tuple(ChartLine(n, _PALETTE[i % len(_PALETTE)]) for i, n in enumerate(names))
        y = tuple(np.array([p.action[i] for p in points]) for i in range(len(names)))
        bounds = (ChartLine("bound", LIMIT, dashed=True), ChartLine("-bound", LIMIT, dashed=True))
        y += (np.ones_like(x), -np.ones_like(x))
        title = "command, share of its bound" if self._low else "command, m and rad"
        return Chart("action", title, (*lines, *bounds), x, y, -1.2, 1.2)

    def _acceptance(self, points: tuple[_Point, ...], x: Floats) -> Chart:
        count = max((len(p.acceptance) for p in points), default=0)
        names = self._names if count == len(self._names) else tuple(map(str, range(count)))
        lines = tuple(ChartLine(n, _PALETTE[i % len(_PALETTE)]) for i, n in enumerate(names))
        rows = [(*p.acceptance, *(math.nan,) * (count - len(p.acceptance))) for p in points]
        y = tuple(np.array([row[i] for row in rows]) for i in range(count))
        if not count:
            lines, y = (ChartLine("no drafts", QUIET),), (np.full_like(x, math.nan),)
        return Chart("acceptance", "draft acceptance, share", lines, x, y, 0.0, 1.05)


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
    """The next step of an axis, 5 times a power of ten apart: it must not twitch."""
    step = 10.0 ** math.floor(math.log10(value)) / 2
    return math.ceil(value / step) * step


# The three-dimensional part at an instant, and the last seconds of it.
#
# Not thread-safe. Times are nanoseconds of the steady clock; lengths are metres in the world frame.


HISTORY_SECONDS = 30  # that the slider reaches back
_EVERY_NS = SECOND // 10
_AHEAD_S = 0.5  # the arrow ends where the command, repeated so long, would bring the hand

#: Colors by the words in an object's name.
CUBE_RGB = {
    "red": (205, 40, 35),
    "green": (30, 150, 55),
    "blue": (35, 75, 205),
    "yellow": (240, 200, 30),
    "plate": (225, 232, 240),
    "basket": (150, 110, 70),
}
_OTHER = (150, 140, 190)
_NOT_THINGS = ("gripper", "finger")  # of the robot, which is shown by its joints
_CUBE_M = 0.042  # edge: the tabletop's cubes
_PLATE = (0.075, 0.009)  # radius, height
BASE = "base_link"  # the frame of displacements, as far as the robot has one of that name
ARROW_RGB, BONES_RGB = (220, 40, 160), (60, 70, 80)
PATH_RGB = (29, 78, 216)


@dataclass(frozen=True, slots=True)
class ViewInstant:
    """``joints``: rad and m by name; ``poses``: float64 [4, 4] by name, of the ground truth;
    ``step``: float64 [3], the displacement of one control period that was commanded last; ``path``:
    float64 [n, 3], where the policy's newest chunk leads the hand, in the world frame; ``path_ns``:
    the steady time of that chunk's observation."""

    steady_ns: int
    joints: Mapping[str, float] = field(default_factory=dict)
    poses: Mapping[str, Floats] = field(default_factory=dict)
    step: Floats | None = None
    path: Floats | None = None
    path_ns: int = 0

    def things(self) -> dict[str, Floats]:
        """Poses of the objects: all but the hand."""
        return {
            name: pose
            for name, pose in self.poses.items()
            if not any(word in name for word in _NOT_THINGS)
        }

    def arrow(self, rate_hz: float, base: Floats | None = None) -> Floats | None:
        """Float64 [2, 3], from the hand to where the commanded displacement leads in half a
        second. ``base``: float64 [4, 4] of the frame that displacements are in. None: no arrow."""
        hand = self.poses.get("gripper")
        if hand is None or self.step is None or not np.any(self.step):
            return None
        turned = self.step if base is None else base[:3, :3] @ self.step
        start = hand[:3, 3]
        return np.array([start, start + turned * rate_hz * _AHEAD_S])


def path_by_steps(hand: Floats, base: Floats | None, steps: Floats) -> Floats:
    """Float64 [n + 1, 3]: from the hand's place [4, 4] on by displacements [n, 3], which are in the
    frame ``base`` [4, 4], None: the world's."""
    turned = steps if base is None else steps @ base[:3, :3].T
    start = hand[:3, 3]
    return np.vstack([start, start + np.cumsum(turned, axis=0)])


class ViewHistory:
    """The last :data:`SECONDS` seconds, ten instants a second."""

    def __init__(self) -> None:
        self._kept: deque[ViewInstant] = deque(maxlen=HISTORY_SECONDS * SECOND // _EVERY_NS)
        self.now = ViewInstant(0)

    def add(self, instant: ViewInstant) -> None:
        """The newest; kept where the last that was kept is old enough."""
        self.now = instant
        if not self._kept or instant.steady_ns - self._kept[-1].steady_ns >= _EVERY_NS:
            self._kept.append(instant)

    def at(self, seconds_ago: float) -> ViewInstant:
        """The kept one nearest to then; the newest for 0."""
        if seconds_ago <= 0 or not self._kept:
            return self.now
        then = self.now.steady_ns - seconds_ago * SECOND
        return min(self._kept, key=lambda one: abs(one.steady_ns - then))


def thing_shape(name: str) -> Shape:
    """Shape and color of an object, by the words in its name: nothing else is known of it."""
    color = next((rgb for word, rgb in CUBE_RGB.items() if word in name), _OTHER)
    if "plate" in name:
        return Shape("cylinder", _PLATE, np.eye(4), color)
    return Shape("box", (_CUBE_M,) * 3, np.eye(4), color)


# Camera images with their age burnt in, so that a still image cannot pass for a live one.


FRESH = (255, 255, 255)
OLD = (255, 90, 80)
_LONG_MS = 10_000.0
_SHOWN = 320  # pixels of the longer side: a page is no microscope


def age_text(age_ms: float) -> str:
    """Age of an image, for a person. A clock that is not ours shows as an age below zero."""
    if age_ms < 0:
        return f"{age_ms:.0f} ms: clocks differ"
    return f"{age_ms:.0f} ms" if age_ms < _LONG_MS else f"{age_ms / 1e3:.0f} s"


def burnt(image: Image, age_ms: float, max_age_ms: float) -> Image:
    """The image, uint8 [height, width, 3], at most 320 pixels a side, with the age in its lower
    left corner: red where it is above ``max_age_ms`` (0: there is no limit)."""
    picture = Pillow.fromarray(image)
    picture.thumbnail((_SHOWN, _SHOWN))
    draw = ImageDraw.Draw(picture)
    size = max(11, picture.height // 14)
    font = ImageFont.load_default(size)
    text = age_text(age_ms)
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    pad = size // 4
    y = picture.height - (bottom - top) - 2 * pad
    draw.rectangle((0, y, right - left + 2 * pad, picture.height), fill=(0, 0, 0))
    color = OLD if 0 < max_age_ms < age_ms else FRESH
    draw.text((pad - left, y + pad - top), text, fill=color, font=font)
    return np.asarray(picture, np.uint8)


def side_by_side(pictures: Sequence[Image]) -> Image:
    """The images in one row, as high as the lowest, four pixels of white between."""
    height = min(picture.shape[0] for picture in pictures)
    row: list[Image] = []
    for picture in pictures:
        width = round(picture.shape[1] * height / picture.shape[0])
        same = picture.shape[:2] == (height, width)
        scaled = picture if same else np.asarray(Pillow.fromarray(picture).resize((width, height)))
        row += [scaled, np.full((height, 4, 3), 255, np.uint8)]
    return np.ascontiguousarray(np.concatenate(row[:-1], axis=1))


# The instructions of a simulation's tasks, to choose from.


@functools.cache
def instructions_of(environment: str, suite: str = "") -> tuple[str, ...]:
    """The instructions in the order of the tasks, each once; () for an unknown environment."""
    if environment == "tabletop":
        from vla_ros.sim.tasks import TASKS

        return tuple(dict.fromkeys(task.instruction for task in TASKS))
    if environment == "so101":
        from vla_ros.sim.so101.world import TASKS as OF_SO101

        return tuple(task.instruction for task in OF_SO101)
    if environment == "libero":
        try:
            tasks = tasks_of(suite, find_package())
        except SimError:
            return ()
        return tuple(dict.fromkeys(task.instruction for task in tasks))
    return ()
