"""How a control loop lives with its worker: answers that are none, faults, losses, successors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from vla_ros import safety
from vla_ros.control.goal_loop import GoalLoop
from vla_ros.control.intake import check_inference
from vla_ros.control.queue import ActionQueue
from vla_ros.core import Inference, PolicyState


class WorkerLoop(GoalLoop):
    """The part of the loop that knows of the worker. Methods with a leading underscore want the
    lock to be held."""

    _queue: ActionQueue
    _no_worker = ""  # why there is none
    _fell = False  # the loss of the worker is what ended RUNNING

    @abstractmethod
    def _flush(self) -> None:
        """Begin a new epoch: nothing computed so far may be executed any more."""

    @abstractmethod
    def _wait(self, reason: str) -> None:
        """Go to WAITING, if active."""

    @abstractmethod
    def _lacks(self) -> str:
        """What is waited for."""

    @abstractmethod
    def _resubmit(self) -> None:
        """Show the newest frame again."""

    def invalid(self, epoch: int, reason: str) -> None:
        """The policy said something that is no action."""
        with self.lock:
            if not self._is_current(epoch):
                return
            self._queue.answered()
            self.counters.blocked(reason)
            self._outlet.warn("invalid", f"invalid action dropped: {reason}")
            steady = self._clock.steady_ns()
            self.become(safety.after_invalid(self.safety, self.limits, reason, steady))

    def fault(self, reason: str) -> None:
        """Something that no waiting will mend: latch until an explicit recover."""
        with self.lock:
            if self.safety.active:
                self._flush()
                steady = self._clock.steady_ns()
                self.become(safety.enter(self.safety, PolicyState.FAULT, reason, steady))
            else:
                self.become(replace(self.safety, reason=f"inactive: {reason}"))

    def worker_lost(self, reason: str) -> None:
        """The worker is gone; another one is being started. What it said is void."""
        with self.lock:
            self._no_worker = reason
            self._fell |= self.safety.state is PolicyState.RUNNING
            self._void_answers()
            self.become(safety.hold(self.safety, reason, self._clock.steady_ns()))
            if self.safety.state is PolicyState.WAITING:
                self._wait(self._lacks())

    def worker_ready(self) -> None:
        """A new worker is there: show it the newest frame at once.

        It has acted while it warmed up. Where nothing but the loss of the one before it stopped
        the robot, one valid action is enough to go on, as after an activation: a HOLD waits for
        several because evidence came and went, and it did not.
        """
        with self.lock:
            self._no_worker = ""
            fell, self._fell = self._fell, False
            if self.safety.state is PolicyState.WAITING or fell:
                self._wait(self._lacks())
            self._resubmit()

    def worker_switched(self, reason: str) -> None:
        """The worker is gone and another stands in its place: everything begins anew with it,
        the state too, but nothing is waited for other than its first answer."""
        with self.lock:
            self._void_answers()
            if self.safety.state is PolicyState.RUNNING:
                self._wait(f"{reason}; the spare worker took over")
            self._resubmit()

    def _void_answers(self) -> None:
        """What a lost worker said moves nothing any more."""
        self._flush()

    def _is_current(self, epoch: int) -> bool:
        return self.safety.active and epoch == self.instruction.epoch

    def _accepts(self, epoch: int, inference: Inference) -> bool:
        """Whether the inference is of the current epoch, and its actions are some. Without a task
        nothing was asked, whoever answers."""
        if not self._is_current(epoch) or not self.instruction.text:
            return False
        try:
            check_inference(inference, self.limits.space)
        except safety.ActionRefused as error:
            self.invalid(epoch, str(error))
            return False
        return True
