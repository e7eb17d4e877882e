"""The three-dimensional part: the arm by its description and joints, things by their poses, frames
by their transforms, and an arrow where the commanded displacement leads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vla_ros.core import Floats
from vla_ros.view.robot import Robot, Shape, place_of, read
from vla_ros.view.space import Instant, colour_of
from vla_ros.windows.facts import Fact, Lines, Place, Solid, Text
from vla_ros.windows.frames import Frames

WORLD = "world"
_CUBE = Shape("box", (0.042,) * 3, np.eye(4), (0, 0, 0))  # of what nobody says the size of
_PLATE = Shape("cylinder", (0.075, 0.009), np.eye(4), (0, 0, 0))
_ARROW, _BONES = (220, 40, 160), (60, 70, 80)
_BASE = "base_link"  # the frame of displacements, as far as the robot has one of that name
_NOTHING: Floats = np.zeros((0, 2, 3))


class Scene:
    """Not thread-safe. One robot: of two descriptions the later one counts."""

    def __init__(self) -> None:
        self.control_rate_hz = 0.0
        self._frames = Frames()
        self._robot: Robot | None = None
        self._told = ""
        self._now = Instant(0)
        self._links: dict[str, Floats] = {}
        self._known: set[str] = set()
        self._arrow_shown = False

    def robot(self, urdf: str) -> Iterator[Fact]:
        """Its shapes, and where they are while no joint was heard."""
        if urdf == self._told:
            return
        self._told = urdf
        try:
            self._robot = read(urdf)
        except ValueError as error:
            yield Text(f"{WORLD}/robot", f"no robot is shown: {error}", 30)
            return
        for link, shapes in self._robot.shapes.items():
            for index, shape in enumerate(shapes):
                yield Solid(f"{WORLD}/robot/{link}/{index}", shape)
        yield from self._moved()

    def joints(self, joints: dict[str, float]) -> Iterator[Fact]:
        self._now = replace(self._now, joints={**self._now.joints, **joints})
        yield from self._moved()

    def _moved(self) -> Iterator[Fact]:
        if self._robot is None:
            return
        root = self._frames.place(self._robot.root)
        places = self._robot.places(self._now.joints)
        self._links = {link: root @ at for link, at in places.items()}
        for link, at in self._links.items():
            if self._robot.shapes.get(link):
                yield Place(f"{WORLD}/robot/{link}", at)
        if not any(self._robot.shapes.values()):
            yield Lines(f"{WORLD}/robot", self._robot.bones(self._links), _BONES)

    def transforms(self, message: Any) -> Iterator[Fact]:
        """Each frame that moved, and all that hang on it."""
        moved: dict[str, None] = {}
        for one in message.transforms:
            child = str(one.child_frame_id).strip("/")
            t, q = one.transform.translation, one.transform.rotation
            at = place_of((t.x, t.y, t.z), (q.x, q.y, q.z, q.w))
            if np.isfinite(at).all():
                self._frames.hear(str(one.header.frame_id).strip("/"), child, at)
                moved |= dict.fromkeys(self._frames.below(child))
        for frame in moved:
            yield Place(f"{WORLD}/tf/{frame}", self._frames.place(frame))

    def things(self, message: Any) -> Iterator[Fact]:
        """vla_ros/NamedPoses: the hand and what lies about."""
        above = self._frames.place(str(message.header.frame_id).strip("/"))
        poses = {
            str(name): above @ _matrix(pose)
            for name, pose in zip(message.names, message.poses, strict=False)
        }
        self._now = replace(self._now, poses={**self._now.poses, **poses})
        for name, at in Instant(0, poses=poses).things().items():
            path = f"{WORLD}/things/{name}"
            if path not in self._known:
                self._known.add(path)
                shape = _PLATE if "plate" in name else _CUBE
                yield Solid(f"{path}/shape", replace(shape, colour=colour_of(name)))
            yield Place(path, at)

    def pose(self, path: str, message: Any) -> Iterator[Fact]:
        """A pose of its own; that of an end effector is where the arrow begins."""
        at = self._frames.place(str(message.header.frame_id).strip("/")) @ _matrix(message.pose)
        if path.split("/")[-1] == "end_effector_pose":
            self._now = replace(self._now, poses={**self._now.poses, "gripper": at})
        yield Place(f"{WORLD}/poses/{path}", at)

    def commanded(self, message: Any, action: Sequence[float]) -> Iterator[Fact]:
        """Where the displacement, repeated for half a second, leads; nothing for other actions."""
        step = np.array(action[:3], np.float64)
        delta = int(getattr(message, "action_space", 0)) == 0 and len(step) == 3
        known = step if delta and np.isfinite(step).all() else None
        base = self._links.get(_BASE)
        arrow = replace(self._now, step=known).arrow(self.control_rate_hz, base)
        if arrow is not None:
            yield Lines(f"{WORLD}/commanded", arrow[None], _ARROW, arrow=True)
        elif self._arrow_shown:
            yield Lines(f"{WORLD}/commanded", _NOTHING, _ARROW, arrow=True)
        self._arrow_shown = arrow is not None


def _matrix(pose: Any) -> Floats:
    p, q = pose.position, pose.orientation
    return place_of((p.x, p.y, p.z), (q.x, q.y, q.z, q.w))
