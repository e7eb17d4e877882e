"""What the worker is asked about a frame: whether at all, and what it is told beside it."""

from __future__ import annotations

from dataclasses import replace

from vla_ros.control.queue import ActionQueue
from vla_ros.control.retold import Retold
from vla_ros.core import Observation, PolicyInfo
from vla_ros.safety import Limits


class Asking:
    """Of the policy that ``info`` describes, with the answers in ``queue``. Not thread-safe.

    ``retold``: what to ask, where that is decided already.
    """

    def __init__(self, queue: ActionQueue, info: PolicyInfo) -> None:
        self._queue, self._max_delay = queue, info.max_delay
        self.retold: Retold | None = None

    def about(self, observation: Observation, limits: Limits, running: bool) -> Observation | None:
        """The frame as the worker is to get it; None: an answer to it would not be executed.

        A robot that is not ``running`` has nothing that could be continued.
        """
        if self.retold is not None:
            return self._as_before(observation, self.retold)
        if not self._queue.asks(observation.stamp_ns, limits):
            return None
        executing = self._queue.asked(observation.stamp_ns)
        if executing is not None and running:
            observation = replace(observation, executing=executing)
        if self._max_delay:
            steps = min(self._queue.delay_steps, self._max_delay)
            observation = replace(observation, delay_steps=steps)
        return observation

    def _as_before(self, observation: Observation, retold: Retold) -> Observation | None:
        """As it was asked in the run that is told again."""
        question = retold.next(observation.stamp_ns)
        if question is None:
            return None
        self._queue.asked(observation.stamp_ns)
        told = min(question.told_delay, self._max_delay)
        return replace(observation, executing=question.executing, delay_steps=told)
