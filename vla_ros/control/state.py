"""Where a control loop stands: its state, task and epoch, its limits and counts."""

from __future__ import annotations

from dataclasses import replace

from vla_ros.control.goals import GoalCourse
from vla_ros.control.lasting import Lasting
from vla_ros.control.outlet import ControlCounts, ControlOutlet
from vla_ros.control.whereabouts import Whereabouts
from vla_ros.core import Floats, Instruction, Observation, PolicyState
from vla_ros.safety import Limits, Safety
from vla_ros.timing import Clock, Moment, moment


class LoopState:
    """What the loop and its gate both look at. Guarded by the loop's lock.

    ``held_pose`` is where the robot was when the state was entered, float64 [D]: what
    ``stale_policy: hold`` keeps. None: nobody had said so, or long ago. ``latest`` is the newest
    frame that was taken in. ``lasting`` outlives this loop. ``plans``: commands say what else of
    their chunk will follow (:attr:`vla_ros.core.Command.plan`).
    """

    def __init__(
        self,
        limits: Limits,
        clock: Clock,
        outlet: ControlOutlet,
        lasting: Lasting,
        sim_time: bool,
    ) -> None:
        self._clock = clock
        self.limits = limits
        self.counters = ControlCounts()
        self.safety = Safety(PolicyState.INACTIVE, "inactive", clock.steady_ns())
        self.lasting = lasting
        self.goals = GoalCourse(clock)
        self.instruction = Instruction("", lasting.epoch)
        self.epoch_began_ns = clock.steady_ns()
        self.plans = False
        self.latest: Observation | None = None
        self.where = Whereabouts(limits.space, sim_time)
        self.held_pose: Floats | None = None
        self._outlet = outlet

    def become(self, new: Safety) -> None:
        """Take on ``new``; the outlet is told if state or reason are others."""
        old, self.safety = self.safety, new
        if (old.state, old.reason) == (new.state, new.reason):
            return
        if old.state != new.state:
            self.held_pose = self.fresh_pose(moment(self._clock))
        self._outlet.changed(old, new)

    def fresh_pose(self, now: Moment) -> Floats | None:
        """Where the robot is, unless that was measured longer than ``max_age_s`` ago."""
        return self.where.at(now, self.limits.max_age_ns)

    def begin_epoch(self, steady_ns: int) -> None:
        """What was computed so far is void from now on."""
        self.lasting.epoch += 1
        self.instruction = replace(self.instruction, epoch=self.lasting.epoch)
        self.epoch_began_ns = steady_ns
