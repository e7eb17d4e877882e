"""The environment protocol: what the bridge and the evaluation expect of a simulation.

It is LIBERO's interface in typed form, so the built-in tabletop and LIBERO fit behind it:
7-DoF delta actions in [-1, 1] at 20 Hz, tasks with an instruction in words, fixed initial
states, and a success predicate of the simulation's own. The actions of a robot that takes joint
positions are of its spec's ``action_space``, in its units.

A world is stepped at its control rate, which may differ from the action rate, that of the data
about its tasks: the physics are the same per second, and limits of time count actions.

Thread: rendering contexts belong to a thread. Construct, use and close an environment in
one and the same thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core.errors import UserError
from vla_ros.core.names import nearest
from vla_ros.core.types import Floats, Image, Pose

AGENTVIEW = "agentview"
WRIST = "wrist"

#: what every simulated robot calls its two fingers' joints, which come after the arm's
FINGERS = ("finger_left", "finger_right")

WORLD = "world"  # frame of the ground truth
#: camera -> its frame: z forward, x right, y down
OPTICAL_FRAMES = {AGENTVIEW: "main_camera_optical_frame", WRIST: "wrist_camera_optical_frame"}


IMAGE_SIZES = range(16, 1025)  # pixels a side that an environment renders
ACTION_RATE_HZ = 20.0  # of the data about every environment's tasks
CONTROL_RATES_HZ = (1.0, 500.0)  # least and most; a step of the physics takes 2 ms

_NAMED = 40  # most task names in a message


class SimError(UserError):
    """An error of the simulation; the text is one line for the user."""


class UnknownTask(SimError):
    """A task name or an initial state that the environment does not have."""


class RefusedAction(SimError):
    """An action of the wrong shape, not finite, or after the end. The world did not move."""


def check_image_size(pixels: int) -> None:
    """SimError for a size that no environment renders."""
    if pixels not in IMAGE_SIZES:
        least, most = IMAGE_SIZES[0], IMAGE_SIZES[-1]
        raise SimError(f"image_size must be {least} to {most} pixels, not {pixels}")


def check_control_rate(rate_hz: float) -> None:
    """SimError for a control rate that no environment is stepped at; 0: the action rate."""
    least, most = CONTROL_RATES_HZ
    if rate_hz != 0.0 and not least <= rate_hz <= most:
        raise SimError(
            f"control_rate_hz must be {least:g} to {most:g}, or 0 for the action rate,"
            f" not {rate_hz:g}"
        )


class PhysicsSteps:
    """Physics steps of ``timestep_s`` in each control step: a whole number, so that every second
    has as many as at any other rate. A rate that does not divide them has control steps of two
    lengths, which differ by one."""

    def __init__(self, control_rate_hz: float, timestep_s: float) -> None:
        self._a_step = 1.0 / control_rate_hz / timestep_s
        self._step = self._taken = 0

    def restart(self) -> None:
        """Begin an episode."""
        self._step = self._taken = 0

    def next(self) -> int:
        """Count of the next control step."""
        self._step += 1
        count = round(self._step * self._a_step) - self._taken
        self._taken += count
        return count


@dataclass(frozen=True, slots=True)
class Task:
    """A task of an environment: a unique name, the instruction, its fixed initial states, its limit
    in actions.

    ``aliases`` are other names of it.
    """

    name: str
    instruction: str
    initial_states: int
    max_steps: int
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that never moves in its parent's."""

    name: str
    parent: str
    pose: Pose


@dataclass(frozen=True, slots=True)
class Geometry:
    """Geometry of a robot. ``parents``: of each link that moves; its pose comes with every
    observation. ``fovy``: of each camera, rad from the lower edge of the image to the upper one.
    ``urdf``: all of it, with the joints called as in the observations."""

    fixed: tuple[Frame, ...]
    parents: Mapping[str, str]
    fovy: Mapping[str, float]
    urdf: str


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """Specification of an environment.

    ``action_rate_hz`` is the rate of the data about its tasks, at which policies act in it,
    ``control_rate_hz`` that of its control steps. ``position_scale`` [m] and ``rotation_scale``
    [rad] are the displacement that an action entry of 1 asks for in one control step. Images are
    square, ``image_size`` pixels a side.
    ``world``: the versions that figures depend on (:mod:`vla_ros.sim.versions`).
    ``note``: what images and figures made with it must be labelled with, if anything.
    """

    name: str
    tasks: tuple[Task, ...]
    cameras: tuple[str, ...]
    image_size: int
    action_rate_hz: float = ACTION_RATE_HZ
    control_rate_hz: float = ACTION_RATE_HZ
    position_scale: float = 0.05
    rotation_scale: float = 0.5
    world: str = ""
    note: str = ""
    geometry: Geometry | None = None  # None: unknown
    action_space: ActionSpace = END_EFFECTOR_DELTA  # of its commands
    motion_range: tuple[tuple[float, float], ...] = ()  # of joints that move: their ends, rad
    motion_speed: tuple[float, ...] = ()  # and their largest speeds, rad/s
    gripper_range: tuple[float, float] = (0.0, 1.0)  # of a gripper's joint, closed and open
    state_units: tuple[str, ...] = ()  # of data sets about this robot; see policies/units.py
    action_units: tuple[str, ...] = ()

    @property
    def actions_a_step(self) -> float:
        """Share of an action that a control step makes; 1 at equal rates."""
        if self.action_rate_hz == self.control_rate_hz:
            return 1.0
        return self.action_rate_hz / self.control_rate_hz

    def control_steps(self, actions: int) -> int:
        """Control steps that so many actions take, to the nearest, one at least."""
        return max(1, round(actions / self.actions_a_step))

    def actions(self, control_steps: int) -> int:
        """Whole actions that so many control steps make."""
        return math.floor(control_steps * self.actions_a_step + 1e-6)

    def held_steps(self, actions: int) -> int:
        """Control steps in a row that last from one action to the one that is number ``actions``
        of a row, both ends included: for states that must hold."""
        return 1 + math.ceil((actions - 1) / self.actions_a_step - 1e-6)

    def task(self, name: str) -> Task:
        """The task called ``name``; UnknownTask names the valid ones otherwise."""
        for task in self.tasks:
            if task.name == name or name in task.aliases:
                return task
        names = [task.name for task in self.tasks]
        near = nearest(name, names)
        if len(names) > _NAMED:
            names[_NAMED:] = [f"and {len(names) - _NAMED} more"]
        near = near or f"; it has: {', '.join(names)}"
        raise UnknownTask(f"{self.name} has no task '{name}'{near}")

    def check_initial_state(self, task: Task, index: int) -> None:
        """UnknownTask unless ``index`` is one of the task's initial states."""
        if not 0 <= index < task.initial_states:
            raise UnknownTask(
                f"{task.name} has no initial state {index}; it has 0 to {task.initial_states - 1}"
            )


@dataclass(frozen=True, slots=True)
class SimObservation:
    """An observation after a reset or a step.

    ``images``: camera name -> uint8 [size, size, 3], RGB, upright; empty when not rendered.
    ``joint_positions``: float64, one per name (rad; m for the fingers).
    ``eef_pos`` float64 [3] m, ``eef_quat`` float64 [4] x y z w, ``gripper_qpos`` float64 [2] m:
    LIBERO's ``robot0_eef_pos``, ``robot0_eef_quat`` and ``robot0_gripper_qpos``.
    ``poses``: ground truth in the world frame, "gripper" and one entry an object.
    ``links``: each moving link in its parent's frame; see :class:`Geometry`.
    """

    images: Mapping[str, Image]
    joint_names: tuple[str, ...]
    joint_positions: Floats
    eef_pos: Floats
    eef_quat: Floats
    gripper_qpos: Floats
    poses: Mapping[str, Pose] = field(default_factory=dict)
    links: Mapping[str, Pose] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimStep:
    """Result of a step. ``done``: the task is solved or can no longer be; do not step again."""

    observation: SimObservation
    success: bool
    done: bool


class Environment(Protocol):
    """A simulated robot with its tasks. The limit of actions is the caller's to keep."""

    @property
    def spec(self) -> EnvSpec: ...

    def reset(
        self, task: str, initial_state: int, seed: int = 0, render: bool = True
    ) -> SimObservation:
        """Begin an episode. The same arguments give the same, bit-identical episode.

        ``render=False`` leaves the images out. UnknownTask: no such task or initial state.
        """
        ...

    def step(self, action: npt.ArrayLike, render: bool = True) -> SimStep:
        """Execute one command [D] for one control period.

        Of end-effector deltas, [7], entries are clipped to [-1, 1]; gripper -1 opens, +1 closes.
        Of joint positions: rad, grippers 0 closed to 1 open. Rendering or not changes
        nothing but the images. RefusedAction.
        """
        ...

    def close(self) -> None:
        """Free the rendering context. Harmless when called twice."""
        ...


def checked_action(action: npt.ArrayLike, space: ActionSpace = END_EFFECTOR_DELTA) -> Floats:
    """The action as float64 [D], RefusedAction if it is none. Deltas of an end effector are clipped
    to [-1, 1], grippers of other spaces to [0, 1]."""
    try:
        array = np.array(action, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise RefusedAction(f"action is not a list of numbers: {error}") from None
    if array.shape != (space.width,):
        raise RefusedAction(f"action has shape {array.shape}, expected ({space.width},)")
    if not np.isfinite(array).all():
        raise RefusedAction(f"action is not finite: {array.tolist()}")
    if space == END_EFFECTOR_DELTA:
        return np.clip(array, -1.0, 1.0)
    grippers = list(space.grippers)
    array[grippers] = np.clip(array[grippers], 0.0, 1.0)
    return array
