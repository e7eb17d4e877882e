"""Where a control loop stands: its state, task and epoch, its limits and counts."""

from __future__ import annotations

from dataclasses import replace

from vla_ros.control.lasting import Lasting
from vla_ros.control.outlet import ControlCounts, ControlOutlet
from vla_ros.core import Floats, Instruction, Observation, PolicyState
from vla_ros.safety import Limits, Safety
from vla_ros.timing import Clock


class LoopState:
    """What the loop and its gate both look at. Guarded by the loop's lock.

    ``measured_pose`` is where the end effector was last, float64 [7], and ``held_pose`` where it
    was when the state was entered: what ``stale_policy: hold`` keeps. ``latest`` is the newest
    frame that was taken in. ``lasting`` outlives this loop.
    """

    def __init__(
        self, limits: Limits, clock: Clock, outlet: ControlOutlet, lasting: Lasting
    ) -> None:
        self.limits = limits
        self.counters = ControlCounts()
        self.safety = Safety(PolicyState.INACTIVE, "inactive", clock.steady_ns())
        self.lasting = lasting
        self.instruction = Instruction("", lasting.epoch)
        self.epoch_began_ns = clock.steady_ns()
        self.latest: Observation | None = None
        self.measured_pose: Floats | None = None
        self.held_pose: Floats | None = None
        self._outlet = outlet

    def become(self, new: Safety) -> None:
        """Take on ``new``; the outlet is told if state or reason are others."""
        old, self.safety = self.safety, new
        if (old.state, old.reason) == (new.state, new.reason):
            return
        if old.state != new.state:
            self.held_pose = None if self.measured_pose is None else self.measured_pose.copy()
        self._outlet.changed(old, new)

    def begin_epoch(self, steady_ns: int) -> None:
        """What was computed so far is void from now on."""
        self.lasting.epoch += 1
        self.instruction = replace(self.instruction, epoch=self.lasting.epoch)
        self.epoch_began_ns = steady_ns
