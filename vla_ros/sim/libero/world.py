"""One LIBERO task in robosuite: built once, reset often, bit for bit as the benchmark does it.

The benchmark rebuilds everything at each reset, which takes seconds. Here the model is kept and
differences are put right: the random numbers that place furniture are drawn as often as they would
have been, the gripper forgets its last action, and cameras render only images that are read. The
images are the same to the last bit (test_libero_world.py).

Thread: one, from construction to close.
"""

# ruff: noqa: NPY002  (LIBERO draws from NumPy's old global generator)

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from robosuite.utils.errors import RandomizationError

from vla_ros.core.types import Floats, Image, Pose
from vla_ros.sim.env import AGENTVIEW, FINGERS, WRIST, SimError, SimObservation
from vla_ros.sim.urdf import pose_of

#: The robot's action while objects come to rest, and for how many control steps. Both are
#: those of OpenVLA's evaluation (get_libero_dummy_action, num_steps_wait).
WAIT_ACTION: Final = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
WAIT_STEPS: Final = 10

_CAMERAS: Final[Mapping[str, str]] = {AGENTVIEW: "agentview", WRIST: "robot0_eye_in_hand"}
_JOINTS: Final = (*(f"joint{i}" for i in range(1, 8)), *FINGERS)
_MAX_DRAWS: Final = 100  # attempts to place objects without overlap


class _Shutter:
    """Shutter of a camera's sensor, which renders only while it is open."""

    __modality__ = "image"  # robosuite asks every sensor for it

    def __init__(self, sensor: Callable[[Any], Image], size: int) -> None:
        self._sensor = sensor
        self._dark = np.zeros((size, size, 3), np.uint8)
        self.open = False

    def __call__(self, cache: Any) -> Image:
        return self._sensor(cache) if self.open else self._dark


class LiberoWorld:
    """World of a task in LIBERO's OffScreenRenderEnv, which ``make`` is."""

    def __init__(self, make: Any, bddl: Path, cameras: tuple[str, ...], size: int) -> None:
        self._outer = make(
            bddl_file_name=str(bddl),
            camera_names=[_CAMERAS[name] for name in cameras],
            camera_heights=size,
            camera_widths=size,
            hard_reset=False,
            ignore_done=True,  # its own limit of 1000 steps is not the benchmark's
        )
        self._env = self._outer.env
        self._cameras = cameras
        self._shutters = [self._shutter(f"{_CAMERAS[name]}_image", size) for name in cameras]
        self._initializers = list(self._env.object_property_initializers)
        self._furniture = self._poses_in_file()
        self._seed: int | None = None
        # Random numbers and copies of the initializers before each reset since seeding.
        self._before: list[tuple[Any, int]] = []

    def _poses_in_file(self) -> list[tuple[int, Floats, Floats]]:
        """Body, position and quaternion of each fixture by the model file."""
        found = []
        for fixture in self._env.fixtures_dict.values():
            element = self._env.model.worldbody.find(f".//body[@name='{fixture.root_body}']")
            position, quaternion = element.get("pos", "0 0 0"), element.get("quat", "1 0 0 0")
            body = self._env.sim.model.body_name2id(fixture.root_body)
            found.append((body, *(np.array(t.split(), float) for t in (position, quaternion))))
        return found

    def _shutter(self, observable: str, size: int) -> _Shutter:
        found = self._env._observables[observable]
        shutter = _Shutter(found._sensor, size)
        found.set_sensor(shutter)
        return shutter

    def reset(self, initial_state: int, seed: int, state: Floats, render: bool) -> SimObservation:
        """The benchmark's episode number ``initial_state`` after ``env.seed(seed)``, waited out.

        ``state`` is the simulator's state that the benchmark fixes for it.
        """
        before = np.random.get_state()
        try:
            self._draw_resets(initial_state, seed)
        finally:
            np.random.set_state(before)  # LIBERO draws from the one that everybody shares
        gripper = self._env.robots[0].gripper
        gripper.current_action = np.zeros_like(gripper.current_action)
        self._open_shutters(False)
        self._outer.set_init_state(state)
        for step in range(WAIT_STEPS):
            observation, _ = self.step(WAIT_ACTION, render and step == WAIT_STEPS - 1)
        return observation

    def _draw_resets(self, episode: int, seed: int) -> None:
        """Draw as the resets number 0 to ``episode`` after seeding would have."""
        self._open_shutters(False)
        if seed != self._seed:
            np.random.seed(seed)
            self._seed, self._before = seed, [(np.random.get_state(), 1)]
        for number in range(min(episode, len(self._before) - 1), episode + 1):
            numbers, loads = self._before[number]
            np.random.set_state(numbers)
            loads += self._draw(loads, whole=number == episode)
            if number + 1 == len(self._before):
                self._before.append((np.random.get_state(), loads))

    def _draw(self, loads: int, whole: bool) -> int:
        """Make a reset of the benchmark, or only its draws; returns how often it loaded the
        model."""
        for attempt in range(1, _MAX_DRAWS + 1):
            # Each time the benchmark loads its model it appends another copy of these, and
            # every copy draws.
            self._env.object_property_initializers = self._initializers * (loads + attempt)
            for body, position, quaternion in self._furniture:
                self._env.sim.model.body_pos[body] = position
                self._env.sim.model.body_quat[body] = quaternion
            try:
                if whole:
                    self._env.reset()
                else:
                    self._env.sim.reset()
                    self._env._reset_internal()
            except RandomizationError:  # objects overlap: the benchmark draws again, too
                continue
            return attempt
        raise SimError(f"objects found no place in {_MAX_DRAWS} attempts")

    def _open_shutters(self, render: bool) -> None:
        for shutter in self._shutters:
            shutter.open = render

    def step(self, action: npt.ArrayLike, render: bool) -> tuple[SimObservation, bool]:
        """Step of one control period; also whether the benchmark's success predicate holds."""
        self._open_shutters(render)
        observed, _, success, _ = self._outer.step(np.asarray(action, np.float64))
        return self._observation(observed, render), bool(success)

    def _observation(self, observed: Mapping[str, Any], render: bool) -> SimObservation:
        fingers = np.array(observed["robot0_gripper_qpos"], np.float64)
        images = {
            name: np.ascontiguousarray(observed[f"{_CAMERAS[name]}_image"][::-1])
            for name in (self._cameras if render else ())
        }
        return SimObservation(
            images=images,
            joint_names=_JOINTS,
            joint_positions=np.concatenate([observed["robot0_joint_pos"], fingers]),
            eef_pos=np.array(observed["robot0_eef_pos"], np.float64),
            eef_quat=np.array(observed["robot0_eef_quat"], np.float64),
            gripper_qpos=fingers,
            poses=self._poses(),
        )

    def _poses(self) -> dict[str, Pose]:
        """Poses: the point between the fingers, turned as the hand is (the tabletop's and LIBERO's
        ``robot0_eef_quat``), and every object's body by its name in the BDDL file."""
        data, robot = self._env.sim.data, self._env.robots[0]
        hand = data.get_body_xquat(robot.robot_model.eef_name)
        poses = {"gripper": pose_of(data.site_xpos[robot.eef_site_id], hand)}
        for name, body in self._env.obj_body_id.items():
            poses[name] = pose_of(data.body_xpos[body], data.body_xquat[body])
        return poses

    def eye(self) -> tuple[Floats, Floats, float]:
        """Position and axes of the main camera, and its field of view in rad."""
        sim = self._env.sim
        number = sim.model.camera_name2id(_CAMERAS[AGENTVIEW])
        position, turn = sim.data.cam_xpos[number], sim.data.cam_xmat[number]
        fovy = float(np.radians(sim.model.cam_fovy[number]))
        return np.array(position), np.array(turn).reshape(3, 3), fovy

    def close(self) -> None:
        """Free the simulation and its rendering context."""
        self._outer.close()
