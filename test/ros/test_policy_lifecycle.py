"""Parameters are read at configure: another checkpoint needs no other process, and what cannot be
is a refusal with its reason, which the next configure may mend."""

from __future__ import annotations

import signal
import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.event_handler import SubscriptionEventCallbacks

from support.engine import tiny_config
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.engine.families.openvla import write_random
from vla_ros.msg import PolicyStatus
from vla_ros.policies.trust import VARIABLE
from vla_ros.ros.common import qos

#: what only configure can judge: parameters, the reason, what mends it
BAD_TOGETHER = [
    (
        {"policy": "magic"},
        "policy is 'magic': there are zero, scripted, replay, vla, lerobot",
        {"policy": "zero"},
    ),
    ({"policy": "lerobot"}, "policy 'lerobot' needs a checkpoint", {"policy": "zero"}),
    (
        {"policy_options": ["speed"]},
        "policy_options has 'speed': each entry is name=value",
        {"policy_options": [""]},
    ),
    ({"policy": "vla"}, "policy 'vla' needs a checkpoint", {"policy": "zero"}),
    (
        {"policy": "magic"},
        "policy is 'magic': there are zero, scripted, replay, vla, lerobot",
        {"policy": "zero"},
    ),
    (
        {"policy_options": ["speed"]},
        "policy_options has 'speed': each entry is name=value",
        {"policy_options": [""]},
    ),
    (
        {"stale_action": "hold"},
        "stale_action 'hold' needs action_space",
        {"stale_action": "zero"},
    ),
    (
        {"action_space": "end_effector_pose", "stale_action": "hold", "outputs": ["twist"]},
        "the twist output needs action_space end_effector_delta",
        {"action_space": "end_effector_delta", "stale_action": "zero", "outputs": [""]},
    ),
    (
        {"outputs": ["twist", "gripper"]},
        "outputs 'gripper' needs the ROS package control_msgs",
        {"outputs": ["twist"]},
    ),
    (
        {"outputs": ["twist"], "velocity_limits": [0.0]},
        "outputs twist need limits of the robot's own",
        {"velocity_limits": [2.0] * 6},
    ),
    (
        {"bounds_low": [-1.0, -1.0]},
        "bounds_low and bounds_high need 6 values each",
        {"bounds_low": [-0.05] * 6},
    ),
    (
        {"bounds_low": [1.0] * 6},
        "every value of bounds_low must be below that of bounds_high",
        {"bounds_low": [-0.05] * 6},
    ),
    (
        {"max_age_s": 0.04},
        "max_age_s is 0.04, must be above the control period, 0.05 s",
        {"max_age_s": 0.5},
    ),
    ({"mode": "lockstep"}, "mode 'lockstep' needs use_sim_time:=true", {"mode": "realtime"}),
    (
        {"instruction": "pick\x07up"},
        "instruction has the control character U+0007",
        {"instruction": ""},
    ),
    (
        {"action_scale": [1.0] * 5},
        "action_scale must be 6 finite numbers",
        {"action_scale": [0.0] * 6},
    ),
    ({"tick_cpus": [4000]}, "tick_cpus [4000]: this process may use", {"tick_cpus": [-1]}),
]


def set_all(rig, values):
    for name, value in values.items():
        assert rig.ros.set_parameter("/policy", name, value) == (True, "")


def test_what_configure_refuses_is_said_with_its_reason_and_can_be_mended(start_policy):
    given, says, better = BAD_TOGETHER[0]
    rig = start_policy(**given)  # at the start: not a dead process
    for number, (given, says, better) in enumerate(BAD_TOGETHER):
        if number:
            set_all(rig, given)
        assert not rig.ros.change_state("/policy", "configure"), given
        refused = rig.expect(lambda s, says=says: says in s.reason)
        assert (refused.state, refused.worker_pid) == (State.UNCONFIGURED, 0)
        rig.node.wait_for_log(f"configure refused: {says}")
        set_all(rig, better)
    # One value by itself is judged where it is set.
    accepted, why = rig.ros.set_parameter("/policy", "decoding", "magic")
    assert not accepted and "must be one of" in why
    rig.bring_up()
    assert rig.expect(State.WAITING).policy == "zero"
    rig.node.signal(signal.SIGINT)
    assert rig.node.wait() == 0


@pytest.mark.timing
def test_a_supervisor_learns_that_the_node_died(start_policy, spawn_node):
    """From the middleware, within the lease, without a word of the node: nothing else is left to
    say it. The monitor is such a supervisor."""
    rig = start_policy(policy="zero")
    spawn_node("monitor", {"status_timeout_s": 60.0})
    diagnostics = rig.ros.inbox(DiagnosticArray, "/diagnostics")
    alive, told = (
        [],
        SubscriptionEventCallbacks(
            liveliness=lambda info: alive.append((info.alive_count, time.monotonic()))
        ),
    )
    rig.ros.node.create_subscription(
        PolicyStatus, "policy/status", lambda _: None, qos.STATUS, event_callbacks=told
    )
    rig.bring_up("wait")

    def policy(level, text):
        def says(array):
            found = {s.name: s for s in array.status}.get("monitor: policy")
            return found and found.level == level and text in found.message

        return diagnostics.wait_new(says, timeout=20.0)

    policy(DiagnosticStatus.WARN, "WAITING")
    wait_until(lambda: alive and alive[-1][0] == 1, 5.0, "the node to be alive")
    killed = time.monotonic()
    rig.node.kill()
    wait_until(lambda: alive[-1][0] == 0, 10.0, "the loss of liveliness")
    judge("the loss told", alive[-1][1] - killed, quiet=qos.LEASE_S + 1.0, loaded=qos.LEASE_S + 4.0)
    policy(DiagnosticStatus.ERROR, "the node is gone, or its process stands still; was WAITING")
    again = spawn_node("policy", {"policy": "zero"})
    policy(DiagnosticStatus.WARN, "UNCONFIGURED: not configured")
    again.signal(signal.SIGINT)  # and one that leaves in good order
    policy(DiagnosticStatus.WARN, "the node is gone")


def test_two_robots_are_two_on_diagnostics(spawn_node, ros):
    """Tools merge what has the same name; and the policy says itself how it is."""
    diagnostics = ros.inbox(DiagnosticArray, "/diagnostics")
    for arm in ("left", "right"):
        spawn_node("policy", {"policy": "zero"}, namespace=arm)
        spawn_node("monitor", {"hardware_id": "r7" if arm == "left" else ""}, namespace=arm)

    def names():
        return {s.name: s.hardware_id for m in list(diagnostics.messages) for s in m.status}

    own = {f"{arm}/policy: state" for arm in ("left", "right")}
    wait_until(lambda: own <= names().keys() and len(names()) == 2 * 8, 20.0, lambda: str(names()))
    assert names()["left/monitor: camera"] == "r7"
    assert names()["right/monitor: camera"] == "/right"
    assert ros.change_state("/left/policy", "configure")
    state = diagnostics.wait_new(
        lambda m: m.status[0].name == "left/policy: state" and "INACTIVE" in m.status[0].message
    ).status[0]
    assert state.level == DiagnosticStatus.OK
    assert {v.key: v.value for v in state.values}["policy"] == "zero"


@pytest.mark.long
def test_cleanup_set_configure_answers_with_another_checkpoint(start_policy, ros_env, tmp_path):
    ros_env[VARIABLE] = str(tmp_path)  # below it anybody may name a checkpoint
    for seed in (1, 2):
        write_random(tmp_path / str(seed), tiny_config(), seed=seed)
    (tmp_path / "3").mkdir()

    def file(number):
        return str(tmp_path / str(number))

    rig = start_policy(
        policy="vla", checkpoint=file(1), decoding="autoregressive", max_age_s=2.0, num_threads=1
    )
    rig.bring_up("reach")
    with rig.filming():
        rig.wait_for(CommandKind.POLICY)
        assert rig.expect(State.RUNNING).checkpoint == file(1)
        for again in ("deactivate", "cleanup"):
            accepted, why = rig.ros.set_parameter("/policy", "checkpoint", file(2))
            assert not accepted
            assert why == "checkpoint is read at configure: deactivate and clean up first"
            # A whole file may be given again: what stays as it is disturbs nothing.
            assert rig.ros.set_parameter("/policy", "checkpoint", file(1)) == (True, "")
            assert rig.ros.change_state("/policy", again)
        set_all(rig, {"checkpoint": file(3), "frame_id": "torso"})
        assert not rig.ros.change_state("/policy", "configure")
        refused = rig.expect(lambda s: s.reason.startswith("refused: "))
        assert file(3) in refused.reason and refused.state == State.UNCONFIGURED
        set_all(rig, {"checkpoint": file(2)})
        before = len(rig.commands)
        rig.bring_up("push")
        fresh = rig.commands.messages[rig.wait_for(CommandKind.POLICY, before)]
        assert fresh.header.frame_id == "torso"
        assert fresh.sequence >= before, "numbers go on where they were"
        running = rig.expect(State.RUNNING)
    assert running.checkpoint == file(2)
    wait_until(lambda: len(rig.chunks), 5.0, "an answer")
    assert {c.decoding for c in rig.chunks.messages} == {"autoregressive"}
    assert len({tuple(c.tokens) for c in rig.chunks.messages}) > 1
