"""Configure takes minutes with a large model: the node answers meanwhile."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from std_srvs.srv import Trigger

from support.policy_client import moves
from support.processes import children
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State


@pytest.mark.long
@pytest.mark.timing
def test_while_the_policy_loads_state_status_and_stop_answer_and_the_stop_lasts(
    start_policy, tmp_path
):
    rig = start_policy(
        policy="vla",
        checkpoint="random:small",
        decoding="autoregressive",
        warmup_count=100,  # some seconds
        num_threads=1,
        max_age_s=5.0,
        instruction="reach",
    )
    client = rig.ros.node.create_client(ChangeState, "/policy/change_state")
    wait_until(client.service_is_ready, 10.0, "the node")
    configure = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))
    future = client.call_async(configure)
    rig.node.wait_for_log("loading policy")
    began = time.monotonic()
    state = rig.ros.call(GetState, "/policy/get_state").current_state
    assert state.label == "configuring"
    assert rig.ros.call(Trigger, "/policy/stop").success
    rig.expect(lambda s: s.reason == "loads its policy")
    assert not rig.ros.change_state("/policy", "configure", 10.0), "one at a time"
    accepted, why = rig.ros.set_parameter("/policy", "max_age_s", 4.0)
    assert not accepted and "loading" in why
    judge("five answers meanwhile", time.monotonic() - began, quiet=2.0, loaded=10.0)
    assert not future.done()
    wait_until(future.done, 120.0, "the end of configure")
    assert future.result().success
    assert rig.ros.change_state("/policy", "activate")
    with rig.filming():
        rig.expect(lambda s: s.state == State.WAITING and "stopped" in s.reason)
        time.sleep(0.5)
        assert rig.kinds() == []
        assert rig.call("resume") == "resumed: 'reach'"
        rig.wait_for(CommandKind.POLICY)


def test_a_policy_of_another_kind_moves_no_robot_unless_that_is_said(start_policy):
    """Seven displacements of an end effector, where the parameters say seven joints' positions."""
    names = [f"joint_a{i}" for i in range(1, 7)]
    rig = start_policy(
        policy="vla",
        checkpoint="random:small",
        num_threads=1,
        warmup_count=1,
        max_age_s=5.0,
        action_space="joint_position",
        action_names=[*names, "finger"],
        gripper_names=["finger"],
        bounds_low=[-3.0] * 6,
        bounds_high=[3.0] * 6,
        stale_action="hold",
    )
    assert not rig.ros.change_state("/policy", "configure", 60.0)
    refused = rig.expect(lambda s: "the policy's actions are" in s.reason)
    assert refused.state == State.UNCONFIGURED and refused.worker_pid == 0
    for said in ("end_effector_delta", "joint_position", "joint_a1", "rx", "action_space_override"):
        assert said in refused.reason, "both, side by side, and what allows it"
    assert rig.ros.set_parameter("/policy", "action_space_override", True) == (True, "")
    assert rig.ros.change_state("/policy", "configure", 60.0)
    rig.node.wait_for_log("(parameter action_space_override)")


def test_simulated_time_is_chosen_at_the_start(start_policy, tmp_path):
    rig = start_policy(policy="replay", replay_file=moves(tmp_path))
    rig.bring_up()
    accepted, why = rig.ros.set_parameter("/policy", "use_sim_time", True)
    assert not accepted and "given at the start" in why


def test_what_goes_wrong_after_loading_leaves_no_worker(ros_env, monkeypatch):
    """A bug, or a middleware that has no room for another reader: configure is refused."""
    import os
    import threading

    import rclpy
    from rclpy.lifecycle import TransitionCallbackReturn

    from vla_ros.ros.nodes.policy import runtime
    from vla_ros.ros.nodes.policy.node import PolicyNode

    def fails(*_, **__):
        raise RuntimeError("no room for another reader")

    monkeypatch.setattr(runtime, "PolicyInputs", fails)
    rclpy.init(args=["--ros-args", "-p", "policy:=zero"])
    try:
        node = PolicyNode(threading.Event())
        before = set(os.listdir(f"/proc/{os.getpid()}/task"))
        assert node.on_configure(None) == TransitionCallbackReturn.FAILURE
        assert node.runtime is None and "no room" in node._idle.reason
        assert children(os.getpid()) == []
        # The system's thread ends a moment after Python's.
        tasks = f"/proc/{os.getpid()}/task"
        wait_until(lambda: not set(os.listdir(tasks)) - before, 5.0, "the end of all new threads")
        node.destroy_node()
    finally:
        rclpy.try_shutdown()


def test_a_worker_in_another_s_place_is_held_to_the_limits_again(ros_env):
    import threading
    from dataclasses import replace

    import rclpy

    from vla_ros.ros.nodes.policy.node import PolicyNode
    from vla_ros.runtime.worker.wire import WorkerReady

    rclpy.init(args=["--ros-args", "-p", "policy:=zero", "-p", "max_age_s:=1.5"])
    try:
        node = PolicyNode(threading.Event())
        node.on_configure(None)
        runtime = node.runtime
        runtime.activate()
        link, control = runtime._link, runtime.control
        executor = runtime._executor
        before = executor._hang_timeout_s
        link.on_event(WorkerReady(replace(link.ready, inference_p99_ms=900.0)))
        assert executor._hang_timeout_s == pytest.approx(2.75) != before
        assert control.loop.safety.state is State.WAITING
        link.on_event(WorkerReady(replace(link.ready, inference_p99_ms=2000.0)))
        safety = control.loop.safety
        assert safety.state is State.FAULT
        assert "too slow" in safety.reason and "cannot be met" in safety.reason
        node.stop()
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
