"""How a control loop serves goals: they begin, they end, and the robot stands still after them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from vla_ros.control.goals import Goal, GoalRefused, Outcome
from vla_ros.control.state import LoopState
from vla_ros.core import PolicyState
from vla_ros.safety import Safety


class GoalLoop(LoopState, ABC):
    """The part of the loop that knows of goals. Methods with a leading underscore want the lock
    to be held."""

    lock: threading.RLock

    @abstractmethod
    def _take_up(self, text: str) -> None:
        """This is the task from now on, in an epoch of its own; "": none."""

    def begin_goal(self, goal: Goal) -> None:
        """Do this, whatever was stopped or runs. Raises :class:`GoalRefused`.

        Nothing that was computed before is published after the return.
        """
        with self.lock:
            if reason := self.goal_refusal():
                raise GoalRefused(reason)
            self.make_way()
            self.lasting.latch.give_way()
            self.goals.begin(goal)
            self._take_up(goal.text)

    def goal_refusal(self) -> str:
        """Why no goal can begin now; "": one can."""
        if not self.safety.active:
            return "the policy node is not active"
        if self.safety.state is PolicyState.FAULT:
            return f"the policy node is in FAULT, call ~/recover: {self.safety.reason}"
        return ""

    def make_way(self) -> None:
        """Another goal is about to begin: what runs ends, and nothing of it is published."""
        with self.lock:
            if not self.end_goal(Outcome.PREEMPTED, "another goal took over"):
                self._stand_still()

    def end_goal(self, outcome: Outcome, message: str) -> bool:
        """The goal is over and the robot stands still, as after :meth:`stop`. False: there was no
        goal, and nothing is changed."""
        with self.lock:
            if not self.goals.end(outcome, message):
                return False
            self._stand_still()
            return True

    def become(self, new: Safety) -> None:
        super().become(new)
        if new.state is PolicyState.FAULT:
            self.end_goal(Outcome.FAILED, f"FAULT: {new.reason}")

    def _stand_still(self) -> None:
        if self.instruction.text:
            self.lasting.latch.catch(self.instruction.text)
            self._take_up("")

    def _goal_outweighs(self, text: str) -> bool:
        """Whether a goal runs that no topic may end."""
        if (goal := self.goals.current) is None or self.goals.topic_preempts:
            return False
        if text != goal.text:
            self.lasting.latch.overrule(text)
            self._outlet.warn("goal", "instruction ignored: a goal runs; cancel it first")
        return True

    def _watch_goal(self) -> None:
        if (goal := self.goals.current) is not None and self.goals.overdue:
            reason = f"the time limit of {goal.time_limit_s:g} s has passed"
            self.end_goal(Outcome.TIME_LIMIT, reason)
