"""The policy node's services: stop, resume, release, recover, reset. Each response has a reason."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.lifecycle import LifecycleNode
from std_srvs.srv import Trigger

from vla_ros.ros.nodes.policy.runtime import PolicyRuntime, WrongState


class PolicyServices:
    """The Trigger services of the loop that ``runtime`` returns: None while not configured.

    ``stop_while_loading`` keeps a policy that is being loaded from acting (False: none is);
    ``changed`` is called after each request that was carried out.
    """

    def __init__(
        self,
        node: LifecycleNode,
        runtime: Callable[[], PolicyRuntime | None],
        stop_while_loading: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._stop_while_loading = stop_while_loading
        self._changed = changed
        node.create_service(Trigger, "~/stop", self._on_stop)
        node.create_service(Trigger, "~/resume", self._while_active(_resume))
        node.create_service(Trigger, "~/release", self._while_active(_release))
        node.create_service(Trigger, "~/recover", self._while_active(PolicyRuntime.recover))
        node.create_service(Trigger, "~/reset", self._while_active(_reset))

    def _on_stop(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        if self._stop_while_loading():
            return _answer(response, True, "stopped: nothing starts before ~/resume")
        if (runtime := self._runtime()) is None:
            return _answer(response, False, "not configured: nothing runs")
        runtime.control.stop()
        self._changed()
        return _answer(response, True, "stopped: call ~/resume, or give another instruction")

    def _while_active(
        self, call: Callable[[PolicyRuntime], str]
    ) -> Callable[[Trigger.Request, Trigger.Response], Trigger.Response]:
        """Callback of one service. ``call`` returns the message, or raises WrongState."""

        def serve(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            if (runtime := self._runtime()) is None:
                return _answer(response, False, "not configured")
            try:
                if not runtime.control.loop.safety.active:
                    raise WrongState("not active: activate the node first")
                message = call(runtime)
            except WrongState as error:
                return _answer(response, False, str(error))
            self._changed()
            return _answer(response, True, message)

        return serve


def _resume(runtime: PolicyRuntime) -> str:
    if not runtime.control.resume():
        raise WrongState("nothing was stopped")
    return f"resumed: '{runtime.control.loop.instruction.text}'"


def _release(runtime: PolicyRuntime) -> str:
    if not runtime.control.release():
        raise WrongState("nobody has taken over")
    return "released: waits for a fresh action of the policy"


def _reset(runtime: PolicyRuntime) -> str:
    runtime.control.reset()
    return "reset: a new episode begins"


def _answer(response: Trigger.Response, success: bool, message: str) -> Trigger.Response:
    response.success, response.message = success, message
    return response
