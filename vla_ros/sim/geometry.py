"""The frames of a robot, read from the MuJoCo model that simulates it.

Names: a link is called as its body, the model's root ``world``. Optical frames are REP 103's:
z forward, x right, y down.
"""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np

from vla_ros.core import Pose
from vla_ros.sim import urdf
from vla_ros.sim.env import OPTICAL_FRAMES, WORLD, Frame, Geometry
from vla_ros.sim.urdf import Link, pose_of

_HALF_TURN_X = np.array([0.0, 1.0, 0.0, 0.0])  # a MuJoCo camera looks along -z, and y is up


class RobotModel:
    """The robot that stands on the body ``base``, with the cameras of OPTICAL_FRAMES. ``tool``:
    the site between its fingers.

    Bodies with more than one joint, or a joint that is not at its body's origin, are refused
    with ValueError: URDF has no such thing.
    """

    def __init__(self, model: mujoco.MjModel, name: str, base: str, tool: str) -> None:
        self._model = model
        self._base = model.body(base).id
        self._links = list(_links(model, self._base))
        self._moving = [link for link in self._links if link.joint >= 0]
        fixed = [self._base_frame(base), *self._fixed_links(), self._tool_frame(tool)]
        fixed += [self._camera_frame(camera) for camera in OPTICAL_FRAMES]
        self.geometry = Geometry(
            fixed=tuple(fixed),
            parents={link.name: link.parent for link in self._moving},
            fovy={c: float(np.radians(model.camera(c).fovy[0])) for c in OPTICAL_FRAMES},
            urdf=urdf.document(model, name, self._base, self._links, fixed),
        )

    def link_poses(self, data: mujoco.MjData) -> dict[str, Pose]:
        """Of each moving link in its parent's frame, now."""
        poses, back, position, turn = {}, np.empty(4), np.empty(3), np.empty(4)
        for link in self._moving:
            parent = self._model.body_parentid[link.body]
            mujoco.mju_negQuat(back, data.xquat[parent])
            mujoco.mju_rotVecQuat(position, data.xpos[link.body] - data.xpos[parent], back)
            mujoco.mju_mulQuat(turn, back, data.xquat[link.body])
            poses[link.name] = pose_of(position, turn)
        return poses

    # ------------------------------------------------------------------ what does not move

    def _base_frame(self, name: str) -> Frame:
        model = self._model
        if model.body_parentid[self._base] != 0:
            raise ValueError(f"body {name} does not stand in the world")
        return Frame(name, WORLD, pose_of(model.body_pos[self._base], model.body_quat[self._base]))

    def _fixed_links(self) -> Iterator[Frame]:
        model = self._model
        for link in self._links:
            if link.joint < 0:
                pose = pose_of(model.body_pos[link.body], model.body_quat[link.body])
                yield Frame(link.name, link.parent, pose)

    def _tool_frame(self, name: str) -> Frame:
        site = self._model.site(name)
        return Frame("gripper", self._model.body(site.bodyid[0]).name, pose_of(site.pos, site.quat))

    def _camera_frame(self, name: str) -> Frame:
        """On its link, or on the base where it stands in the world."""
        model, camera = self._model, self._model.camera(name)
        position, turn, body = camera.pos.copy(), np.empty(4), int(camera.bodyid[0])
        mujoco.mju_mulQuat(turn, camera.quat, _HALF_TURN_X)
        if body == 0:
            back, body = np.empty(4), self._base
            mujoco.mju_negQuat(back, model.body_quat[body])
            mujoco.mju_rotVecQuat(position, camera.pos - model.body_pos[body], back)
            mujoco.mju_mulQuat(turn, back, turn.copy())
        return Frame(OPTICAL_FRAMES[name], model.body(body).name, pose_of(position, turn))


def _links(model: mujoco.MjModel, base: int) -> Iterator[Link]:
    """Every body below the base, parents first."""
    inside = {base}
    for body in range(base + 1, model.nbody):
        parent = int(model.body_parentid[body])
        if parent not in inside:
            continue
        inside.add(body)
        count, name = int(model.body_jntnum[body]), model.body(body).name
        joint = int(model.body_jntadr[body]) if count else -1
        if count > 1 or (
            count and (np.any(model.jnt_pos[joint]) or model.jnt_type[joint] not in urdf.KINDS)
        ):
            raise ValueError(f"body {name} has joints that URDF cannot say")
        yield Link(name, model.body(parent).name, body, joint)
