"""Answers of a node's services, kept for askers that the middleware does not know yet.

A request may arrive before the server has discovered the reader of its answer, as just after a
start. rmw_fastrtps then waits 100 ms, drops the answer and reports a timeout, which rclpy makes a
RuntimeWarning (ros2/rmw_fastrtps#842): the request was carried out, and whoever asked waits for
ever. Here that answer is sent again once another asker is known, so no client has to ask twice.

rclpy holds Python's lock in those 100 ms, and the control tick stands still. So no answer is tried
while the graph shows nobody who could read it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidHandle
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.service import Service
from rclpy.task import Future

if TYPE_CHECKING:
    from rclpy.timer import Timer

KEPT_S = 5.0  # an answer is given up after it: discovery says everything again within 3 s
_LOOK_S = 0.05
_TRIES_S = (1.0, KEPT_S)  # when it is tried although nobody new was seen
_STEADY = Clock(clock_type=ClockType.STEADY_TIME)


@dataclass(slots=True)
class _Kept:
    """An answer that was not sent. ``known``: askers of its service at the last try."""

    name: str
    send: Callable[[], None]
    since_s: float
    known: int
    tries: int = 0


class KeptAnswers:
    """Sender of the answers of all services that ``node`` has now. Runs in the node's executor."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._kept: list[_Kept] = []
        self._timer: Timer | None = None
        warnings.filterwarnings("error", "failed to send response", RuntimeWarning)
        for service in node.services:
            send = partial(self._send, service, service.send_response)
            service.send_response = send  # type: ignore[method-assign]

    def _send(
        self, service: Service[Any, Any], send: Callable[..., None], response: Any, header: Any
    ) -> None:
        known = askers(self._node, service.service_name)
        whole = partial(send, response, header)
        if known == 0 or not _sent(whole):
            self._kept.append(_Kept(service.service_name, whole, time.monotonic(), known))
            if self._timer is None:
                self._timer = self._node.create_timer(_LOOK_S, self._look, clock=_STEADY)

    def _look(self) -> None:
        self._kept = [kept for kept in self._kept if not self._settled(kept)]
        if not self._kept and self._timer is not None:
            self._timer.cancel()
            self._node.destroy_timer(self._timer)
            self._timer = None

    def _settled(self, kept: _Kept) -> bool:
        """True once it was sent or is given up; either is logged."""
        waited_s = time.monotonic() - kept.since_s
        known, before = askers(self._node, kept.name), kept.known
        kept.known = known
        due = waited_s > _TRIES_S[kept.tries]
        if not due and known <= before:
            return False
        kept.tries += due
        log = self._node.get_logger()
        if _sent(kept.send):
            log.info(
                f"{kept.name}: answered {waited_s:.1f} s late, whoever asked was not known yet"
            )
            return True
        if kept.tries == len(_TRIES_S):
            log.warning(
                f"{kept.name}: a request was carried out and its answer reached nobody: whoever"
                f" asked is gone, or was not discovered in {KEPT_S:g} s"
            )
            return True
        return False


def askers(node: Node, service: str) -> int:
    """How many clients of a service are known; -1 where this rclpy (Humble) cannot say."""
    count = getattr(node, "count_clients", None)
    return -1 if count is None else int(count(service))


async def until_asked(node: Node, service: str) -> None:
    """Wait until some client of a service is known, at most :data:`KEPT_S`. For the action server,
    whose answers rclpy sends by itself."""
    if askers(node, service):
        return
    known: Future[None] = Future(executor=node.executor)
    since_s = time.monotonic()

    def look() -> None:
        if not known.done() and (askers(node, service) or time.monotonic() - since_s > KEPT_S):
            known.set_result(None)

    timer = node.create_timer(_LOOK_S, look, clock=_STEADY)
    try:
        await known
    finally:
        timer.cancel()
        node.destroy_timer(timer)


def _sent(send: Callable[[], None]) -> bool:
    """Send an answer; False: nobody was there to read it, after 100 ms."""
    try:
        send()
    except InvalidHandle:  # the service is gone with its node
        return True
    except (RuntimeWarning, SystemError, rclpy_implementation.RCLError) as error:
        # pybind11 (Kilted) finds the warning behind a result that it has: a SystemError
        if isinstance(error, SystemError) and not isinstance(error.__cause__, RuntimeWarning):
            raise
        return False
    return True
