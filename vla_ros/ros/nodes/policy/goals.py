"""Action server `~/execute_instruction`: goals in, feedback and results out.

It is there from the node's start to its end, so that every result reaches its caller. The loop
decides how a goal goes (:mod:`vla_ros.runtime.control.control`).
Threads: what rclpy calls comes from the node's executor. A goal may end in any thread; its
result is handed over in the executor's, which waits for nothing meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import GoalEvent, RCLError, ServerGoalHandle
from rclpy.exceptions import NameValidationException
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode
from rclpy.subscription import Subscription
from std_msgs.msg import Bool

from vla_ros.action import ExecuteInstruction
from vla_ros.core.pixels import quoted
from vla_ros.msg import Percentiles
from vla_ros.ros.common import qos
from vla_ros.ros.common.answers import until_asked
from vla_ros.ros.common.listening import listen
from vla_ros.ros.common.spin import every
from vla_ros.runtime.control.control import Control
from vla_ros.runtime.control.goals import Ending, Goal, GoalOutcome, GoalRefused, check_goal

_FEEDBACK_S = 0.2
_LINGER_S = 0.05  # a result whose writer is gone at once may not be read any more


@dataclass(slots=True)
class _Served:
    """A goal from its request until its result is handed over."""

    text: str  # quoted, for the log
    handle: ServerGoalHandle | None = None  # once it is accepted
    refusal: str = ""  # why it does not begin
    ending: Ending | None = None
    listening: list[Subscription] = field(default_factory=list)  # to its success topic


class GoalServer:
    """Serves the loop that :meth:`attach` names, one goal at a time."""

    def __init__(self, node: LifecycleNode) -> None:
        self._node = node
        self._log = node.get_logger()
        self._control: Control | None = None
        self._asked = _Served("")
        self._served: dict[bytes, _Served] = {}
        self._current: _Served | None = None  # guarded by the loop's lock
        self._server = ActionServer(
            node,
            ExecuteInstruction,
            "~/execute_instruction",
            execute_callback=self._hand_over,
            goal_callback=self._on_request,
            handle_accepted_callback=self._on_accepted,
            cancel_callback=self._on_cancel,
        )
        goals = node.resolve_topic_name("~/execute_instruction")
        self._requests = f"{goals}/_action/send_goal"
        every(node, _FEEDBACK_S, self._feed)

    def attach(self, control: Control | None) -> None:
        """Give goals to this loop from now on; None: reject them."""
        self._control = control
        if control is not None:
            control.loop.goals.ended = self._ended

    def changed(self) -> None:
        """Send feedback soon: the loop's state is another one. From any thread."""
        executor = self._node.executor
        if self._current is not None and executor is not None:
            executor.create_task(self._feed)

    def close(self, wait_s: float) -> None:
        """Hand over the results that are ready, once the node's own executor is gone, and end."""
        if self._served:
            executor = SingleThreadedExecutor(context=self._node.context)
            executor.add_node(self._node)
            for served in self._served.values():
                if served.ending is not None:
                    self._server.notify_execute(served.handle, None)
            until = time.monotonic() + wait_s
            while self._served and (left := until - time.monotonic()) > 0:
                executor.spin_once(timeout_sec=left)
            executor.remove_node(self._node)
            executor.shutdown(timeout_sec=0.0)
            time.sleep(_LINGER_S)
        self._server.destroy()

    # Requests

    async def _on_request(self, request: ExecuteInstruction.Goal) -> GoalResponse:
        """Accept or reject. Only a node that is not active rejects: a rejection carries no reason.

        The response goes out when this returns, so a goal that runs ends here: after the acceptance
        nothing of it is published. A goal that cannot begin ends none. Nothing is decided before
        some client is known: rclpy drops the goal whose response nobody reads.
        """
        await until_asked(self._node, self._requests)
        control = self._control
        if control is None or not control.loop.safety.active:
            self._log.warning(f"goal {quoted(request.instruction)} rejected: not active")
            return GoalResponse.REJECT
        served = self._asked = _Served(quoted(request.instruction))
        try:
            self._check(control, request)
            if request.success_topic:
                self._listen(control, served, request.success_topic)
        except GoalRefused as error:
            served.refusal = str(error)  # accepted, to get this reason
        else:
            control.make_way()
        return GoalResponse.ACCEPT

    def _on_accepted(self, handle: ServerGoalHandle) -> None:
        """Begin the goal. Called right after its request."""
        control, served = self._control, self._asked
        assert control is not None
        served.handle = handle
        self._served[bytes(handle.goal_id.uuid)] = served
        # rclpy's own way to this state is a coroutine that lasts as long as the goal, and an
        # executor that asks it again and again whether it is done.
        handle._update_state(GoalEvent.EXECUTE)
        try:
            if served.refusal:
                raise GoalRefused(served.refusal)
            goal = self._check(control, handle.request)
            with control.lock:
                control.begin_goal(goal)
                self._current = served
        except GoalRefused as error:
            served.refusal = str(error)
            self._end(served, Ending(GoalOutcome.FAILED, str(error), 0.0, 0))
            return
        limit = f", at most {goal.time_limit_s:g} s" if goal.time_limit_s else ""
        self._log.info(f"goal: '{goal.text}'{limit}")
        self._feed()

    def _check(self, control: Control, request: ExecuteInstruction.Goal) -> Goal:
        """Goal that may begin now. Raises :class:`GoalRefused`."""
        goal = check_goal(request.instruction, request.time_limit_s)
        if reason := control.goal_refusal():
            raise GoalRefused(reason)
        return goal

    def _on_cancel(self, handle: ServerGoalHandle) -> CancelResponse:
        """Stop the robot, before the caller has the response."""
        control = self._control
        if control is None:
            return CancelResponse.REJECT
        with control.lock:
            if self._current is None or self._current.handle is not handle:
                return CancelResponse.REJECT  # it has ended
            control.end_goal(GoalOutcome.CANCELED, "cancelled by its caller")
        return CancelResponse.ACCEPT

    def _listen(self, control: Control, served: _Served, topic: str) -> None:
        """Subscribe to this goal's success topic, for a reliable writer and a best-effort one,
        which does not match a reliable reader. Neither gets what was published before. Raises
        :class:`GoalRefused`."""

        def on_success(message: Bool) -> None:
            with control.lock:
                if message.data and self._current is served:
                    control.end_goal(GoalOutcome.SUCCESS, f"{topic} says so")

        try:
            for profile in (qos.EVENT, qos.EVENT_SUB):
                served.listening.append(listen(self._node, Bool, topic, on_success, profile))
        except (NameValidationException, ValueError) as error:
            raise GoalRefused(f"success_topic {quoted(topic)}: {_first_line(error)}") from None
        except RCLError:  # the middleware's: a topic of this node's own, of another type
            reason = "cannot be listened to: is it std_msgs/Bool?"
            raise GoalRefused(f"success_topic {quoted(topic)} {reason}") from None

    # Results and feedback

    def _ended(self, ending: Ending) -> None:
        """Take note that the goal is over. Called by the loop, with its lock held."""
        served, self._current = self._current, None
        if served is not None:
            self._end(served, ending)

    def _end(self, served: _Served, ending: Ending) -> None:
        served.ending = ending
        if self._node.executor is not None:  # else at the process's end, where close() does it
            self._server.notify_execute(served.handle, None)  # calls _hand_over in the executor

    def _hand_over(self, handle: ServerGoalHandle) -> ExecuteInstruction.Result:
        served = self._served.pop(bytes(handle.goal_id.uuid))
        for subscription in served.listening:
            self._node.destroy_subscription(subscription)
        ending = served.ending
        assert ending is not None
        if ending.outcome is GoalOutcome.SUCCESS:
            handle.succeed()
        elif ending.outcome is GoalOutcome.CANCELED and handle.is_cancel_requested:
            handle.canceled()
        else:
            handle.abort()
        if served.refusal:
            self._log.warning(f"goal {served.text} refused: {served.refusal}")
        else:
            self._log.info(f"goal ended: {ending.outcome.name}: {ending.message}")
        return ExecuteInstruction.Result(
            outcome=int(ending.outcome),
            message=ending.message,
            duration_s=ending.duration_s,
            actions=ending.actions,
        )

    def _feed(self) -> None:
        """Publish feedback."""
        if (control := self._control) is None:
            return
        with control.lock:
            if (served := self._current) is None:
                return
            safety, progress = control.loop.safety, control.loop.goals.progress
        feedback = ExecuteInstruction.Feedback(
            state=int(safety.state),
            reason=safety.said,
            elapsed_s=progress.elapsed_s,
            actions=progress.actions,
            observation_age=Percentiles(**asdict(progress.ages)),
        )
        assert served.handle is not None
        served.handle.publish_feedback(feedback)


def _first_line(error: Exception) -> str:
    """First line of a message, without rcl's caret and source position."""
    return str(error).splitlines()[0].split(", at /")[0]
