"""The tabletop environment: LIBERO's interface on a scene that needs only mujoco and numpy.

Thread: one, from construction to close (:mod:`vla_ros.sim.env`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import mujoco
import numpy as np
import numpy.typing as npt

from vla_ros.core.types import Floats, Image, Pose
from vla_ros.sim import scene
from vla_ros.sim.env import (
    ACTION_RATE_HZ,
    AGENTVIEW,
    FINGERS,
    WRIST,
    EnvSpec,
    PhysicsSteps,
    RefusedAction,
    SimObservation,
    SimStep,
    check_control_rate,
    checked_action,
)
from vla_ros.sim.rendering import LaterImages, OffscreenRenderer
from vla_ros.sim.tasks import (
    COLORS,
    GOALS,
    HELD_ACTIONS,
    PLATE,
    TASKS,
    CubePlacement,
    Family,
    Goal,
    TableState,
    allowed,
    crowded_placements,
    cube,
    out_of_reach,
    placements,
    satisfied,
)
from vla_ros.sim.urdf import RobotModel, pose_of
from vla_ros.sim.versions import tabletop_world

# Operational-space control of a simulated arm: a goal pose in, joint torques out.
#
# Khatib, "A unified approach for motion and force control of robot manipulators" (1987), with
# a posture task in the null space. The gains are those of robosuite's OSC_POSE (kp 150,
# critically damped); unlike there, position and orientation are solved together, so turning
# the hand does not push it aside.
#
# As in robosuite and LIBERO, a goal counts from the pose at the time, which lags behind the
# goal before it: under constant commands the hand covers about 0.3 of what they add up to.


STIFFNESS = 150.0  # 1/s^2, position and orientation
POSTURE_STIFFNESS = 10.0  # 1/s^2, null space
_REGULARISER = 1e-6


class OperationalSpaceController:
    """Controller of an arm: torques that bring one site of it to a goal pose.

    A goal counts from the pose at the begin of an action period, which has so many physics steps,
    at any control rate: what was commanded in the period and what the command adds until its end.
    Call :meth:`command` once a control step, :meth:`torques` once a physics step between
    ``mj_step1`` and ``mj_step2``.
    """

    def __init__(
        self, model: mujoco.MjModel, site: int, joints: Sequence[int], posture: Floats, period: int
    ) -> None:
        self._model = model
        self._site = site
        self._dofs = model.jnt_dofadr[list(joints)]
        self._qpos = model.jnt_qposadr[list(joints)]
        self._arm = np.ix_(self._dofs, self._dofs)
        self._posture = np.asarray(posture, np.float64)
        self._mass = np.zeros((model.nv, model.nv))
        self._jac_pos = np.zeros((3, model.nv))
        self._jac_rot = np.zeros((3, model.nv))
        self._goal_pos = np.zeros(3)
        self._goal_rot = np.eye(3)
        self._period, self._step = period, 0  # physics steps: of a period, and of this one so far
        self._begin_pos, self._begin_rot = np.zeros(3), np.eye(3)
        self._commanded = np.zeros(6)  # since the begin of the period
        self._command = np.zeros(6)
        self._new = True

    def restart(self) -> None:
        """Begin an episode: the next physics step begins an action period."""
        self._step = 0

    def command(self, translation: Floats, rotation: Floats) -> None:
        """Move by ``translation`` [3] m and turn by ``rotation`` [3], an axis-angle vector in rad,
        both in the world frame, an action period, until there is another command."""
        self._command = np.concatenate((translation, rotation))
        self._new = True

    def _follow(self, data: mujoco.MjData) -> None:
        """Set the goal, at the begin of a period or of a command."""
        begins = self._step % self._period == 0
        if begins:
            self._begin_pos = data.site_xpos[self._site].copy()
            self._begin_rot = data.site_xmat[self._site].reshape(3, 3).copy()
            self._commanded, self._step = np.zeros(6), 0
        if begins or self._new:
            left = (self._period - self._step) / self._period
            self._set_goal(self._commanded + self._command * left)
        self._new = False
        self._commanded = self._commanded + self._command / self._period
        self._step += 1

    def _set_goal(self, moved: Floats) -> None:
        """Goal = the pose at the begin of the period, moved and turned by ``moved`` [6]."""
        translation, rotation = moved[:3], moved[3:]
        self._goal_pos = self._begin_pos + translation
        turn = np.zeros(9)
        quaternion = np.zeros(4)
        angle = float(np.linalg.norm(rotation))
        mujoco.mju_axisAngle2Quat(quaternion, rotation / angle if angle else rotation, angle)
        mujoco.mju_quat2Mat(turn, quaternion)
        self._goal_rot = turn.reshape(3, 3) @ self._begin_rot

    def torques(self, data: mujoco.MjData) -> Floats:
        """Joint torques [joints], Nm, gravity compensated, of the next physics step."""
        self._follow(data)
        mujoco.mj_jacSite(self._model, data, self._jac_pos, self._jac_rot, self._site)
        mujoco.mj_fullM(self._model, self._mass, data.qM)
        mass = self._mass[self._arm]
        velocity = data.qvel[self._dofs]
        jacobian = np.vstack((self._jac_pos, self._jac_rot))[:, self._dofs]
        rotation = data.site_xmat[self._site].reshape(3, 3)
        error = np.concatenate(
            (
                self._goal_pos - data.site_xpos[self._site],
                _rotation_error(rotation, self._goal_rot),
            )
        )
        pull = STIFFNESS * error - 2 * np.sqrt(STIFFNESS) * (jacobian @ velocity)
        posture_error = self._posture - data.qpos[self._qpos]
        relax = POSTURE_STIFFNESS * posture_error - 2 * np.sqrt(POSTURE_STIFFNESS) * velocity
        # tau = J^T Lambda (pull - J relax) + M relax: the posture task acts in the null space only
        weighted = np.linalg.solve(mass, jacobian.T)
        mobility = jacobian @ weighted + _REGULARISER * np.eye(6)
        force = np.linalg.solve(mobility, pull - jacobian @ relax)
        return jacobian.T @ force + mass @ relax + data.qfrc_bias[self._dofs]


def _rotation_error(rotation: Floats, goal: Floats) -> Floats:
    """The axis-angle vector from ``rotation`` to ``goal``, exact to second order."""
    turn = goal @ rotation.T
    skew = (turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1])
    return 0.5 * np.array(skew)


# Nudges: an object is moved while the hand approaches it, which a policy on an old observation
# misses. Like an initial state a nudge is a function of (task, index, seed), the same for all.


_STEPS: Final = (4, 16)  # actions after which it comes: most hands are still under way
_DIRECTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class CubeNudge:
    """A nudge: after ``step`` actions the task's cube is moved ``by`` m, x and y."""

    step: int
    cube: str
    by: tuple[float, float]


def nudge_of(name: str, index: int, seed: int, metres: float) -> CubeNudge | None:
    """The nudge of an initial state; None without one: it is 0 m, or there is no room for it."""
    if not metres:
        return None
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), index, 1])
    step, goal = int(rng.integers(*_STEPS)), GOALS[name]
    placed = placements(name, index, seed)
    at = placed[goal.object]
    # Aside only, of a cube that is to be pushed: along the line it would be a push.
    turns = np.array((0, _DIRECTIONS // 2)) if goal.family is Family.PUSH else _DIRECTIONS
    for turn in rng.permutation(turns):
        angle = 2 * np.pi * turn / _DIRECTIONS
        x, y = metres * float(np.cos(angle)), metres * float(np.sin(angle))
        if allowed(goal, placed | {goal.object: CubePlacement(at.x + x, at.y + y, at.yaw)}):
            return CubeNudge(step, goal.object, (x, y))
    return None


NAME: Final = "tabletop"
_SETTLE_ACTIONS = 5  # without motion after a reset, so that cubes lie and the arm stands still
_ACTION_STEPS = round(1.0 / ACTION_RATE_HZ / scene.TIMESTEP)  # physics steps of an action
_POSITION, _ROTATION = 0.05, 0.5  # m and rad that an entry of 1 asks for in an action period
_OPEN = (scene.FINGER_TRAVEL, -scene.FINGER_TRAVEL)
_CLOSED = (0.0, 0.0)


class Tabletop:
    """A Panda at a table with four cubes and a plate. Implements ``Environment``.

    ``nudge_m``: the task's cube is moved by so much while the hand approaches it
    (:class:`CubeNudge`). ``crowded``: others stand right beside it. ``later``: images are
    rendered when they are read, which must be before the next step
    (:mod:`vla_ros.sim.rendering`). ``control_rate_hz`` 0: the action rate. NoRenderer: there is no
    OpenGL to render the cameras with; SimError: it is not stepped at this rate.
    """

    def __init__(
        self, image_size: int = 256, wrist: bool = True, shadows: bool = False, msaa: int = 0,
        nudge_m: float = 0.0, crowded: bool = False, later: bool = False,
        control_rate_hz: float = 0.0,
    ) -> None:  # fmt: skip
        check_control_rate(control_rate_hz)
        self._nudge_m, self._steps = nudge_m, 0
        self._placements = crowded_placements if crowded else placements
        self._later, self._images = later, LaterImages((), self._image)
        self._nudge: CubeNudge | None = None
        cameras = (AGENTVIEW, WRIST) if wrist else (AGENTVIEW,)
        self._model = scene.build_model(msaa)
        self._robot = RobotModel(self._model, "panda", scene.BASE, scene.GRIP_SITE)
        rate_hz = control_rate_hz or ACTION_RATE_HZ
        share = ACTION_RATE_HZ / rate_hz  # of an action in a control step
        self._spec = EnvSpec(
            NAME,
            TASKS,
            cameras,
            image_size,
            control_rate_hz=rate_hz,
            position_scale=_POSITION * share,
            rotation_scale=_ROTATION * share,
            world=tabletop_world(),
            geometry=self._robot.geometry,
        )
        self._substeps = PhysicsSteps(rate_hz, scene.TIMESTEP)
        self._data = mujoco.MjData(self._model)
        self._renderer = OffscreenRenderer(self._model, image_size, shadows)
        self._closed = False
        self._lookup()
        self._controller = OperationalSpaceController(
            self._model, self._site, self._arm_joints, np.array(scene.HOME), _ACTION_STEPS
        )
        self._goal: Goal | None = None
        self._start: dict[str, Floats] = {}
        self._held_for = 0
        self._done = True

    def _lookup(self) -> None:
        model, kind = self._model, mujoco.mjtObj
        self._arm_joints = [model.joint(name).id for name in scene.ARM_JOINTS]
        self._fingers = [model.joint(name).id for name in FINGERS]
        self._finger_geoms = {model.geom(name).id for name in FINGERS}
        self._cubes = {cube(color): model.body(cube(color)).id for color in COLORS}
        self._cube_geoms = {model.geom(name).id: name for name in self._cubes}
        named = (*self._cubes, PLATE, *FINGERS)
        self._bodies = {name: model.body(name).id for name in named}
        self._site = mujoco.mj_name2id(model, kind.mjOBJ_SITE, scene.GRIP_SITE)
        self._joint_names = (*scene.ARM_JOINTS, *FINGERS)
        self._joint_qpos = model.jnt_qposadr[[*self._arm_joints, *self._fingers]]

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(
        self, task: str, initial_state: int, seed: int = 0, render: bool = True
    ) -> SimObservation:
        """Begin initial state ``initial_state`` of ``task`` out of the set that ``seed`` draws."""
        self._spec.check_initial_state(self._spec.task(task), initial_state)
        self._goal = GOALS[task]
        self._images.moved_on()
        mujoco.mj_resetData(self._model, self._data)
        self._data.qpos[self._joint_qpos[:7]] = scene.HOME
        self._data.qpos[self._joint_qpos[7:]] = _OPEN
        for name, placement in self._placements(task, initial_state, seed).items():
            self._put(name, placement)
        mujoco.mj_forward(self._model, self._data)
        self._controller.restart()
        self._substeps.restart()
        for _ in range(_SETTLE_ACTIONS):
            self._move(np.array([0, 0, 0, 0, 0, 0, -1.0]), _ACTION_STEPS)
        self._start = {name: self._data.xpos[body].copy() for name, body in self._cubes.items()}
        self._held_for = self._steps = 0
        self._nudge = nudge_of(task, initial_state, seed, self._nudge_m)
        self._done = False
        return self._observe(render)

    def _put(self, name: str, placement: CubePlacement) -> None:
        half = placement.yaw / 2
        start = self._model.jnt_qposadr[self._model.joint(name).id]
        pose = [placement.x, placement.y, scene.CUBE_HALF, np.cos(half), 0, 0, np.sin(half)]
        self._data.qpos[start : start + 7] = pose

    def _shift(self, nudge: CubeNudge) -> None:
        """Move a cube that nothing touches, as if it had lain there from the beginning."""
        if nudge.cube in self._state().touched:
            return
        at = self._model.jnt_qposadr[self._model.joint(nudge.cube).id]
        self._data.qpos[at : at + 2] += nudge.by
        mujoco.mj_forward(self._model, self._data)
        self._start[nudge.cube][:2] += nudge.by

    def step(self, action: npt.ArrayLike, render: bool = True) -> SimStep:
        """Execute one action; see :class:`vla_ros.sim.env.Environment`."""
        if self._done or self._goal is None:
            raise RefusedAction("the episode has ended: reset before the next step")
        action = checked_action(action)
        self._images.moved_on()
        self._move(action, self._substeps.next())
        self._steps += 1
        nudge, spec = self._nudge, self._spec
        if nudge is not None and self._steps == spec.control_steps(nudge.step):
            self._shift(nudge)
        state = self._state()
        self._held_for = self._held_for + 1 if satisfied(self._goal, state) else 0
        success = self._held_for >= spec.held_steps(HELD_ACTIONS[self._goal.family])
        self._done = success or out_of_reach(self._goal, state)
        return SimStep(self._observe(render), success, self._done)

    def _move(self, action: Floats, substeps: int) -> None:
        model, data = self._model, self._data
        self._controller.command(action[:3] * _POSITION, action[3:6] * _ROTATION)
        data.ctrl[7:9] = _CLOSED if action[6] > 0 else _OPEN
        for _ in range(substeps):
            mujoco.mj_step1(model, data)
            data.ctrl[:7] = self._controller.torques(data)
            mujoco.mj_step2(model, data)
        mujoco.mj_forward(model, data)  # poses and images of the state just reached

    def _state(self) -> TableState:
        touched = set()
        for first, second in self._data.contact.geom:
            for finger, other in ((first, second), (second, first)):
                if finger in self._finger_geoms and other in self._cube_geoms:
                    touched.add(self._cube_geoms[other])
        return TableState(
            gripper=self._data.site_xpos[self._site].copy(),
            cubes={name: self._data.xpos[body].copy() for name, body in self._cubes.items()},
            start=self._start,
            touched=frozenset(touched),
        )

    def _observe(self, render: bool) -> SimObservation:
        gripper = self._gripper_pose()
        joints = self._data.qpos[self._joint_qpos].copy()
        cameras = self._spec.cameras if render else ()
        self._images = LaterImages(cameras, self._image)
        xpos, xquat = self._data.xpos, self._data.xquat
        poses = {name: pose_of(xpos[b], xquat[b]) for name, b in self._bodies.items()}
        return SimObservation(
            images=self._images if self._later else dict(self._images),
            joint_names=self._joint_names,
            joint_positions=joints,
            eef_pos=np.array(gripper.position),
            eef_quat=np.array(gripper.quaternion),
            gripper_qpos=joints[7:].copy(),
            poses={"gripper": gripper, **poses},
            links=self._robot.link_poses(self._data),
        )

    def _image(self, camera: str) -> Image:
        return self._renderer.render(self._data, camera)

    def _gripper_pose(self) -> Pose:
        quaternion = np.zeros(4)
        mujoco.mju_mat2Quat(quaternion, self._data.site_xmat[self._site])
        return pose_of(self._data.site_xpos[self._site], quaternion)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._renderer.close()
