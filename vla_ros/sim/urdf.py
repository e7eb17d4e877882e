"""A MuJoCo robot as URDF, so that rviz, Foxglove and robot_state_publisher show it.

Boxes, cylinders, spheres and capsules are shown; meshes are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

import mujoco
import numpy as np
import numpy.typing as npt

from vla_ros.core.types import Pose
from vla_ros.sim.env import OPTICAL_FRAMES, WORLD, Frame, Geometry

KINDS = {
    int(mujoco.mjtJoint.mjJNT_HINGE): "revolute",
    int(mujoco.mjtJoint.mjJNT_SLIDE): "prismatic",
}
_VELOCITY = 3.0  # rad/s and m/s: URDF asks for a limit, the simulation has none


@dataclass(frozen=True, slots=True)
class UrdfLink:
    """A body below the base; ``joint`` is -1 where it is fixed to its parent."""

    name: str
    parent: str
    body: int
    joint: int


def document(
    model: mujoco.MjModel, name: str, base: int, links: Iterable[UrdfLink], fixed: Iterable[Frame]
) -> str:
    """URDF of the robot on the body ``base``, which ``fixed`` ties to the world with all that is
    tied to its links: cameras, say. Joints are called as in the model."""
    root = model.body(base).name
    parts, known = [_link(WORLD), _link(root, _shapes(model, base))], {root}
    for link in links:
        known.add(link.name)
        parts.append(_link(link.name, _inertia(model, link.body) + _shapes(model, link.body)))
        if link.joint >= 0:
            parts.append(_joint(model, link))
    for frame in fixed:
        if frame.name not in known:
            parts.append(_link(frame.name))
        parts.append(_fixed_joint(frame))
    head = f'<?xml version="1.0"?>\n<robot name={quoteattr(name)}>\n'
    return head + "".join(parts) + "</robot>\n"


def pose_of(position: npt.ArrayLike, wxyz: npt.ArrayLike) -> Pose:
    """Pose of a position and a quaternion in MuJoCo's order, w x y z."""
    px, py, pz = np.asarray(position, float).tolist()
    w, x, y, z = np.asarray(wxyz, float).tolist()
    return Pose((px, py, pz), (x, y, z, w))


def _link(name: str, content: str = "") -> str:
    return f"<link name={quoteattr(name)}>{content}</link>\n"


def _joint(model: mujoco.MjModel, link: UrdfLink) -> str:
    joint = model.joint(link.joint)
    low, high = joint.range
    limits = f'lower="{low:.9g}" upper="{high:.9g}" velocity="{_VELOCITY:g}"'
    return (
        f'<joint name={quoteattr(joint.name)} type="{KINDS[int(joint.type[0])]}">'
        f"<parent link={quoteattr(link.parent)}/><child link={quoteattr(link.name)}/>"
        f"{_origin(pose_of(model.body_pos[link.body], model.body_quat[link.body]))}"
        f'<axis xyz="{_text(joint.axis)}"/>'
        f'<limit {limits} effort="{_effort(model, link.joint):.9g}"/>'
        "</joint>\n"
    )


def _effort(model: mujoco.MjModel, joint: int) -> float:
    """Limit of a joint's motor, Nm or N; of a position servo that of its force."""
    for motor in range(model.nu):
        if model.actuator_trnid[motor, 0] == joint:
            limited = model.actuator_forcelimited[motor]
            limits = model.actuator_forcerange if limited else model.actuator_ctrlrange
            return float(np.abs(limits[motor]).max())
    return 0.0


def _fixed_joint(frame: Frame) -> str:
    return (
        f'<joint name={quoteattr(f"{frame.parent}_to_{frame.name}")} type="fixed">'
        f"<parent link={quoteattr(frame.parent)}/><child link={quoteattr(frame.name)}/>"
        f"{_origin(frame.pose)}</joint>\n"
    )


def _inertia(model: mujoco.MjModel, body: int) -> str:
    if not model.body_mass[body]:
        return ""
    x, y, z = model.body_inertia[body]
    return (
        f"<inertial>{_origin(pose_of(model.body_ipos[body], model.body_iquat[body]))}"
        f'<mass value="{model.body_mass[body]:.9g}"/>'
        f'<inertia ixx="{x:.9g}" ixy="0" ixz="0" iyy="{y:.9g}" iyz="0" izz="{z:.9g}"/></inertial>'
    )


def _shapes(model: mujoco.MjModel, body: int) -> str:
    first = int(model.body_geomadr[body])
    return "".join(
        _visual(model, geom) for geom in range(first, first + int(model.body_geomnum[body]))
    )


def _visual(model: mujoco.MjModel, geom: int) -> str:
    """Visuals of boxes, cylinders, spheres, and of capsules made of those; of others none."""
    kind, size = mujoco.mjtGeom(int(model.geom_type[geom])), model.geom_size[geom]
    origin = pose_of(model.geom_pos[geom], model.geom_quat[geom])
    cylinder = f'<cylinder radius="{size[0]:.9g}" length="{2 * size[1]:.9g}"/>'
    sphere = f'<sphere radius="{size[0]:.9g}"/>'
    along = np.zeros(3)
    mujoco.mju_rotVecQuat(along, np.array([0.0, 0.0, size[1]]), model.geom_quat[geom])
    tips = [pose_of(model.geom_pos[geom] + side * along, (1, 0, 0, 0)) for side in (-1, 1)]
    parts: list[tuple[Pose, str]] = {
        mujoco.mjtGeom.mjGEOM_BOX: [(origin, f'<box size="{_text(2 * size)}"/>')],
        mujoco.mjtGeom.mjGEOM_CYLINDER: [(origin, cylinder)],
        mujoco.mjtGeom.mjGEOM_SPHERE: [(origin, sphere)],
        mujoco.mjtGeom.mjGEOM_CAPSULE: [(origin, cylinder), *((tip, sphere) for tip in tips)],
    }.get(kind, [])
    color = _text(model.geom_rgba[geom])
    paint = f'<material name="rgba {color}"><color rgba="{color}"/></material>'
    return "".join(
        f"<visual>{_origin(pose)}<geometry>{shape}</geometry>{paint}</visual>"
        for pose, shape in parts
    )


def _origin(pose: Pose) -> str:
    return f'<origin xyz="{_text(pose.position)}" rpy="{_text(_rpy(pose))}"/>'


def _rpy(pose: Pose) -> tuple[float, float, float]:
    """Roll, pitch, yaw about fixed axes, as in URDF. At a pitch of 90 degrees the roll takes it
    all."""
    x, y, z, w = pose.quaternion
    sine = 2 * (w * y - z * x)
    if abs(sine) > 1 - 1e-12:
        return (2 * float(np.arctan2(x, w)), float(np.copysign(np.pi / 2, sine)), 0.0)
    roll = np.arctan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return float(roll), float(np.arcsin(sine)), float(yaw)


def _text(numbers: npt.ArrayLike) -> str:
    return " ".join(f"{value:.9g}" for value in np.asarray(numbers, float))


# The frames of a robot, read from the MuJoCo model that simulates it.
#
# Names: a link is called as its body, the model's root ``world``. Optical frames are REP 103's:
# z forward, x right, y down.


_HALF_TURN_X = np.array([0.0, 1.0, 0.0, 0.0])  # a MuJoCo camera looks along -z, and y is up


class RobotModel:
    """Model of the robot on the body ``base``, with the cameras of OPTICAL_FRAMES. ``tool``:
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
            urdf=document(model, name, self._base, self._links, fixed),
        )

    def link_poses(self, data: mujoco.MjData) -> dict[str, Pose]:
        """Poses of the moving links in their parents' frames, now."""
        poses, back, position, turn = {}, np.empty(4), np.empty(3), np.empty(4)
        for link in self._moving:
            parent = self._model.body_parentid[link.body]
            mujoco.mju_negQuat(back, data.xquat[parent])
            mujoco.mju_rotVecQuat(position, data.xpos[link.body] - data.xpos[parent], back)
            mujoco.mju_mulQuat(turn, back, data.xquat[link.body])
            poses[link.name] = pose_of(position, turn)
        return poses

    # Fixed frames

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
        """Frame of a camera on its link, or on the base where it stands in the world."""
        model, camera = self._model, self._model.camera(name)
        position, turn, body = camera.pos.copy(), np.empty(4), int(camera.bodyid[0])
        mujoco.mju_mulQuat(turn, camera.quat, _HALF_TURN_X)
        if body == 0:
            back, body = np.empty(4), self._base
            mujoco.mju_negQuat(back, model.body_quat[body])
            mujoco.mju_rotVecQuat(position, camera.pos - model.body_pos[body], back)
            mujoco.mju_mulQuat(turn, back, turn.copy())
        return Frame(OPTICAL_FRAMES[name], model.body(body).name, pose_of(position, turn))


def _links(model: mujoco.MjModel, base: int) -> Iterator[UrdfLink]:
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
            count and (np.any(model.jnt_pos[joint]) or model.jnt_type[joint] not in KINDS)
        ):
            raise ValueError(f"body {name} has joints that URDF cannot say")
        yield UrdfLink(name, model.body(parent).name, body, joint)
