"""What a policy may say and what leaves the node: never a NaN, never beyond the limits, never
after the end, and always with the account of where its time went."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from geometry_msgs.msg import TwistStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from std_msgs.msg import Float64

from support.policy_client import GRIPPER, moves
from support.processes import alive, children
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.types import STAGES, CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of

T = 0.05
SLOW = 5.0  # Hz: every action finds a control tick of its own, also where ticks come late
PATIENT = 2.0  # max_age_s: a machine that stands still for a second ends nothing


def rows_of(*xs):
    """Rows that move by these x; others of the row are 0, the gripper 1."""
    rows = np.zeros((len(xs), 7))
    rows[:, 0] = xs
    rows[:, 6] = 1.0
    return rows


def test_what_is_not_finite_is_never_published_and_three_in_a_row_are_a_fault(
    start_policy, tmp_path
):
    nan, inf = np.nan, np.inf
    xs = [0.01, nan, 0.02, inf, -inf, 0.03, *[0.04] * 10, nan, nan, nan, 0.05]
    replay = moves(tmp_path, rows_of(*xs))
    rig = start_policy(policy="replay", replay_file=replay, replay_loop=False, max_age_s=PATIENT)
    rig.bring_up("reach")
    with rig.filming(SLOW):
        running = rig.expect(State.RUNNING)
        fault = rig.expect(State.FAULT)
        assert "3 invalid actions" in fault.reason
        assert "not finite" in fault.reason
        pid = running.worker_pid
        wait_until(lambda: not alive(pid), 10.0, "the end of the worker")
        assert fault.worker_pid == 0  # what is broken does not go on computing
        assert {m.kind for m in rig.after(fault)} == {CommandKind.STOP}
        # Latched: neither frames nor another task nor a reset leave it.
        rig.instruct("push")
        rig.expect(lambda s: s.instruction == "push")
        rig.call("reset")
        assert rig.status.last.state == State.FAULT
        rig.call("recover")
        again = rig.expect(State.RUNNING)
        assert again.worker_pid not in (0, pid)
        rig.expect(State.FAULT)  # the file is what it was
    published = {m.action[0] for m in rig.commands.messages if m.kind == CommandKind.POLICY}
    assert {0.01, 0.02, 0.03, 0.04} <= published <= set(xs)
    rig.check_commands(PATIENT)


def test_actions_beyond_their_bounds_are_clamped_and_five_in_a_row_hold(start_policy, tmp_path):
    xs = [0.01, 0.02, 7.0, 0.03, -1e300, *[0.04] * 5, *[1.0] * 60]
    replay = moves(tmp_path, rows_of(*xs))
    rig = start_policy(policy="replay", replay_file=replay, replay_loop=False, max_age_s=PATIENT)
    rig.bring_up("reach")
    with rig.filming(SLOW):
        rig.expect(State.RUNNING)
        held = rig.expect(State.HOLD)
        assert held.reason == (
            "5 actions in a row exceeded their limits: x 1 m, held to 0.05; its bounds are -0.05 to"
            " 0.05: is it in m? (bounds)"
        )
        wait_until(lambda: len(rig.commands) and rig.commands.last.kind == CommandKind.STOP, 5.0)
    sent = [m.action[0] for m in rig.commands.messages if m.kind == CommandKind.POLICY]
    assert sent == [0.01, 0.02, 0.05, 0.03, -0.05, *[0.04] * 5, *[0.05] * 4]
    assert rig.status.last.actions_clamped >= 7
    rig.node.wait_for_log("action clamped to its bounds")
    rig.check_commands(PATIENT)


@pytest.mark.parametrize("chunk_age", [0.0, 0.08])
def test_stage_durations_sum_to_the_total_and_the_total_is_the_age_of_the_observation(
    start_policy, chunk_age
):
    """Also for frames that were captured a while before they came."""
    rig = start_policy()
    rig.bring_up("reach")

    def acted():
        return [m for m in rig.commands.messages if m.kind == CommandKind.POLICY]

    end = time.monotonic() + 60.0
    while len(acted()) <= 15 and time.monotonic() < end:
        frame = rig.frame()
        time.sleep(max(chunk_age, T / 2))
        rig.show(frame)
    actions = acted()
    assert len(actions) > 15
    for m in actions:
        spent = [getattr(m.stages, f"{stage}_s") for stage in STAGES]
        age_s = (stamp_of(m.header.stamp) - stamp_of(m.observation_stamp)) / 1e9
        assert min(spent) >= 0.0, m.stages
        assert abs(sum(spent) - m.stages.total_s) < 1e-4, m.stages
        assert abs(m.stages.total_s - age_s) < 1e-4, (m.stages, age_s)
        assert m.stages.transport_s >= chunk_age
        transport = (stamp_of(m.receive_stamp) - stamp_of(m.observation_stamp)) / 1e6
        assert abs(m.stages.transport_s * 1e3 - transport) < 0.1
        assert stamp_of(m.valid_until) - stamp_of(m.observation_stamp) == 500_000_000
        assert stamp_of(m.latest_observation_stamp) >= stamp_of(m.observation_stamp)
    assert len({stamp_of(m.observation_stamp) for m in actions}) == len(actions)
    rig.check_commands()


def test_twist_and_gripper_say_what_the_action_says(start_policy):
    rig = start_policy(outputs=["twist"], velocity_limits=[10.0] * 6, silence_after_s=60.0)
    twists = rig.ros.inbox(TwistStamped, "policy/twist", qos.ACTION)
    grippers = rig.ros.inbox(Float64, "policy/gripper", qos.ACTION)
    rig.bring_up("reach")
    with rig.filming():
        rig.expect(State.RUNNING)
        rig.wait_for(CommandKind.POLICY, len(rig.commands) + 20)
    rig.wait_for(CommandKind.STOP)

    def pairs():
        by_stamp = {stamp_of(m.header.stamp): m for m in list(rig.commands.messages)}
        found = [(m, by_stamp.get(stamp_of(m.header.stamp))) for m in list(twists.messages)]
        return [(m.twist, command) for m, command in found if command is not None]

    def motion_and_rest():
        return {twist.linear.x > 0 for twist, _ in pairs()} == {True, False}

    wait_until(lambda: len(pairs()) > 20 and motion_and_rest(), 5.0, "the twists of the commands")
    for twist, command in pairs():
        linear = [twist.linear.x, twist.linear.y, twist.linear.z]
        angular = [twist.angular.x, twist.angular.y, twist.angular.z]
        assert linear + angular == pytest.approx((np.asarray(command.action[:6]) / T).tolist())
    wait_until(lambda: len(grippers), 5.0, "a gripper command")
    assert {m.data for m in grippers.messages} == {GRIPPER}


# The end


def moving(start_policy):
    rig = start_policy()
    rig.bring_up("reach")
    return rig


@pytest.mark.timing
@pytest.mark.parametrize(
    ("number", "worker"),
    [
        (signal.SIGTERM, None),
        (signal.SIGINT, None),
        (signal.SIGHUP, None),
        (signal.SIGTERM, signal.SIGSTOP),
        (signal.SIGTERM, signal.SIGKILL),
    ],
)
def test_the_last_word_is_a_stop_and_the_process_ends_within_a_second(start_policy, number, worker):
    rig = moving(start_policy)
    with rig.filming():
        rig.expect(State.RUNNING)
        rig.wait_for(CommandKind.POLICY)
        pid = rig.status.last.worker_pid
        if worker is not None:
            rig.worker(worker)
        began = time.monotonic()
        rig.node.signal(number)
        assert rig.node.wait(10.0) == 0
        judge("the end of the process", time.monotonic() - began, quiet=1.0, loaded=5.0)
        # What was on its way when the process ended may still come, in order.
        wait_until(lambda: rig.commands.last.kind == CommandKind.STOP, 5.0, "the last word")
        time.sleep(3 * T)
    assert rig.commands.last.kind == CommandKind.STOP
    assert not any(rig.commands.last.action[:6])
    assert rig.commands.last.action[6] == GRIPPER
    wait_until(lambda: not alive(pid), 5.0, "the end of the worker")
    rig.check_commands()


@pytest.mark.timing
def test_a_node_that_is_loading_a_policy_ends_within_a_second_too(start_policy):
    # A thousand timed inferences: longer than any test waits.
    rig = start_policy(policy="vla", checkpoint="random:small", warmup_count=1000, num_threads=1)
    change = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))
    client = rig.ros.node.create_client(ChangeState, "/policy/change_state")
    wait_until(client.service_is_ready, 10.0, "the node")
    client.call_async(change)
    rig.node.wait_for_log("loading policy")
    (worker,) = wait_until(lambda: children(rig.node.pid), 10.0, "the worker")
    began = time.monotonic()
    rig.node.signal(signal.SIGTERM)
    assert rig.node.wait(10.0) == 0
    judge("the end of the process", time.monotonic() - began, quiet=1.0, loaded=5.0)
    assert "told to end while the policy was loading" in rig.node.log
    wait_until(lambda: not alive(worker), 5.0, "the end of the worker")


@pytest.mark.timing
def test_a_node_that_is_killed_is_missed_by_its_reader_within_two_periods(start_policy):
    """SIGKILL leaves no last word: the deadline that the writer offers is what a reader has."""
    from rclpy.duration import Duration
    from rclpy.event_handler import SubscriptionEventCallbacks
    from rclpy.qos import QoSProfile

    from vla_ros.msg import ActionCommand

    rig = moving(start_policy)
    missed = []
    profile = QoSProfile(
        history=qos.ACTION.history,
        depth=10,
        reliability=qos.ACTION.reliability,
        deadline=Duration(nanoseconds=round(2 * T * 1e9)),
    )
    rig.ros.node.create_subscription(
        ActionCommand,
        "policy/action",
        lambda message: None,
        profile,
        event_callbacks=SubscriptionEventCallbacks(
            deadline=lambda event: missed.append(time.monotonic())
        ),
    )
    with rig.filming():
        rig.expect(State.RUNNING)
        rig.wait_for(CommandKind.POLICY, len(rig.commands) + 10)
        pid = rig.status.last.worker_pid
        rig.node.signal(signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: missed and missed[-1] > killed, 5.0, "a missed deadline")
        seconds = next(t for t in missed if t > killed) - killed
        judge("the reader's missed deadline", seconds, quiet=2 * T + 0.05, loaded=2 * T + 1.0)
        wait_until(lambda: not alive(pid), 10.0, "the end of the orphaned worker")
