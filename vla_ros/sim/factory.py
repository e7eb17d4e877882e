"""Environments by name. Picklable, so that a process of its own can build one."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.sim.env import (
    ACTION_RATE_HZ,
    Environment,
    EnvSpec,
    SimError,
    check_control_rate,
    check_image_size,
)
from vla_ros.sim.gl import NO_RENDERER, NoRenderer, choose_renderer
from vla_ros.sim.libero.suites import check_suite
from vla_ros.sim.process import SimTimeouts

ENVIRONMENTS = ("tabletop", "libero", "so101")
MOST_NUDGE_M = 0.1


@dataclass(frozen=True, slots=True)
class EnvConfig:
    """Configuration of an environment. Calling it builds it, in the calling thread and process.

    ``suite`` is one of LIBERO's or LIBERO-PRO's, such as libero_object or libero_object_swap; '':
    all of LIBERO's own. Of the tabletop: ``nudge_m``, the task's cube is moved by so much while the
    hand approaches (:mod:`vla_ros.sim.tabletop`); ``crowded``, others stand right beside it;
    ``later``, in the caller's process, images are rendered when they are read, which must be before
    the next step (:mod:`vla_ros.sim.rendering`). ``control_rate_hz`` 0: the action rate.
    """

    name: str = "tabletop"
    image_size: int = 256
    wrist: bool = True
    suite: str = ""
    nudge_m: float = 0.0
    crowded: bool = False
    later: bool = False
    control_rate_hz: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ENVIRONMENTS:
            known = ", ".join(ENVIRONMENTS)
            raise SimError(f"no environment '{self.name}'; there are: {known}")
        check_image_size(self.image_size)
        check_control_rate(self.control_rate_hz)
        if self.name == "libero" and self.control_rate_hz not in (0.0, ACTION_RATE_HZ):
            raise SimError(
                f"libero is stepped at {ACTION_RATE_HZ:g} Hz alone, not {self.control_rate_hz:g}:"
                " its controller counts a displacement from the hand's pose of each control step,"
                " so at another rate the hand covers another part of it"
            )
        if self.name == "libero":
            check_suite(self.suite)
        elif self.suite:
            raise SimError(f"{self.name} has no suite '{self.suite}'")
        if self.crowded and self.name != "tabletop":
            raise SimError(f"{self.name} is never crowded: that is for the tabletop")
        if self.nudge_m and self.name != "tabletop":
            raise SimError(f"{self.name} nudges nothing: nudge_m is for the tabletop")
        if not 0.0 <= self.nudge_m <= MOST_NUDGE_M:
            raise SimError(f"nudge_m is {self.nudge_m}: give 0 to {MOST_NUDGE_M} m")

    @property
    def timeouts(self) -> SimTimeouts:
        """Timeouts in a process of its own: LIBERO builds a task in its reset."""
        if self.name == "libero":
            return SimTimeouts(start_s=180.0, reset_s=180.0)  # Numba compiles at the first one
        return SimTimeouts()

    def check_task(self, name: str, initial_state: int) -> None:
        """Raise UnknownTask for a task or an initial state that there is not, before anything is
        built. LIBERO's are known once it is."""
        if self.name == "tabletop":
            from vla_ros.sim.tasks import TASKS
        elif self.name == "so101":
            from vla_ros.sim.so101.world import TASKS
        else:
            return
        spec = EnvSpec(self.name, TASKS, (), self.image_size)
        spec.check_initial_state(spec.task(name), initial_state)

    def __call__(self) -> Environment:
        backend = choose_renderer()  # mujoco looks at MUJOCO_GL when it is imported
        if self.name == "libero":
            from vla_ros.sim.libero.environment import Libero

            return Libero(self.suite, self.image_size, self.wrist)
        try:
            if self.name == "so101":
                from vla_ros.sim.so101.environment import So101

                return So101(
                    self.image_size,
                    self.wrist,
                    later=self.later,
                    control_rate_hz=self.control_rate_hz,
                )
            from vla_ros.sim.tabletop import Tabletop  # needs mujoco, other environments may not
        except ModuleNotFoundError as error:
            raise SimError(f"{error}: pip install '.[sim]' in the checkout") from error
        except (AttributeError, ImportError, OSError) as error:  # the OpenGL library is not there
            raise NoRenderer(f"MUJOCO_GL={backend}: {NO_RENDERER} ({error})") from error

        return Tabletop(
            self.image_size, self.wrist, nudge_m=self.nudge_m, crowded=self.crowded,
            later=self.later, control_rate_hz=self.control_rate_hz,
        )  # fmt: skip
