"""The SO-101 as an environment: joint positions in, two cameras and six joints out.

An action is the joints' positions for the period's end, as LeRobot's followers are commanded: five
in rad, and the gripper from 0 (closed) to 1 (open). Needs mujoco and the arm's model.

Thread: one, from construction to close (:mod:`vla_ros.sim.env`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import mujoco
import numpy as np
import numpy.typing as npt

from vla_ros.core.types import Floats, Image, Pose
from vla_ros.sim.env import (
    ACTION_RATE_HZ,
    AGENTVIEW,
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
from vla_ros.sim.so101 import world
from vla_ros.sim.so101.world import (
    ACTIONS,
    ARM_JOINTS,
    ARM_RANGE,
    CUBE,
    CUBE_HALF,
    GRIPPER_RANGE,
    HELD_ACTIONS,
    HOME,
    JOINTS,
    PADS,
    TASKS,
    TRAY,
)
from vla_ros.sim.urdf import RobotModel, pose_of
from vla_ros.sim.versions import so101_world

_SETTLE_ACTIONS = 10  # without motion after a reset: the cube lies and the arm stands still
_ACTION_STEPS = round(1.0 / ACTION_RATE_HZ / world.TIMESTEP)  # physics steps of an action


class So101:
    """An SO-101 at a table with a cube and a box. Implements ``Environment``.

    ``later``: images are rendered when they are read, before the next step. ``control_rate_hz`` 0:
    the action rate. NoRenderer: there is no OpenGL; SimError: the arm's model is not installed, or
    it is not stepped at this rate.
    """

    def __init__(
        self,
        image_size: int = 256,
        wrist: bool = True,
        later: bool = False,
        control_rate_hz: float = 0.0,
    ) -> None:
        check_control_rate(control_rate_hz)
        self._later, self._images = later, LaterImages((), self._image)
        self._model = model = world.build_model()
        self._data = mujoco.MjData(model)
        self._robot = RobotModel(model, world.NAME, world.BASE, world.GRIP_SITE)
        self._spec = EnvSpec(
            world.NAME,
            TASKS,
            (AGENTVIEW, WRIST) if wrist else (AGENTVIEW,),
            image_size,
            control_rate_hz=control_rate_hz or ACTION_RATE_HZ,
            world=so101_world(),
            geometry=self._robot.geometry,
            action_space=ACTIONS,
            motion_range=ARM_RANGE,
            motion_speed=world.ARM_SPEED,
            gripper_range=GRIPPER_RANGE,
            state_units=world.STATE_UNITS,
            action_units=world.ACTION_UNITS,
        )
        self._renderer = OffscreenRenderer(model, image_size)
        self._closed = False
        self._qpos = model.jnt_qposadr[[model.joint(name).id for name in JOINTS]]
        self._ctrl = [model.actuator(name).id for name in JOINTS]
        self._site = model.site(world.GRIP_SITE).id
        self._pads = {finger: model.geom(pad).id for pad, finger in PADS.items()}
        self._cube = model.body(CUBE).id
        self._cube_qpos = int(model.jnt_qposadr[model.joint(CUBE).id])
        self._box = int(model.body_mocapid[model.body(TRAY).id])
        self._substeps = PhysicsSteps(self._spec.control_rate_hz, world.TIMESTEP)
        self._task = ""
        self._start = np.zeros(3)
        self._held_for = 0
        self._done = True

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(
        self, task: str, initial_state: int, seed: int = 0, render: bool = True
    ) -> SimObservation:
        """Begin initial state ``initial_state`` of ``task`` out of the set that ``seed`` draws."""
        self._spec.check_initial_state(self._spec.task(task), initial_state)
        self._task = task
        self._images.moved_on()
        data, placed = self._data, world.placement(task, initial_state, seed)
        mujoco.mj_resetData(self._model, data)
        action = np.array([*HOME, 1.0])
        data.qpos[self._qpos] = [*HOME, GRIPPER_RANGE[1]]
        half = placed.yaw / 2
        pose = [*placed.cube, CUBE_HALF, np.cos(half), 0, 0, np.sin(half)]
        data.qpos[self._cube_qpos : self._cube_qpos + 7] = pose
        data.mocap_pos[self._box] = [*placed.box, 0.0]
        mujoco.mj_forward(self._model, data)
        self._substeps.restart()
        for _ in range(_SETTLE_ACTIONS):
            self._move(action, _ACTION_STEPS)
        self._start = data.xpos[self._cube].copy()
        self._held_for, self._done = 0, False
        return self._observe(render)

    def step(self, action: npt.ArrayLike, render: bool = True) -> SimStep:
        """Execute one action; see :class:`vla_ros.sim.env.Environment`."""
        if self._done:
            raise RefusedAction("the episode has ended: reset before the next step")
        action = checked_action(action, ACTIONS)
        self._images.moved_on()
        self._move(action, self._substeps.next())
        cube = self._data.xpos[self._cube]
        box = self._data.mocap_pos[self._box]
        now = world.solved(self._task, cube, self._start, box, self._touched())
        self._held_for = self._held_for + 1 if now else 0
        success = self._held_for >= self._spec.held_steps(HELD_ACTIONS)
        self._done = success or world.lost(cube)
        return SimStep(self._observe(render), success, self._done)

    def _move(self, action: Floats, substeps: int) -> None:
        """Command the servos once, which hold their positions within their ends."""
        data, model = self._data, self._model
        low, high = GRIPPER_RANGE
        positions = np.array([*action[:-1], low + float(action[-1]) * (high - low)])
        data.ctrl[self._ctrl] = np.clip(positions, *model.actuator_ctrlrange[self._ctrl].T)
        for _ in range(substeps):
            mujoco.mj_step(model, data)
        mujoco.mj_forward(model, data)  # poses and images of the state just reached

    def _touched(self) -> bool:
        """True if a jaw touches the cube."""
        jaws = set(self._pads.values())
        cube = self._model.geom(CUBE).id
        return any(
            cube in pair and (pair[0] in jaws or pair[1] in jaws)
            for pair in self._data.contact.geom.tolist()
        )

    def ahead(self, act: Callable[[Mapping[str, Pose]], Floats], steps: int) -> Floats:
        """Actions, float64 [steps, 6], of the expert ``act`` from now on, played ahead in an
        episode at the action rate; the world is as it was afterwards."""
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        kept = np.empty(mujoco.mj_stateSize(self._model, kind))
        mujoco.mj_getState(self._model, self._data, kept, kind)
        actions = np.empty((steps, ACTIONS.width))
        for number in range(steps):
            actions[number] = act(self._poses())
            self._move(actions[number], _ACTION_STEPS)
        mujoco.mj_setState(self._model, self._data, kept, kind)
        mujoco.mj_forward(self._model, self._data)
        return actions

    def _poses(self) -> dict[str, Pose]:
        data, turn = self._data, np.zeros(4)
        mujoco.mju_mat2Quat(turn, data.site_xmat[self._site])
        poses = {"gripper": pose_of(data.site_xpos[self._site], turn)}
        poses[CUBE] = pose_of(data.xpos[self._cube], data.xquat[self._cube])
        poses[TRAY] = pose_of(data.mocap_pos[self._box], data.mocap_quat[self._box])
        for finger, geom in self._pads.items():
            mujoco.mju_mat2Quat(turn, data.geom_xmat[geom])
            poses[finger] = pose_of(data.geom_xpos[geom], turn)
        return poses

    def _observe(self, render: bool) -> SimObservation:
        data, poses = self._data, self._poses()
        gripper = poses["gripper"]
        positions = data.qpos[self._qpos].copy()
        self._images = LaterImages(self._spec.cameras if render else (), self._image)
        return SimObservation(
            images=self._images if self._later else dict(self._images),
            joint_names=JOINTS,
            joint_positions=positions,
            eef_pos=np.array(gripper.position),
            eef_quat=np.array(gripper.quaternion),
            gripper_qpos=positions[len(ARM_JOINTS) :],
            poses=poses,
            links=self._robot.link_poses(data),
        )

    def _image(self, camera: str) -> Image:
        return self._renderer.render(self._data, camera)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._renderer.close()
