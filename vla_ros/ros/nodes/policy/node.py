"""The policy node: topics in, a policy in a worker process, gated commands out.

This file is the node's life: parameters and lifecycle transitions. What it runs
between configure and cleanup is :class:`vla_ros.ros.nodes.policy.runtime.PolicyRuntime`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from functools import cached_property, partial

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import SetParametersResult
from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock as RosClock
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.task import Future

from vla_ros.core.types import PolicyState
from vla_ros.engine.io import lock
from vla_ros.policies.base import PolicyRefused
from vla_ros.policies.trust import refuse_named
from vla_ros.ros.common.compat import awaiting_executor, awaiting_group, on_parameters
from vla_ros.ros.common.given import own_parameter_file
from vla_ros.ros.common.parameters import check_fixed, declare
from vla_ros.ros.common.qos_overrides import QosOverrides, warn_of_unused
from vla_ros.ros.common.spin import every, make_executor, run
from vla_ros.ros.nodes.policy.goals import GoalServer
from vla_ros.ros.nodes.policy.parameters import TABLE, camera_rows, check_parameters
from vla_ros.ros.nodes.policy.runtime import PolicyRuntime
from vla_ros.ros.nodes.policy.services import PolicyServices
from vla_ros.ros.nodes.policy.settings import limits_of, validate
from vla_ros.ros.nodes.policy.topics import PolicyTopics, idle_message
from vla_ros.runtime.control.goals import PersistentState
from vla_ros.runtime.safety import Safety
from vla_ros.runtime.worker.wire import WorkerGone

_NOT_CONFIGURED = Safety(PolicyState.UNCONFIGURED, "not configured")


class NodeClock:
    """Clock of the node: stamps from ROS (wall or simulated time), durations from the monotonic
    clock."""

    def __init__(self, clock: RosClock) -> None:
        self._clock = clock

    def steady_ns(self) -> int:
        return time.monotonic_ns()

    def now_ns(self) -> int:
        return int(self._clock.now().nanoseconds)


class PolicyNode(QosOverrides, LifecycleNode):
    """The policy's lifecycle node. A value that no parameter can have raises ValueError, or rclpy's
    own exceptions; what the values mean together is judged at configure."""

    def __init__(self, ending: threading.Event) -> None:
        super().__init__("policy")
        self._ending = ending  # set by SIGINT and SIGTERM: loading may take minutes
        self.values = declare(self, TABLE, lifecycle=True, more=True)
        check_parameters(TABLE, self.values)
        cameras = camera_rows(self.values)
        self._table = (*TABLE, *cameras)
        self._own = frozenset(row.name for row in self._table)
        self.values |= declare(self, cameras, lifecycle=True)
        if (file := own_parameter_file()) is not None:
            lock.use_beside(file)
        self._started = dict(self.values)  # what the operator gave: anybody may set the others
        self.sim_time = bool(self.get_parameter("use_sim_time").value)
        self.clock = NodeClock(self.get_clock())
        self.topics = PolicyTopics(self)
        self.runtime: PolicyRuntime | None = None
        self._persistent = PersistentState()
        self._loading: threading.Thread | None = None  # while configure is under way
        self._idle = _NOT_CONFIGURED
        every(self, 1.0, self._report)
        on_parameters(self, self._check_parameters, self._apply_parameters)
        self._triggers = PolicyServices(
            self, lambda: self.runtime, self._stop_while_loading, self.publish_status
        )
        self.goals = GoalServer(self)
        self.publish_status()

    @cached_property
    def default_callback_group(self) -> CallbackGroup:
        """Callback group in which a configure that is awaited holds up no other callback."""
        return awaiting_group()

    # Lifecycle

    async def _LifecycleNodeMixin__on_change_state(
        self, request: ChangeState.Request, response: ChangeState.Response
    ) -> ChangeState.Response:
        """Answer to ~/change_state: rclpy's own, but configure runs beside the executor, since
        weights load for minutes, and status, get_state and stop must answer meanwhile.

        rclpy has no hook for this; under another name of its own it configures as it would.
        """
        change = super()._LifecycleNodeMixin__on_change_state  # type: ignore[misc]
        if self._loading is not None:
            self.get_logger().error("refused: another transition is under way")
            response.success = False
            return response
        number, label = request.transition.id, request.transition.label
        if label != "configure" and (label or number != Transition.TRANSITION_CONFIGURE):
            try:
                return change(request, response)
            except Exception as error:  # Jazzy raises where the state allows no such transition
                self.get_logger().error(f"refused: {error}")
                response.success = False
                return response
        done: Future[ChangeState.Response] = Future(executor=self.executor)

        def configure() -> None:
            try:
                change(request, response)
            except Exception as error:
                response.success = False
                self.get_logger().error(f"configure failed: {type(error).__name__}: {error}")
            done.set_result(response)

        self._loading = threading.Thread(target=configure, name="configure", daemon=True)
        self._loading.start()
        try:
            await done
        finally:
            self._loading = None
            self.publish_status()
        return response

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the policy in its worker, warm it up, refuse limits that cannot be met. Runs in a
        thread of its own."""
        self._idle = Safety(PolicyState.UNCONFIGURED, "loads its policy")
        self.publish_status()
        try:
            spec, limits = validate(self.values, self.sim_time)
            runtime = PolicyRuntime(
                self,
                self.values,
                spec,
                limits,
                self.clock,
                self.topics,
                sim_time=self.sim_time,
                persistent=self._persistent,
                reported=self.goals.changed,
                ending=self._ending,
            )
        except Exception as error:
            expected = isinstance(error, (PolicyRefused, ValueError))
            reason = str(error) if expected else f"{type(error).__name__}: {error}"
            self.get_logger().error(f"configure refused: {reason}")
            self._idle = Safety(PolicyState.UNCONFIGURED, f"refused: {reason}")
            self.publish_status()
            return TransitionCallbackReturn.FAILURE
        self.runtime = runtime
        self.goals.attach(runtime.control)
        warn_of_unused(self)
        self.publish_status()
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self.runtime is not None
        try:
            self.runtime.activate()
        except WorkerGone as error:
            self.get_logger().error(f"activate refused: {error}")
            return TransitionCallbackReturn.FAILURE
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        assert self.runtime is not None
        self.runtime.deactivate()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._release()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.stop()
        return TransitionCallbackReturn.SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._release()
        return TransitionCallbackReturn.SUCCESS

    def _release(self) -> None:
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None
            self.goals.attach(None)
        self._idle = _NOT_CONFIGURED
        self.publish_status()

    def stop(self) -> None:
        """Publish the stop, then end the worker."""
        if (loading := self._loading) is not None:
            loading.join(0.5)  # `ending` cuts it short
        if self.runtime is not None:
            self.runtime.shut_down()
        self._release()

    def end(self) -> None:
        """Stop, and give the goals that wait their results: at the end of the process."""
        self.stop()
        self.goals.close(0.1)

    def _stop_while_loading(self) -> bool:
        """Keep the policy that is being loaded from acting before ~/resume. False: none is."""
        if self._loading is None:
            return False
        self._persistent.latch.close()
        return True

    # Parameters

    def _check_parameters(self, changes: list[Parameter]) -> SetParametersResult:
        """Verdict on new values, all or nothing: the changed set is checked as a whole. Before
        configure only one by one: parameters that belong together may come one after the other."""
        values = self.values | {p.name: p.value for p in changes if p.name in self._own}
        if any(p.name == "use_sim_time" and p.value != self.sim_time for p in changes):
            reason = "use_sim_time is given at the start: the clocks of a running loop stay"
            return SetParametersResult(successful=False, reason=reason)
        if values["camera_roles"] != self.values["camera_roles"]:
            reason = "camera_roles is given at the start: each role has parameters of its own"
            return SetParametersResult(successful=False, reason=reason)
        if self._loading is not None and any(p.name in self._own for p in changes):
            reason = "the policy is loading with the values it was given: wait until it is"
            return SetParametersResult(successful=False, reason=reason)
        try:
            check_parameters(self._table, values)
            if self.runtime is not None:
                check_fixed(self._table, self.values, values)
                self.runtime.check(limits_of(values))
            refuse_named(values, "this change", self._started, "at the start")
        except ValueError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _apply_parameters(self, changes: list[Parameter]) -> None:
        self.values = self.values | {p.name: p.value for p in changes if p.name in self._own}
        if self.runtime is not None:
            self.runtime.apply(self.values, limits_of(self.values))

    # Status

    def _report(self) -> None:
        self.publish_status()
        self.topics.diagnose()
        if self.runtime is not None:
            self.runtime.report_latency()

    def publish_status(self) -> None:
        """Publish the status of a node that is configured, or not. From any thread."""
        if self.runtime is not None:
            self.runtime.report_status()
            return
        self.topics.status(idle_message(self._idle, self.values), self.clock.now_ns())


def main(args: Sequence[str] | None = None) -> int:
    """Run the policy node: exit status 0 after SIGINT or SIGTERM, 2 for a value that no parameter
    can have."""
    executor = partial(awaiting_executor, make_executor)
    return run(PolicyNode, PolicyNode.end, args, executor, end_s=0.9)


if __name__ == "__main__":
    sys.exit(main())
