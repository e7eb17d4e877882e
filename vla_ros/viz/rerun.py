"""Facts as Rerun's archetypes on entities, on the time line of the ROS clock.

https://rerun.io/docs/reference/types says what each archetype is. Its viewer draws lines of
:class:`Numbers`, lanes of :class:`SceneState`, a log of :class:`Text`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.errors import UserError
from vla_ros.data.bags import Bag, BagError, BagMessage, BagTopic
from vla_ros.viz.robot_model import Shape, wxyz_of
from vla_ros.viz.scene import (
    WORLD,
    Fact,
    Lines,
    Numbers,
    Reader,
    SceneImage,
    ScenePose,
    SceneSolid,
    SceneState,
    Text,
    stamp_of,
)

# How Rerun's window is arranged for what a run has: cameras and the log on the left, the robot in
# the middle, state and lines on the right.


#: Charts by the last words of the entities in them, in this order.
CHARTS = (
    ("Age and staleness [s]", ("age", "staleness", "limit")),
    ("Stages of an action [s]", ("stages",)),
    ("Latency [s]", ("total", "inference")),
    ("Action", ("numbers",)),
    ("Rates [Hz]", ("rates",)),
    ("Draft acceptance", ("acceptance",)),
    ("Joints", ("joint_states",)),
)
_EYE, _LOOKED_AT = (1.3, -0.9, 0.9), (-0.1, 0.0, 0.2)  # m, as the page in the browser has it
_SHOWN = 4  # charts below each other; the others are tabs


def charts(kinds: Mapping[str, type[Fact]]) -> dict[str, list[str]]:
    """Title to entities, of those charts that there is anything for."""
    found: dict[str, list[str]] = {}
    for title, words in CHARTS:
        paths = [p for p, kind in kinds.items() if kind is Numbers and p.split("/")[-1] in words]
        if paths:
            found[title] = paths
    return found


def layout(kinds: Mapping[str, type[Fact]]) -> Any:
    """A blueprint of rerun-sdk for these entities."""
    import rerun.blueprint as rrb

    def of(kind: type[Fact]) -> list[str]:
        return [path for path, one in kinds.items() if one is kind]

    def entities(paths: list[str]) -> list[str]:
        return [f"+ /{path}" for path in paths]

    cameras = [rrb.Spatial2DView(origin=f"/{path}", name=path) for path in of(SceneImage)]
    left: list[Any] = [*cameras]
    if texts := of(Text):
        left.append(rrb.TextLogView(origin="/", contents=entities(texts), name="Log"))
    right: list[Any] = []
    if states := of(SceneState):
        right.append(
            rrb.StateTimelineView(origin="/", contents=entities(states), name="SceneState")
        )
    series = [
        rrb.TimeSeriesView(origin="/", contents=entities(paths), name=title)
        for title, paths in charts(kinds).items()
    ]
    right += series[:_SHOWN]
    if series[_SHOWN:]:
        right.append(rrb.Tabs(*series[_SHOWN:]))
    columns: list[Any] = []
    if left:
        columns.append(rrb.Vertical(*left, name="Cameras"))
    if any(path.startswith(f"{WORLD}/") for path in kinds):
        eye = rrb.EyeControls3D(position=_EYE, look_target=_LOOKED_AT, eye_up=(0.0, 0.0, 1.0))
        columns.append(rrb.Spatial3DView(origin=f"/{WORLD}", name="3-D", eye_controls=eye))
    if right:
        columns.append(rrb.Vertical(*right, name="Charts"))
    return rrb.Blueprint(
        rrb.Horizontal(*columns),
        rrb.TimePanel(timeline="ros_time", state="collapsed"),
        rrb.BlueprintPanel(state="collapsed"),
        rrb.SelectionPanel(state="collapsed"),
    )


APPLICATION = "vla_ros"
ROS_TIME = "ros_time"  # by the stamps of the messages
RECORDED = "recorded"  # when the recorder received them
_YEAR_NS = 365 * 86400 * 10**9  # a clock below it is a simulation's, which counts from zero
_AXES_M = 0.05
_LEVELS = ((40, "ERROR"), (30, "WARN"), (20, "INFO"), (0, "DEBUG"))


def sdk() -> Any:
    """The module `rerun`. UserError where rerun-sdk is missing."""
    try:
        import rerun
    except ImportError as error:
        raise UserError(
            f"rerun-sdk is missing ({error}): pip install '.[rerun]' in the checkout (Python 3.11"
            " or newer; 670 MB installed)"
        ) from None
    if not hasattr(rerun, "RecordingStream"):
        raise UserError("the module `rerun` is another package: pip install '.[rerun]'")
    return rerun


class RerunLog:
    """Writes facts to a file or a viewer. Leave it by :meth:`close`.

    ``jpeg``: images in this quality, 1 to 100; 0: every pixel as it was. UserError: no SDK.
    """

    def __init__(self, name: str, jpeg: int = 0) -> None:
        self._rr = sdk()
        self._jpeg = jpeg
        self._stream = self._rr.RecordingStream(APPLICATION)
        self._stream.send_recording_name(name)
        self._kinds: dict[str, type[Fact]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._words: dict[str, str] = {}
        self._colors: dict[str, dict[str, str]] = {}  # of the words of each lane
        self._counted: bool | None = None  # whether the clock counts from zero

    def to_file(self, path: Path) -> None:
        """Before anything is shown."""
        self._stream.save(path)

    def to_viewer(self, address: str = "") -> None:
        """A viewer that listens at ``address``; "": one that is started here."""
        if address:
            self._stream.connect_grpc(address)
        else:
            self._stream.spawn()

    @property
    def paths(self) -> dict[str, type[Fact]]:
        """Every entity that was shown, and of which kind."""
        return dict(self._kinds)

    def send_layout(self, active: bool = True) -> None:
        """Arrange the window for the facts until now, and color the states' lanes. Not ``active``:
        as the layout that the window can go back to."""
        for path, colors in self._colors.items():
            color = np.array([_rgba(one) for one in colors.values()], np.uint32)
            lane = self._rr.StateConfiguration(values=list(colors), colors=color)
            self._log(path, lane, static=True)
        self._stream.send_blueprint(layout(self._kinds), make_active=active)

    def close(self) -> None:
        """Everything is written when it returns."""
        self._stream.flush()
        self._stream.disconnect()

    def show(self, fact: Fact, stamp_ns: int, recorded_ns: int) -> None:
        """``stamp_ns``: by the ROS clock; ``recorded_ns``: since the epoch."""
        self._set_time(stamp_ns, recorded_ns)
        new = fact.path not in self._kinds
        self._kinds.setdefault(fact.path, type(fact))
        if isinstance(fact, SceneImage):
            picture = self._rr.Image(fact.image)
            self._log(fact.path, picture.compress(self._jpeg) if self._jpeg else picture)
        elif isinstance(fact, Numbers):
            if self._names.get(fact.path) != fact.names:
                self._names[fact.path] = fact.names
                self._log(fact.path, self._rr.SeriesLines(names=list(fact.names)), static=True)
            self._log(fact.path, self._rr.Scalars(np.array(fact.values, np.float64)))
        elif isinstance(fact, SceneState):
            self._show_state(fact)
        elif isinstance(fact, Text):
            level = next(word for least, word in _LEVELS if fact.level >= least)
            self._log(fact.path, self._rr.TextLog(fact.text, level=level))
        elif isinstance(fact, ScenePose):
            turned = np.roll(wxyz_of(fact.at[:3, :3]), -1)  # w last
            quaternion = self._rr.Quaternion(xyzw=turned)
            self._log(
                fact.path,
                self._rr.Transform3D(translation=fact.at[:3, 3], quaternion=quaternion),
            )
            if new and fact.path.startswith((f"{WORLD}/tf/", f"{WORLD}/poses/")):
                self._log(fact.path, self._rr.TransformAxes3D(_AXES_M), static=True)
        elif isinstance(fact, SceneSolid):
            self._log(fact.path, self._solid(fact.shape), static=True)
        else:
            self._log(fact.path, self._lines(fact))

    def _show_state(self, fact: SceneState) -> None:
        """Only its changes: a lane is filled from one to the next."""
        if self._words.get(fact.path) == fact.word:
            return
        self._words[fact.path] = fact.word
        self._colors.setdefault(fact.path, {})[fact.word] = fact.color
        self._log(fact.path, self._rr.StateChange(state=fact.word))

    def _solid(self, shape: Shape) -> Any:
        at = {
            "centers": [shape.at[:3, 3]],
            "quaternions": [self._rr.Quaternion(xyzw=np.roll(wxyz_of(shape.at[:3, :3]), -1))],
            "colors": [shape.color],
            "fill_mode": "solid",
        }
        if shape.kind == "box":
            return self._rr.Boxes3D(sizes=[shape.size], **at)
        if shape.kind == "cylinder":
            radius, length = shape.size
            return self._rr.Cylinders3D(radii=[radius], lengths=[length], **at)
        return self._rr.Ellipsoids3D(radii=[shape.size[0]], **at)

    def _lines(self, fact: Lines) -> Any:
        if not fact.arrow:
            return self._rr.LineStrips3D(fact.ends, colors=[fact.color], radii=[0.006])
        vectors = fact.ends[:, 1] - fact.ends[:, 0]
        return self._rr.Arrows3D(
            vectors=vectors, origins=fact.ends[:, 0], colors=[fact.color], radii=[0.004]
        )

    def _log(self, path: str, what: Any, static: bool = False) -> None:
        self._stream.log(_entity(path), what, static=static)

    def _set_time(self, stamp_ns: int, recorded_ns: int) -> None:
        if self._counted is None:
            self._counted = stamp_ns < _YEAR_NS
        if self._counted:
            self._stream.set_time(ROS_TIME, duration=np.timedelta64(stamp_ns, "ns"))
        else:
            self._stream.set_time(ROS_TIME, timestamp=np.datetime64(stamp_ns, "ns"))
        self._stream.set_time(RECORDED, timestamp=np.datetime64(recorded_ns, "ns"))


# A bag as a recording.


@dataclass(frozen=True, slots=True)
class RerunSummary:
    """Summary of a bag's export: messages shown, topics without facts, and of each topic with
    malformed messages how many there were and the first error."""

    messages: int
    skipped: tuple[BagTopic, ...]
    malformed: dict[str, tuple[int, str]]
    seconds: float


def show_bag(bag: Bag, log: RerunLog, progress: Callable[[int, int], None]) -> RerunSummary:
    """Show every message that has facts, in the order of its recording.

    A message without a stamp stands at the newest stamp before it, the first ones at the first
    stamp of all. BagError: nothing of the bag can be shown, or it is damaged.
    """
    reader = Reader()
    chosen = [topic for topic in bag.topics if topic.count and topic.kind in reader.kinds]
    skipped = tuple(topic for topic in bag.topics if topic.count and topic not in chosen)
    if not chosen:
        names = ", ".join(f"{t.name} ({t.kind})" for t in skipped[:8])
        raise BagError(f"{bag.path}: nothing of it can be shown; it has {names}")
    total = sum(topic.count for topic in chosen)
    early: list[tuple[BagMessage, Any]] = []
    wrong: Counter[str] = Counter()
    complaints: dict[str, str] = {}
    now: int | None = None
    first_ns = last_ns = 0
    done = 0

    def show(message: BagMessage, content: Any, stamp_ns: int) -> None:
        try:
            for fact in reader.read(message.topic, message.kind, content):
                log.show(fact, stamp_ns, message.stamp_ns)
        except ValueError as error:  # BadMessage among them
            wrong[message.topic] += 1
            complaints.setdefault(message.topic, str(error))

    for done, message in enumerate(bag.messages([t.name for t in chosen]), 1):
        content = bag.decode(message)
        stamp = stamp_of(content)
        first_ns = first_ns or message.stamp_ns
        last_ns = message.stamp_ns
        if stamp is None and now is None:
            early.append((message, content))
            continue
        if now is None and stamp is not None:
            for held in early:
                show(*held, stamp)
            early.clear()
        now = max(filter(None, (now, stamp)))
        show(message, content, stamp or now)
        progress(done, total)
    for held_message, held_content in early:  # a bag without any stamp
        show(held_message, held_content, held_message.stamp_ns)
    if sum(wrong.values()) == done:
        raise BagError(f"{bag.path}: nothing of it can be shown: {next(iter(complaints.values()))}")
    malformed = {topic: (wrong[topic], complaints[topic]) for topic in wrong}
    return RerunSummary(done - sum(wrong.values()), skipped, malformed, (last_ns - first_ns) / 1e9)


def export(
    bag: Bag, path: Path, jpeg: int, progress: Callable[[int, int], None]
) -> tuple[RerunSummary, dict[str, type[Fact]]]:
    """Write a bag as ``path``, whole or not at all; what was shown, and the entities.

    UserError: rerun-sdk is missing. BagError: see :func:`show_bag`.
    """
    log = RerunLog(bag.path.name, jpeg)
    part = path.with_name(path.name + ".part")
    try:
        log.to_file(part)
        shown = show_bag(bag, log, progress)
        log.send_layout()
        log.close()
        part.replace(path)
    except BaseException:
        log.close()
        part.unlink(missing_ok=True)
        raise
    return shown, log.paths


def _entity(path: str) -> list[str]:
    """The parts of an entity's path; Rerun escapes what of them is no word."""
    return [part for part in path.split("/") if part]


def _rgba(color: str) -> int:
    """#rrggbb as 0xrrggbbaa."""
    return (int(color.lstrip("#"), 16) << 8) | 0xFF
