"""Facts in Rerun's words: archetypes on entities, on the time line of the ROS clock.

https://rerun.io/docs/reference/types says what each archetype is. Its viewer draws lines of
:class:`Numbers`, lanes of :class:`State`, a log of :class:`Text`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.errors import UserError
from vla_ros.view.robot import Shape, wxyz_of
from vla_ros.windows.facts import Fact, Lines, Numbers, Picture, Place, Solid, State, Text
from vla_ros.windows.rerun_layout import layout
from vla_ros.windows.scene import WORLD

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
    """Writes what it is shown to a file or a viewer. Leave it by :meth:`close`.

    ``jpeg``: pictures in this quality, 1 to 100; 0: every pixel as it was. UserError: no SDK.
    """

    def __init__(self, name: str, jpeg: int = 0) -> None:
        self._rr = sdk()
        self._jpeg = jpeg
        self._stream = self._rr.RecordingStream(APPLICATION)
        self._stream.send_recording_name(name)
        self._kinds: dict[str, type[Fact]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._words: dict[str, str] = {}
        self._colours: dict[str, dict[str, str]] = {}  # of the words of each lane
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
        """Arrange the window for what was shown until now, and colour the states' lanes. Not
        ``active``: it is what the window goes back to when asked."""
        for path, colours in self._colours.items():
            colour = np.array([_rgba(one) for one in colours.values()], np.uint32)
            lane = self._rr.StateConfiguration(values=list(colours), colors=colour)
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
        if isinstance(fact, Picture):
            picture = self._rr.Image(fact.image)
            self._log(fact.path, picture.compress(self._jpeg) if self._jpeg else picture)
        elif isinstance(fact, Numbers):
            if self._names.get(fact.path) != fact.names:
                self._names[fact.path] = fact.names
                self._log(fact.path, self._rr.SeriesLines(names=list(fact.names)), static=True)
            self._log(fact.path, self._rr.Scalars(np.array(fact.values, np.float64)))
        elif isinstance(fact, State):
            self._show_state(fact)
        elif isinstance(fact, Text):
            level = next(word for least, word in _LEVELS if fact.level >= least)
            self._log(fact.path, self._rr.TextLog(fact.text, level=level))
        elif isinstance(fact, Place):
            turned = np.roll(wxyz_of(fact.at[:3, :3]), -1)  # w last
            quaternion = self._rr.Quaternion(xyzw=turned)
            self._log(
                fact.path,
                self._rr.Transform3D(translation=fact.at[:3, 3], quaternion=quaternion),
            )
            if new and fact.path.startswith((f"{WORLD}/tf/", f"{WORLD}/poses/")):
                self._log(fact.path, self._rr.TransformAxes3D(_AXES_M), static=True)
        elif isinstance(fact, Solid):
            self._log(fact.path, self._solid(fact.shape), static=True)
        else:
            self._log(fact.path, self._lines(fact))

    def _show_state(self, fact: State) -> None:
        """Only its changes: a lane is filled from one to the next."""
        if self._words.get(fact.path) == fact.word:
            return
        self._words[fact.path] = fact.word
        self._colours.setdefault(fact.path, {})[fact.word] = fact.colour
        self._log(fact.path, self._rr.StateChange(state=fact.word))

    def _solid(self, shape: Shape) -> Any:
        at = {
            "centers": [shape.at[:3, 3]],
            "quaternions": [self._rr.Quaternion(xyzw=np.roll(wxyz_of(shape.at[:3, :3]), -1))],
            "colors": [shape.colour],
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
            return self._rr.LineStrips3D(fact.ends, colors=[fact.colour], radii=[0.006])
        vectors = fact.ends[:, 1] - fact.ends[:, 0]
        return self._rr.Arrows3D(
            vectors=vectors, origins=fact.ends[:, 0], colors=[fact.colour], radii=[0.004]
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


def _entity(path: str) -> list[str]:
    """The parts of an entity's path; Rerun escapes what of them is no word."""
    return [part for part in path.split("/") if part]


def _rgba(colour: str) -> int:
    """#rrggbb as 0xrrggbbaa."""
    return (int(colour.lstrip("#"), 16) << 8) | 0xFF
