"""The three-dimensional part of the page: the arm by its joints, things by their poses, and an
arrow where the commanded displacement leads."""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_ros.core.types import Floats
from vla_ros.viz.robot_model import Robot, Shape, wxyz_of
from vla_ros.viz.viewer.model import ARROW_RGB, BASE, BONES_RGB, ViewInstant, thing_shape


class Stage:
    """Draws into a viser server's scene. One thread."""

    def __init__(self, server: Any) -> None:
        self._scene = server.scene
        self._frames: dict[str, Any] = {}
        self._things: dict[str, Any] = {}
        self._robot: Robot | None = None
        self._bones: Any = None
        self._arrow: Any = None
        self._scene.add_grid(
            "/floor",
            width=2.0,
            height=2.0,
            cell_size=0.1,
            section_size=0.5,
            position=(0, 0, -0.001),
        )
        camera = server.initial_camera
        camera.position, camera.look_at, camera.up = (1.1, -0.8, 0.75), (-0.15, 0.0, 0.2), (0, 0, 1)

    def set_robot(self, robot: Robot) -> None:
        """From now on this one."""
        for frame in self._frames.values():
            frame.remove()
        self._robot, self._frames = robot, {}
        for link, shapes in robot.shapes.items():
            if not shapes:
                continue
            self._frames[link] = self._scene.add_frame(f"/robot/{link}", show_axes=False)
            for index, shape in enumerate(shapes):
                self._add_shape(f"/robot/{link}/{index}", shape)

    def _add_shape(self, name: str, shape: Shape) -> Any:
        given = {
            "color": shape.color,
            "position": shape.at[:3, 3],
            "wxyz": wxyz_of(shape.at[:3, :3]),
        }
        if shape.kind == "box":
            return self._scene.add_box(name, dimensions=shape.size, **given)
        if shape.kind == "cylinder":
            radius, height = shape.size
            return self._scene.add_cylinder(
                name, radius=radius, height=height, radial_segments=16, **given
            )
        return self._scene.add_icosphere(name, radius=shape.size[0], subdivisions=2, **given)

    def show(self, instant: ViewInstant, rate_hz: float) -> None:
        """Everything as it was then."""
        places = self._robot.places(instant.joints) if self._robot is not None else {}
        for link, frame in self._frames.items():
            _put(frame, places[link])
        if self._robot is not None and not self._frames:
            self._show_bones(self._robot.bones(places))
        for name, pose in instant.things().items():
            if name not in self._things:
                self._things[name] = self._add_shape(f"/things/{name}", thing_shape(name))
            _put(self._things[name], pose)
        self._show_arrow(instant.arrow(rate_hz, places.get(BASE)))

    def _show_bones(self, bones: Floats) -> None:
        if self._bones is None:
            self._bones = self._scene.add_line_segments("/bones", bones, BONES_RGB, thickness=0.012)
        else:
            self._bones.points = bones

    def _show_arrow(self, arrow: Floats | None) -> None:
        if arrow is None:
            if self._arrow is not None:
                self._arrow.visible = False
            return
        points = arrow[None].astype(np.float32)
        if self._arrow is None:
            self._arrow = self._scene.add_arrows(
                "/commanded",
                points,
                ARROW_RGB,
                shaft_radius=0.006,
                head_radius=0.016,
                head_length=0.03,
            )
        else:
            self._arrow.points = points
            self._arrow.visible = True


def _put(handle: Any, place: Floats) -> None:
    handle.position = place[:3, 3]
    handle.wxyz = wxyz_of(place[:3, :3])
