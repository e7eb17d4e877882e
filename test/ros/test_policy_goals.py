"""The action server of the policy node, called as a stranger calls it."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from action_msgs.msg import GoalStatus
from std_msgs.msg import Bool

from support.nodes import Program
from support.timing import bound, judge
from support.wait import repeating, wait_until
from vla_ros.action import ExecuteInstruction
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.msg import EpisodeStatus
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of

CLIENT = Path(__file__).parents[2] / "docs" / "how-to" / "execute_instruction.py"
Result = ExecuteInstruction.Result
SUCCEEDED, CANCELED = GoalStatus.STATUS_SUCCEEDED, GoalStatus.STATUS_CANCELED
ABORTED = GoalStatus.STATUS_ABORTED


class Sent:
    """A goal that was sent: what came back."""

    def __init__(self, ros, client, text, limit, topic):
        self.ros, self.feedback = ros, []
        goal = ExecuteInstruction.Goal(instruction=text, time_limit_s=limit, success_topic=topic)
        answer = ros.in_executor(
            client.send_goal_async, goal, lambda m: self.feedback.append(m.feedback)
        )
        wait_until(answer.done, 5.0, "an answer to the goal")
        self.handle = answer.result()
        self.accepted = self.handle.accepted
        if self.accepted:
            self._result = ros.in_executor(self.handle.get_result_async)

    def runs(self, actions=1):
        """Wait until it has moved the robot so often; returns that feedback."""
        wait_until(
            lambda: self.feedback and self.feedback[-1].actions >= actions,
            10.0,
            "actions of a goal",
        )
        return self.feedback[-1]

    def ended(self, outcome, status, says):
        wait_until(self._result.done, 10.0, f"the goal's end: {says}")
        answer = self._result.result()
        assert (answer.result.outcome, answer.status) == (outcome, status), answer.result
        assert says in answer.result.message
        return answer.result

    def cancel(self):
        answer = self.ros.in_executor(self.handle.cancel_goal_async)
        wait_until(answer.done, 5.0, "an answer to the cancel")
        return len(answer.result().goals_canceling) == 1


class Caller:
    """An action client beside the rig."""

    def __init__(self, rig):
        self.rig = rig
        name = "policy/execute_instruction"
        self.client = rig.ros.action_client(ExecuteInstruction, name)
        wait_until(self.client.server_is_ready, 15.0, "the action server")

    def send(self, text, limit=0.0, topic=""):
        return Sent(self.rig.ros, self.client, text, limit, topic)

    def nothing_moves(self, since_ns):
        """After ``since_ns``, by the wall clock that stamps commands."""

        def later():
            commands = self.rig.commands.messages
            return [m for m in commands if stamp_of(m.header.stamp) > since_ns]

        wait_until(lambda: len(later()) >= 10, 5.0, "ten commands after the end")
        assert {CommandKind(m.kind) for m in later()} == {CommandKind.STOP}


@pytest.fixture
def caller(start_policy):
    rig = start_policy(silence_after_s=60.0)
    caller = Caller(rig)
    early = None
    for _ in range(5):  # a server that does not know its client yet answers in vain
        with contextlib.suppress(AssertionError):
            early = caller.send("too early")
            break
    assert early is not None and not early.accepted
    rig.node.wait_for_log("goal 'too early' rejected: not active")
    rig.bring_up()
    rig.camera()
    yield caller
    rig.check_commands()
    caller.client.destroy()


@pytest.mark.timing
def test_a_goal_ends_by_success_limit_cancel_or_stop_and_then_nothing_moves(caller):
    rig = caller.rig
    done = rig.ros.publisher(Bool, "/task_done", qos.LATCHED)
    done.publish(Bool(data=True))  # before the goal: it does not count
    goal = caller.send("reach", topic="/task_done")
    now = goal.runs()
    assert (now.state, now.reason) == (State.RUNNING, rig.expect(State.RUNNING).reason)
    assert now.observation_age.count == now.actions
    assert 0.0 < now.observation_age.p50 <= now.observation_age.max < 0.5
    assert rig.status.last.instruction == "reach"
    rig.ros.wait_for_subscriber(done)
    done.publish(Bool(data=False))
    begin = len(goal.feedback)
    wait_until(lambda: len(goal.feedback) > begin + 5, 5.0, "feedback five times a second")
    took = goal.feedback[begin + 5].elapsed_s - goal.feedback[begin].elapsed_s
    judge("five feedbacks", took, quiet=2.0, loaded=4.0)
    done.publish(Bool(data=True))
    result = goal.ended(Result.OUTCOME_SUCCESS, SUCCEEDED, "/task_done says so")
    caller.nothing_moves(time.time_ns())
    moved = [m for m in rig.commands.messages if m.kind == CommandKind.POLICY]
    assert result.actions == len(moved) and result.duration_s > now.elapsed_s

    # The same text, once more and at once: a goal is an explicit will. A best-effort word counts.
    best_effort = rig.ros.publisher(Bool, "done", qos.EVENT_SUB)
    goal = caller.send("reach", topic="done")
    goal.runs()
    rig.ros.wait_for_subscriber(best_effort)
    # Again and again: a reader that does not know its writer yet loses what is best effort.
    with repeating(lambda: best_effort.publish(Bool(data=True)), 0.1):
        goal.ended(Result.OUTCOME_SUCCESS, SUCCEEDED, "done says so")

    limit = bound(quiet=0.6, loaded=2.0)  # time enough to move
    goal = caller.send("reach", limit=limit)
    goal.runs()
    result = goal.ended(Result.OUTCOME_TIME_LIMIT, ABORTED, f"limit of {limit:g} s has passed")
    assert result.duration_s >= limit  # until a tick finds that the limit has passed
    judge("a limited goal, beyond it", result.duration_s - limit, quiet=0.15, loaded=1.0)
    caller.nothing_moves(time.time_ns())
    assert not goal.cancel(), "it has ended"

    goal = caller.send("reach")
    goal.runs()
    assert goal.cancel()
    caller.nothing_moves(time.time_ns())
    goal.ended(Result.OUTCOME_CANCELED, CANCELED, "cancelled by its caller")
    rig.instruct("reach")  # by a node that repeats it
    rig.node.wait_for_log("stopped: resume, or give another instruction")

    goal = caller.send("push")
    goal.runs()
    rig.call("stop")
    goal.ended(Result.OUTCOME_CANCELED, ABORTED, "~/stop was called")
    assert rig.call("resume") == "resumed: 'push'"
    rig.wait_for(CommandKind.POLICY, len(rig.commands))

    # A simulation that says how its episode goes.
    episode = rig.ros.publisher(EpisodeStatus, "bridge/episode", qos.EVERY_CHANGE)
    rig.ros.wait_for_subscriber(episode)
    for number, state, outcome, status in (
        (1, EpisodeStatus.STATE_SUCCESS, Result.OUTCOME_SUCCESS, SUCCEEDED),
        (2, EpisodeStatus.STATE_FAILURE, Result.OUTCOME_FAILED, ABORTED),
    ):
        episode.publish(EpisodeStatus(episode=number, state=EpisodeStatus.STATE_RUNNING))
        goal = caller.send("reach")
        goal.runs()
        episode.publish(EpisodeStatus(episode=number, state=state, reason="as it is"))
        goal.ended(outcome, status, "the episode is over: as it is")


def test_another_goal_preempts_and_the_topic_does_where_it_may(caller):
    rig = caller.rig
    first = caller.send("reach")
    first.runs()
    old = rig.status.last.epoch
    second = caller.send("push")
    accepted_ns = stamp_of(second.handle.stamp)
    first.ended(Result.OUTCOME_PREEMPTED, ABORTED, "another goal took over")
    second.runs(10)
    later = [m for m in rig.commands.messages if stamp_of(m.header.stamp) > accepted_ns]
    assert len(later) > 5 and min(m.epoch for m in later) > old

    # What cannot begin says why, and ends nothing.
    for text, limit, topic, says in (
        ("", 0.0, "", "the instruction is empty"),
        ("pick\nup", 0.0, "", "U+000A"),
        ("pick", -1.0, "", "time_limit_s is -1"),
        ("pick", float("nan"), "", "time_limit_s is nan"),
        ("pick", 0.0, "no topic!", "success_topic 'no topic!': Invalid topic name"),
        ("pick", 0.0, "/policy/status", "success_topic '/policy/status' cannot be listened to"),
    ):
        refused = caller.send(text, limit, topic)
        assert refused.accepted
        refused.ended(Result.OUTCOME_FAILED, ABORTED, says)
    rig.instruct("stack")
    rig.node.wait_for_log("instruction ignored: a goal runs")
    second.runs(second.feedback[-1].actions + 5)
    assert rig.status.last.instruction == "push"

    assert rig.ros.set_parameter("/policy", "allow_topic_preempt", True) == (True, "")
    rig.instruct("sort")
    second.ended(Result.OUTCOME_PREEMPTED, ABORTED, "the topic said 'sort'")
    rig.expect(lambda s: s.instruction == "sort" and s.state == State.RUNNING)
    third = caller.send("push")
    third.runs()
    rig.instruct("")
    third.ended(Result.OUTCOME_CANCELED, ABORTED, "an empty instruction was said")
    caller.nothing_moves(time.time_ns())


def test_a_fault_deactivation_and_the_node_s_end_fail_it_and_a_lost_worker_does_not(caller):
    rig = caller.rig
    goal = caller.send("reach")
    goal.runs()
    # One that hangs is held for longer than feedback takes to come by.
    for number, lost_by in enumerate((signal.SIGSTOP, signal.SIGKILL, signal.SIGKILL), 1):
        rig.worker(lost_by)
        rig.runs_again(number)
    wait_until(lambda: State.HOLD in {f.state for f in goal.feedback}, 5.0, "HOLD in the feedback")
    rig.worker(signal.SIGKILL)
    goal.ended(Result.OUTCOME_FAILED, ABORTED, "FAULT: ")
    caller.send("reach").ended(Result.OUTCOME_FAILED, ABORTED, "in FAULT, call ~/recover")
    rig.call("recover")

    goal = caller.send("reach")
    goal.runs()
    assert rig.ros.change_state("/policy", "deactivate")
    goal.ended(Result.OUTCOME_FAILED, ABORTED, "deactivated")
    assert not caller.send("reach").accepted
    assert rig.ros.change_state("/policy", "activate")

    goal = caller.send("reach")
    goal.runs()
    rig.node.signal(signal.SIGINT)
    goal.ended(Result.OUTCOME_FAILED, ABORTED, "shutting down")
    assert rig.node.wait() == 0
    assert "Traceback" not in rig.node.log


def test_the_client_of_the_docs_and_the_shutdown_transition(caller, ros_env):
    shown = CLIENT.with_name("real-robot.md").read_text()
    assert CLIENT.read_text().partition("rclpy.init()")[2] in shown
    rig = caller.rig
    done = rig.ros.publisher(Bool, "/task_done")
    client = Program("client", [sys.executable, str(CLIENT), "pick up the red cube"], ros_env)
    try:
        rig.wait_for(CommandKind.POLICY)
        rig.ros.wait_for_subscriber(done)
        done.publish(Bool(data=True))
        assert client.wait() == 0, client.log
    finally:
        client.kill()
    assert "outcome 1: /task_done says so, after" in client.log
    assert " actions, " in client.log

    goal = caller.send("reach")
    goal.runs()
    assert rig.ros.change_state("/policy", "active_shutdown")
    goal.ended(Result.OUTCOME_FAILED, ABORTED, "shutting down")
    assert not caller.send("reach").accepted
    rig.node.signal(signal.SIGTERM)
    assert rig.node.wait() == 0
    assert "Traceback" not in rig.node.log
