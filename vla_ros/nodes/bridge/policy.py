"""The policy as the bridge sees it: is it up, has it been reset, does it know the task.

Threads: :meth:`PolicyPeer.begin` is called from the episode's thread and waits; callbacks
come from the node's executor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_ros.msg import PolicyStatus
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.listening import listen

_ACTIVE = (PolicyStatus.STATE_WAITING, PolicyStatus.STATE_RUNNING, PolicyStatus.STATE_HOLD)
_RESET_S = 2.0  # longest wait for the reset service's answer
_LEARN_S = 2.0  # longest wait until the policy's status names the instruction
_LOOK_S = 0.1  # how often a wait looks for other reasons to end


class PolicyPeer:
    """Talks to one policy node. ``wait``: episodes begin only once it is active."""

    def __init__(self, node: Node, reset_service: str, wait: bool) -> None:
        self._log = node.get_logger()
        self._wait = wait
        self._bell = threading.Condition()
        self._status: PolicyStatus | None = None
        self._reset_client = node.create_client(Trigger, reset_service)
        self._instruction = node.create_publisher(String, "instruction", qos.LATCHED)
        listen(node, PolicyStatus, "policy/status", self._on_status, qos.LATCHED)

    def begin(
        self, instruction: str, interrupted: Callable[[], bool], waiting: Callable[[], None]
    ) -> None:
        """Wait for the policy, reset it, tell it the task and see that it knows.

        ``waiting`` is called now and then meanwhile. Returns early when ``interrupted``.
        """
        if self._wait:
            self._until(self._active, interrupted, waiting)
        if interrupted():
            return
        epoch = self._status.epoch if self._status is not None else 0
        was_reset = self._reset(interrupted, waiting)
        self._instruction.publish(String(data=instruction))
        if self._status is None:
            return

        def knows() -> bool:
            status = self._status
            assert status is not None
            new = status.epoch > epoch or not was_reset
            return new and status.instruction == instruction

        if not self._until(knows, interrupted, waiting, _LEARN_S) and not interrupted():
            self._log.warning(f"the policy's status does not name '{instruction}': begins anyway")

    def _on_status(self, message: PolicyStatus) -> None:
        with self._bell:
            self._status = message
            self._bell.notify_all()

    def _active(self) -> bool:
        return self._status is not None and self._status.state in _ACTIVE

    def _reset(self, interrupted: Callable[[], bool], waiting: Callable[[], None]) -> bool:
        """Call the reset service if there is one; whether it did reset."""
        if not self._reset_client.service_is_ready():
            return False
        future: Future = self._reset_client.call_async(Trigger.Request())
        future.add_done_callback(lambda _: self._ring())
        if not self._until(future.done, interrupted, waiting, _RESET_S):
            self._reset_client.remove_pending_request(future)
            self._log.warning("the policy's reset service did not answer: begins anyway")
            return False
        answer = future.result()
        if answer is None or not answer.success:
            why = "no answer" if answer is None else answer.message
            self._log.warning(f"the policy was not reset: {why}")
            return False
        return True

    def _ring(self) -> None:
        with self._bell:
            self._bell.notify_all()

    def _until(
        self,
        true: Callable[[], bool],
        interrupted: Callable[[], bool],
        waiting: Callable[[], None],
        timeout_s: float = float("inf"),
    ) -> bool:
        """Wait for ``true``; False when interrupted or timed out."""
        left = timeout_s
        while left > 0:
            with self._bell:
                if self._bell.wait_for(true, min(_LOOK_S, left)):
                    return True
            if interrupted():
                return False
            waiting()
            left -= _LOOK_S
        return true()
