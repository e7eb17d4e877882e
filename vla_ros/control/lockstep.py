"""The control loop of a simulation that waits: every frame is answered once.

The answer goes out as soon as the action is there, and once more when the frame comes again:
one of the two was lost on the way. The tick publishes nothing. Time is the simulation's.
"""

from __future__ import annotations

from dataclasses import replace

from vla_ros.control.goals import Goal
from vla_ros.control.lasting import Lasting
from vla_ros.control.loop import Control
from vla_ros.control.outlet import ControlOutlet
from vla_ros.control.queue import Answer
from vla_ros.control.timeline import Chunking
from vla_ros.core import Observation, PolicyInfo, PolicyState
from vla_ros.safety import Limits
from vla_ros.timing import Clock, Moment, moment


class LockstepControl(Control):
    """See the module's text."""

    def __init__(
        self,
        limits: Limits,
        info: PolicyInfo,
        clock: Clock,
        outlet: ControlOutlet,
        *,
        detect_frozen: bool = False,
        chunking: Chunking = Chunking(),
        lasting: Lasting | None = None,
    ) -> None:
        super().__init__(
            limits,
            info,
            clock,
            outlet,
            sim_time=True,
            detect_frozen=detect_frozen,
            chunking=chunking,
            lasting=lasting,
        )
        self._told = False  # whether any instruction was ever given

    def set_instruction(self, text: str) -> bool:
        with self.lock:
            self._told = True
            return super().set_instruction(text)

    def stop(self, why: str = "~/stop was called") -> bool:
        with self.lock:
            self._told = True
            return super().stop(why)

    def begin_goal(self, goal: Goal) -> None:
        with self.lock:
            self._told = True
            super().begin_goal(goal)

    def offer(self, observation: Observation) -> None:
        """Answer a frame at once where that needs no new inference; ask the worker otherwise."""
        with self.lock:
            self.counters.frames_received += 1
            if self._came_before(observation):
                self._answer_again(observation)
            elif self._take_in(observation) and self.safety.active:
                if self._stopped:
                    self._stop(self._now())
                elif self._may_ask or not self._queue.exhausted:
                    self._queue.advance(self._now().now_ns, self.limits)
                    self._resubmit()
                    self._answer_if_due()

    def result(self, epoch: int, answer: Answer | None) -> None:
        with self.lock:
            if self._is_current(epoch):
                self._queue.answered()
            if answer is not None and self._accepts(epoch, answer.inference):
                self._queue.put(answer)
                self._answer_if_due()
            elif answer is None and self._is_current(epoch):
                self._answer_if_due()  # a pipeline fills

    def invalid(self, epoch: int, reason: str) -> None:
        with self.lock:
            super().invalid(epoch, reason)
            if self._is_current(epoch):
                self._answer_if_due()

    def _void_answers(self) -> None:
        """In the same epoch: a frame that was answered stays answered, and the world, which
        waits, may ask for that answer again."""
        self._queue.clear()

    def _end_episode(self) -> None:
        """The frame that is with the worker is answered first, so that what is counted does not
        depend on which was quicker, the answer or the news of the end."""
        if not self._awaits_answer:
            self._rest()

    def tick(self) -> None:
        """Watch; answers are not a matter of time."""
        with self.lock:
            if self.safety.active:
                self._watch_goal()
                now = moment(self._clock)
                self._watch_clock(now)
                self._watch_pixels(now)

    def _answer_if_due(self) -> None:
        """Answer the newest frame, once, with the next action if there is one and it may be
        published. The world waits for what was asked for, unless that is to come late."""
        now = self._now()
        if not self._unanswered or self._queue.awaits(now.now_ns, self.limits.period_ns):
            return
        if not self._act(now):
            self._stop(now)
        if self._episode.over and not self._resting:
            self._rest()

    def _came_before(self, observation: Observation) -> bool:
        return self.latest is not None and observation.stamp_ns == self.latest.stamp_ns

    def _answer_again(self, observation: Observation) -> None:
        """The same answer, if there is one yet: a frame that comes again asks for no other."""
        last = self._gate.last
        if not self.safety.active:
            return
        if last is not None and last.latest_ns == observation.stamp_ns:
            self._gate.again()
        elif self._stopped:  # the frame came before the empty instruction did
            self._stop(self._now())

    @property
    def _awaits_answer(self) -> bool:
        """Whether the newest frame is with the worker."""
        if self.latest is None or self._stopped or not self.instruction.text:
            return False
        return self._unanswered

    @property
    def _unanswered(self) -> bool:
        stamp_ns = self.latest.stamp_ns if self.latest is not None else 0
        last = self._gate.last
        return last is None or last.latest_ns != stamp_ns

    @property
    def _stopped(self) -> bool:
        """There is nothing to do and there will not be: told to stop, or FAULT."""
        told = self._told and not self.instruction.text
        return told or self.safety.state is PolicyState.FAULT

    def _now(self) -> Moment:
        """This instant, at least that of the newest frame, which may have overtaken /clock: what
        is decided by time must not depend on that."""
        now = moment(self._clock)
        if self.latest is None:
            return now
        return replace(now, now_ns=max(now.now_ns, self.latest.stamp_ns))
