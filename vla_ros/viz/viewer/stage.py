"""The three-dimensional part of the page: the arm by its joints, things by their poses, and an
arrow where the commanded displacement leads, the path of the policy's newest chunk, with its age,
and what a depth camera sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_ros.core.clock import SECOND
from vla_ros.core.types import Floats
from vla_ros.viz.robot_model import Robot, Shape, wxyz_of
from vla_ros.viz.viewer.model import (
    ARROW_RGB,
    BASE,
    BONES_RGB,
    PATH_RGB,
    ViewInstant,
    thing_shape,
)

POINT_M = 0.004  # of a side


@dataclass(frozen=True)
class Cloud:
    """Points of a depth camera: float32 [n, 3] in the frame of the robot's root, uint8 [n, 3] RGB,
    and the stamp of the cloud in ns."""

    points: np.ndarray[Any, np.dtype[np.float32]]
    colors: np.ndarray[Any, np.dtype[np.uint8]]
    stamp_ns: int

    @staticmethod
    def none() -> Cloud:
        """No points."""
        return Cloud(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.uint8), 0)


class Stage:
    """Draws into a viser server's scene. One thread."""

    def __init__(self, server: Any) -> None:
        self._scene = server.scene
        self._frames: dict[str, Any] = {}
        self._things: dict[str, Any] = {}
        self._robot: Robot | None = None
        self._bones: Any = None
        self._arrow: Any = None
        self._path: Any = None
        self._path_age: Any = None
        self._cloud: Any = None
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
        places = self.places(instant.joints)
        for link, frame in self._frames.items():
            _put(frame, places[link])
        if self._robot is not None and not self._frames:
            self._show_bones(self._robot.bones(places))
        for name, pose in instant.things().items():
            if name not in self._things:
                self._things[name] = self._add_shape(f"/things/{name}", thing_shape(name))
            _put(self._things[name], pose)
        self._show_arrow(instant.arrow(rate_hz, places.get(BASE)))
        self._show_path(instant)

    def places(self, joints: Mapping[str, float]) -> dict[str, Floats]:
        """Every link of the robot, float64 [4, 4]; none where there is no robot."""
        return self._robot.places(joints) if self._robot is not None else {}

    def show_cloud(self, cloud: Cloud | None) -> None:
        """In place of the cloud before; None: that one stays."""
        if cloud is None:
            return
        if self._cloud is not None:
            self._cloud.remove()
            self._cloud = None
        if len(cloud.points):
            self._cloud = self._scene.add_point_cloud(
                "/cloud", cloud.points, cloud.colors, point_size=POINT_M, point_shading="flat"
            )

    def base(self, joints: Mapping[str, float]) -> Floats | None:
        """Place of the frame of displacements, float64 [4, 4]; None: the robot has none."""
        return self.places(joints).get(BASE)

    def _show_path(self, instant: ViewInstant) -> None:
        """The chunk's path as a tube, and beside its end how old its observation was then."""
        path = instant.path
        if path is None or len(path) < 2 or not np.isfinite(path).all():
            for handle in filter(None, (self._path, self._path_age)):
                handle.visible = False
            return
        age_s = (instant.steady_ns - instant.path_ns) / SECOND
        text = f"{len(path) - 1} actions, {1e3 * age_s:.0f} ms old"
        segments = np.stack([path[:-1], path[1:]], axis=1).astype(np.float32)
        if self._path is None:
            self._path = self._scene.add_line_segments("/path", segments, PATH_RGB, thickness=0.006)
            self._path_age = self._scene.add_label("/path_age", text, position=path[-1])
            return
        self._path.points, self._path.visible = segments, True
        self._path_age.position, self._path_age.text = path[-1], text
        self._path_age.visible = True

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
