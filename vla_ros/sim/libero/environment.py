"""LIBERO as an ``Environment``: OffScreenRenderEnv, OSC_POSE at 20 Hz, the benchmark's states.

Images are upright and not mirrored, as a robot's camera shows them and as the tabletop's
are: the simulator's rows run from the bottom, and ``raw[::-1]`` turns them over. Published
LIBERO policies were trained on ``raw[::-1, ::-1]``, which is the mirror image of that; the
policy's preprocessing (`preprocessing: libero`) makes it, nobody else.

Only one task's world is held at a time: another task closes it and builds its own (3 to 6 s).

Thread: one, from construction to close. OSMesa crashes where two share it.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final

import numpy.typing as npt

from vla_ros.sim.env import (
    AGENTVIEW,
    WRIST,
    EnvSpec,
    RefusedAction,
    SimError,
    SimObservation,
    SimStep,
    checked_action,
)
from vla_ros.sim.libero.arrays import load_states
from vla_ros.sim.libero.assets import HOW, find_assets, placeholder_note
from vla_ros.sim.libero.loading import load
from vla_ros.sim.libero.suites import LiberoTask, find_package, tasks_of
from vla_ros.sim.libero.survey import missing_objects

if TYPE_CHECKING:
    from vla_ros.sim.libero.world import World

NAME: Final = "libero"


class Libero:
    """The tasks of ``suite``, or of every suite where it is ''. Implements ``Environment``.

    ``initial_state`` k and ``seed`` s mean the benchmark's k-th episode after env.seed(s).
    SimError: LIBERO or its assets are missing. NoRenderer: there is no OpenGL.
    """

    def __init__(self, suite: str = "", image_size: int = 256, wrist: bool = True) -> None:
        self._package = find_package()
        tasks = tasks_of(suite, self._package)
        self._assets = find_assets(self._package)
        self._make = load(self._package, self._assets)
        self._tasks = {task.key: task for task in tasks}
        self._spec = EnvSpec(
            NAME,
            tuple(task.as_task(one_suite=bool(suite)) for task in tasks),
            (AGENTVIEW, WRIST) if wrist else (AGENTVIEW,),
            image_size,
            note=placeholder_note(self._assets),
        )
        self._world: World | None = None
        self._built = ""  # the task whose world this is
        self._done = True

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(
        self, task: str, initial_state: int, seed: int = 0, render: bool = True
    ) -> SimObservation:
        """Begin an episode, the ten steps in which objects come to rest already made.

        Takes 3 to 6 s for another task than before, else a third of a second.
        """
        chosen = self._spec.task(task)
        self._spec.check_initial_state(chosen, initial_state)
        self._done = True
        found = self._tasks[chosen.name]
        states = load_states(found.states_file(self._package))
        try:
            world = self._world_of(found)
            observation = world.reset(initial_state, seed, states[initial_state], render)
        except Exception as error:  # robosuite has no errors of its own
            self.close()
            if isinstance(error, SimError):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise SimError(f"LIBERO cannot set up {found.key}: {reason}") from error
        self._done = False
        return observation

    def _world_of(self, task: LiberoTask) -> World:
        if self._world is None or self._built != task.key:
            from vla_ros.sim.libero.world import World  # robosuite, which load() has prepared

            self.close()
            if missing := missing_objects([task], self._package, self._assets):
                kinds = ", ".join(missing)
                raise SimError(f"{task.key}: the assets have no model of {kinds}: {HOW}")
            bddl = task.bddl_file(self._package)
            self._world = World(self._make, bddl, self._spec.cameras, self._spec.image_size)
            self._built = task.key
        return self._world

    def step(self, action: npt.ArrayLike, render: bool = True) -> SimStep:
        """Execute one action. Done only by success: LIBERO never gives a task up."""
        if self._done or self._world is None:
            raise RefusedAction("the episode has ended: reset before the next step")
        observation, success = self._world.step(checked_action(action), render)
        self._done = success
        return SimStep(observation, success, success)

    def close(self) -> None:
        if self._world is None:
            return
        self._done = True
        self._world.close()
        self._world = None
        gc.collect()  # worlds are full of cycles and hold a gigabyte
