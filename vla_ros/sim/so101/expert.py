"""The scripted expert of the SO-101's tasks: from the instruction and the ground truth to joints.

Like the tabletop's expert it goes by the poses alone, without a state. The gripper's target for one
period is a position and a turn about the vertical; inverse kinematics by the model's Jacobian gives
the joints, and the bend of the servos under the arm's weight is added.
"""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import numpy as np

from vla_ros.core.rotation import matrix
from vla_ros.core.types import Floats, Pose
from vla_ros.sim.env import FINGERS
from vla_ros.sim.expert import MissingPose, upright_yaw
from vla_ros.sim.so101 import world
from vla_ros.sim.so101.world import BOX, BOX_WALL, CUBE, CUBE_HALF, HOME, LIFT, PAN_AXIS, TRAY

OPEN, CLOSED = 0.6, 0.0  # of the gripper's range
_STEP = 0.025  # m, the farthest that one command leads
_TURN = 0.25  # rad, the same of its turn
_HOVER, _TRAVEL = 0.06, 0.08  # m above a cube's middle; the height at which it is carried
_DROP = BOX_WALL[1] + CUBE_HALF + 0.008  # m, where it is let go over the box
_NEAR = 0.012  # m aside, within which the gripper closes
_SLOPE, _MOUTH = 4.0, 0.005  # of the funnel over a cube: height for distance, m of its bottom
_OVER = 0.02  # m beside the middle of the box, from where a cube is let down
_CLEAR = 0.035  # m above a cube's middle, where the jaws turn freely
_GRIPPED = 0.042  # m between the pads' middles; more, and a cube between them is loose
_ITERATIONS, _DAMPING = 40, 1e-5


class Kinematics:
    """Inverse kinematics of the arm. Not thread-safe; making it takes a second."""

    def __init__(self) -> None:
        self._model = model = world.build_model()
        self._data = mujoco.MjData(model)
        ids = [model.joint(name).id for name in world.ARM_JOINTS]
        self._qpos, self._dofs = model.jnt_qposadr[ids], model.jnt_dofadr[ids]
        self._low, self._high = model.jnt_range[ids].T
        acts = [model.actuator(name).id for name in world.ARM_JOINTS]
        self._stiffness = model.actuator_gainprm[acts, 0]
        self._site = model.site(world.GRIP_SITE).id
        self._jacobian = np.zeros((6, model.nv))

    def joints(self, position: Floats, yaw: float) -> Floats:
        """Commands of the servos, float64 [5], rad, for a gripper that points down at ``position``
        [3] m, its jaws apart along ``yaw`` rad. Beyond the arm's reach: as near as it comes."""
        model, data = self._model, self._data
        q = np.array(HOME)
        q[0] = -_radial(position)
        wanted = _down(yaw)
        for _ in range(_ITERATIONS):
            data.qpos[self._qpos] = q
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_jacSite(model, data, self._jacobian[:3], self._jacobian[3:], self._site)
            error = _error(data.site_xpos[self._site], data.site_xmat[self._site], position, wanted)
            if float(np.abs(error).max()) < 1e-4:
                break
            jacobian = self._jacobian[:, self._dofs] * _WEIGHTS[:, None]
            damped = jacobian.T @ jacobian + _DAMPING * np.eye(len(q))
            step = np.linalg.solve(damped, jacobian.T @ (error * _WEIGHTS))
            q = np.clip(q + np.clip(step, -0.3, 0.3), self._low, self._high)
        data.qpos[self._qpos] = q
        mujoco.mj_forward(model, data)
        return q + data.qfrc_bias[self._dofs] / self._stiffness


#: m against rad, of which the turn about the vertical counts and the tilt hardly does
_WEIGHTS = np.array([1.0, 1.0, 1.0, 0.02, 0.02, 0.1])


def _down(yaw: float) -> Floats:
    """Matrix of a gripper that points down, the moving jaw towards ``yaw``."""
    cosine, sine = np.cos(yaw), np.sin(yaw)
    return np.array([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]])


def _error(at: Floats, turn: Floats, position: Floats, wanted: Floats) -> Floats:
    have = turn.reshape(3, 3)
    rotation = 0.5 * sum(np.cross(have[:, i], wanted[:, i]) for i in range(3))
    return np.concatenate((position - at, rotation))


class So101Expert:
    """Scripted policy for one instruction. ValueError: it asks for nothing that it can do."""

    def __init__(self, instruction: str) -> None:
        found = [task.name for task in world.TASKS if task.instruction == instruction.strip()]
        if not found:
            known = "; ".join(repr(task.instruction) for task in world.TASKS)
            raise ValueError(f"the SO-101's expert knows {known}, not {instruction!r}")
        self._task = found[0]
        self._arm = Kinematics()

    def act(self, poses: Mapping[str, Pose]) -> Floats:
        """The next command, float64 [6]: five joints in rad, the gripper 0 closed to 1 open."""
        position, yaw, gripper = advise(self._task, poses)
        return np.array([*self._arm.joints(position, yaw), gripper])


def advise(task: str, poses: Mapping[str, Pose]) -> tuple[Floats, float, float]:
    """Next target of the gripper: position in m, turn in rad, and opening."""
    try:
        grip, thing, tray = (poses[name] for name in ("gripper", CUBE, TRAY))
        left, right = (np.array(poses[name].position) for name in FINGERS)
    except KeyError as error:
        raise MissingPose(f"the ground truth has no {error}") from None
    hand, cube, box = (np.array(pose.position) for pose in (grip, thing, tray))
    jaws = matrix(grip.quaternion)[:2, 0]
    turned = float(np.arctan2(jaws[1], jaws[0]))
    off = cube - hand
    aside = float(np.hypot(off[0], off[1]))
    between = aside < 0.02 and abs(off[2]) < 0.02
    held = between and float(np.linalg.norm(left - right)) < _GRIPPED
    inside = float(np.abs((cube - box)[:2]).max()) < world.BOX_HALF - 0.012
    if held:
        goal, gripper = _carry(task, hand, cube, box, inside)
        yaw = _radial(goal)
    elif task == BOX and inside:
        goal, gripper, yaw = np.array([*hand[:2], _TRAVEL + 0.04]), OPEN, turned
    else:
        yaw = _square(upright_yaw(thing.quaternion), _radial(cube))
        aligned = abs(_wrapped(yaw - turned)) < 0.15
        height = float(np.clip(_SLOPE * (aside - _MOUTH), 0.0, _HOVER))
        if not aligned and not between:
            height = max(height, _CLEAR)
        low = np.array([*cube[:2], max(cube[2] + height, 0.008)])
        goal, gripper = low, CLOSED if between and aside < _NEAR and off[2] > -0.008 else OPEN
    return (
        _towards(hand, goal),
        turned + float(np.clip(_wrapped(yaw - turned), -_TURN, _TURN)),
        gripper,
    )


def _carry(
    task: str, hand: Floats, cube: Floats, box: Floats, inside: bool
) -> tuple[Floats, float]:
    """Next target with the cube between the jaws: up, over the box, down, and let go."""
    offset = hand - cube
    if task == LIFT:
        return np.array([*hand[:2], world.LIFTED + 0.05]), CLOSED
    aside = float(np.hypot(*(cube - box)[:2]))
    if aside < _OVER:
        goal = np.array([*box[:2], _DROP]) + offset
        return goal, OPEN if cube[2] < _DROP + 0.008 else CLOSED
    if inside and cube[2] < BOX_WALL[1]:
        return hand, OPEN
    if cube[2] < _TRAVEL - 0.02 and aside > 0.03:
        return np.array([*hand[:2], _TRAVEL + 0.01]), CLOSED
    return np.array([*box[:2], _TRAVEL]) + offset, CLOSED


def _towards(hand: Floats, goal: Floats) -> Floats:
    move = goal - hand
    far = float(np.linalg.norm(move))
    return hand + move * min(1.0, _STEP / max(far, 1e-9))


def _radial(position: Floats) -> float:
    """Direction from the shoulder, along which the jaws of a straight wrist stand apart."""
    return float(np.arctan2(position[1] - PAN_AXIS[1], position[0] - PAN_AXIS[0]))


def _square(yaw: float, near: float) -> float:
    """The one of a cube's four turns that is nearest to ``near``."""
    return near + (yaw - near + np.pi / 4) % (np.pi / 2) - np.pi / 4


def _wrapped(angle: float) -> float:
    return float((angle + np.pi) % (2 * np.pi) - np.pi)
