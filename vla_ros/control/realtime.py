"""The control loop of a robot: the world does not wait, so the tick commands.

Frames go to the worker as they come, answers wait in the queue, and every tick of the steady
clock publishes exactly one command: the next action, no motion while the last one's evidence
lasts, then the stale policy, then nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

from vla_ros import safety
from vla_ros.control.lasting import Lasting
from vla_ros.control.loop import Control
from vla_ros.control.outlet import ControlOutlet
from vla_ros.control.queue import Answer
from vla_ros.control.timeline import Chunking
from vla_ros.core import Observation, PolicyInfo, PolicyState, StalePolicy
from vla_ros.safety import Limits
from vla_ros.timing import SECOND, Clock, Moment, moment


class RealtimeControl(Control):
    """See the module's text. ``inference_s`` is L, the inference time measured at warm-up."""

    def __init__(
        self,
        limits: Limits,
        info: PolicyInfo,
        clock: Clock,
        outlet: ControlOutlet,
        *,
        sim_time: bool = False,
        detect_frozen: bool = False,
        chunking: Chunking = Chunking(),
        inference_s: float = 0.0,
        lasting: Lasting | None = None,
    ) -> None:
        super().__init__(
            limits,
            info,
            clock,
            outlet,
            sim_time=sim_time,
            detect_frozen=detect_frozen,
            chunking=chunking,
            expected=math.ceil(inference_s / limits.period_s),
            lasting=lasting,
        )
        self._pipeline_depth = info.pipeline_depth
        self.inference_s = inference_s

    def offer(self, observation: Observation) -> None:
        with self.lock:
            self.counters.frames_received += 1
            if self._take_in(observation) and self._may_ask:
                self._ask(observation)

    def result(self, epoch: int, answer: Answer | None) -> None:
        with self.lock:
            if self._is_current(epoch):
                self._queue.answered()
            if answer is not None and self._accepts(epoch, answer.inference):
                self._queue.put(answer)

    def tick(self) -> None:
        """Watch, then publish one command."""
        with self.lock:
            if not self.safety.active:
                return
            self._watch_goal()
            now = moment(self._clock)
            if not self._watch_clock(now):
                self._watch_simulated_time(now)
            self._watch_pipeline(now)
            self._watch_pixels(now)
            if not self._act(now):
                self._stop_for_a_while(now)

    def _rest(self) -> None:
        """One command that stops, and silence: the simulation executes nothing after the end."""
        super()._rest()
        if self._gate.moved:
            self._stop(moment(self._clock))

    def _stop_for_a_while(self, now: Moment) -> None:
        """Before the first action nothing was set in motion, and the gripper's state is unknown:
        a command could only do harm. After ``silence_after_s`` the consumer knows."""
        silent = now.steady_ns - self.safety.since_ns > self.limits.silence_after_s * SECOND
        if self._gate.moved and not silent and not self._resting:
            self._stop(now)

    def _stop(self, now: Moment) -> None:
        """The stale policy's command, if it has one."""
        if self.limits.stale_policy is not StalePolicy.SILENCE:
            self._gate.stop(now)

    def _watch_simulated_time(self, now: Moment) -> None:
        if reason := self._clock_watch.stands_still(now, self.limits):
            self.become(safety.hold(self.safety, reason, now.steady_ns))

    def _watch_pipeline(self, now: Moment) -> None:
        """Frames go in, and nothing has come out for three pipeline times."""
        if self.safety.state is not PolicyState.WAITING or self.latest is None:
            return
        if self._resting or not self.instruction.text:
            return
        pipeline_s = self._pipeline_depth * self.limits.period_s + self.inference_s
        waited_s = (now.steady_ns - self.epoch_began_ns) / SECOND
        arriving = now.steady_ns - self.latest.received_steady_ns < self.limits.max_age_ns
        if arriving and waited_s > max(3 * pipeline_s, 1.0):
            reason = "frames arrive but no action came out for three pipeline times"
            self.become(replace(self.safety, reason=reason))
