"""A bad parameter never gets in: at start, at configure and at run time."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from rcl_interfaces.srv import GetParameters, SetParametersAtomically
from rclpy.parameter import Parameter
from std_msgs.msg import String

from support.timing import bound
from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of

BAD_AT_START = [
    ({"control_rate_hz": 1000.0}, "control_rate_hz"),
    ({"control_rate_hz": "fast"}, "control_rate_hz"),
    ({"camera_roles": ["left", "Left arm"]}, "camera_roles has 'Left arm': small letters"),
    ({"camera_roles": ["wrist"]}, "each once, and none of main, wrist, none"),
    ({"decoding": "magic"}, "decoding is 'magic', must be one of auto"),
    ({"engine_options": ["gamma=many"]}, "gamma is 'many': give a whole number"),
    ({"engine_options": ["attention=sharp"]}, "attention is 'sharp': give one of auto, torch"),
]


def test_a_bad_value_is_refused_at_start_with_one_line_and_exit_status_2(spawn_node):
    # No file: with one, rcl itself drops a value of another type.
    nodes = [spawn_node("policy", parameters, files=[]) for parameters, _ in BAD_AT_START]
    for node, (_, says) in zip(nodes, BAD_AT_START, strict=True):
        assert node.wait(30.0) == 2, node.log
        (line,) = node.log.splitlines()
        assert line.startswith("bad parameter: ")
        assert says in line


def test_a_number_that_is_none_is_refused_at_start(spawn_node, tmp_path):
    file = tmp_path / "nan.yaml"
    file.write_text("/**: {ros__parameters: {max_age_s: .nan, bounds_low: [.nan]}}")
    node = spawn_node("policy", files=[file])
    assert node.wait(30.0) == 2
    assert node.log.startswith("bad parameter: ")
    assert "max_age_s" in node.log


def values_of(ros, *names):
    request = GetParameters.Request(names=list(names))
    found = ros.call(GetParameters, "/policy/get_parameters", request).values
    return [v.double_value or list(v.double_array_value) or v.string_value for v in found]


def set_together(ros, **values):
    request = SetParametersAtomically.Request(
        parameters=[Parameter(k, value=v).to_parameter_msg() for k, v in values.items()]
    )
    result = ros.call(SetParametersAtomically, "/policy/set_parameters_atomically", request).result
    return result.successful, result.reason


def test_run_time_changes_are_checked_as_a_whole(start_policy):
    rig = start_policy()
    names = ("max_age_s", "silence_after_s", "bounds_low", "stale_action", "control_rate_hz")
    rig.bring_up("reach")
    before = values_of(rig.ros, *names)

    for name, value, says in (
        ("max_age_s", 0.06, "max_age_s 0.06 cannot be met: camera period 50 ms"),
        ("max_age_s", 100.0, "max_age_s"),
        ("max_age_s", math.nan, "max_age_s"),
        ("max_age_s", "old", "Wrong parameter type"),
        ("silence_after_s", math.inf, "silence_after_s"),
        ("bounds_low", [-0.05] * 5, "need 6 values each"),
        ("bounds_low", [math.nan] * 6, "bounds_low is"),
        ("bounds_low", [-math.inf] * 6, "must be finite"),
        ("bounds_low", [0.5] * 6, "must be below"),
        ("stale_action", "panic", "must be one of zero, hold, silence"),
        ("stale_action", "hold", "repeating a delta is motion"),
        ("control_rate_hz", 10.0, "control_rate_hz cannot change while active"),
        ("policy", "zero", "policy is read at configure: deactivate and clean up first"),
        ("checkpoint", "/tmp/other", "checkpoint is read at configure"),
        ("mode", "lockstep", "mode is read at configure"),
    ):
        accepted, reason = rig.ros.set_parameter("/policy", name, value)
        assert not accepted, name
        assert says in reason, (name, reason)

    # Together or not at all: the first of these alone would be fine.
    accepted, reason = set_together(rig.ros, silence_after_s=3.0, max_age_s=0.06)
    assert (accepted, "cannot be met" in reason) == (False, True)
    assert values_of(rig.ros, *names) == before
    assert rig.status.last.max_age_s == 0.5

    assert set_together(rig.ros, bounds_low=[-2e-4] * 6, bounds_high=[3e-4] * 6) == (True, "")
    assert set_together(rig.ros, max_age_s=0.25, silence_after_s=0.2) == (True, "")
    rig.expect(lambda s: s.max_age_s == 0.25)
    assert rig.ros.set_parameter("/policy", "latency_window_s", 3.0) == (True, "")
    rig.latency.wait_new(lambda m: m.window_s == 3.0)
    with rig.filming():
        rig.expect(State.RUNNING)
        moved = rig.commands.messages[rig.wait_for(CommandKind.POLICY)]
    assert moved.action[:6].tolist() == [3e-4, 0, 0, 0, 0, -2e-4]  # the new bounds hold
    held = rig.expect(State.HOLD)
    assert "exceeds max_age 250 ms" in held.reason or "exceeded their limits" in held.reason


def test_somebody_in_the_graph_cannot_choose_a_program(start_policy, tmp_path):
    """Anybody may deactivate, clean up, set and configure: none of what is named there is run."""
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    rig = start_policy()
    rig.bring_up("reach")
    for change in ("deactivate", "cleanup"):
        assert rig.ros.change_state("/policy", change)
    for values in (
        {"worker_python": str(program)},
        {"policy": "remote", "checkpoint": "ws://127.0.0.1:9"},
        {"policy": "magic", "worker_python": str(program)},
        {"policy": "vla", "checkpoint": "/etc"},
        {"policy_options": ["names=/etc/passwd"]},
    ):
        accepted, reason = set_together(rig.ros, **values)
        assert (accepted, "only who starts the process may" in reason) == (False, True), reason
    assert rig.ros.set_parameter("/policy", "checkpoint", "shipped:tabletop") == (True, "")
    assert rig.ros.change_state("/policy", "configure")
    assert not ran.exists()


@pytest.mark.timing
def test_the_control_rate_changes_while_inactive(start_policy):
    rig = start_policy()
    assert rig.ros.change_state("/policy", "configure")
    assert rig.ros.set_parameter("/policy", "control_rate_hz", 50.0) == (True, "")
    assert rig.ros.change_state("/policy", "activate")
    rig.instruct("reach")
    with rig.filming(50.0):
        running = rig.expect(State.RUNNING)
        assert running.control_rate_hz == 50.0
        begin = rig.wait_for(CommandKind.POLICY)
        wait_until(lambda: len(rig.commands) > begin + 50, 10.0, "50 commands")
    first, last = (stamp_of(rig.commands.messages[i].header.stamp) for i in (begin, begin + 50))
    assert (last - first) / 50e9 == pytest.approx(0.02, rel=bound(quiet=0.1, loaded=0.4))


def test_what_cannot_be_met_is_refused_at_configure_and_can_be_mended(start_policy):
    rig = start_policy(max_age_s=0.09)
    task = rig.ros.publisher(String, "instruction", qos.LATCHED)
    task.publish(String(data="reach"))
    assert not rig.ros.change_state("/policy", "configure")
    refused = rig.expect(lambda s: "refused" in s.reason)
    assert refused.state == State.UNCONFIGURED
    assert refused.worker_pid == 0
    assert "max_age_s 0.09 cannot be met" in refused.reason
    assert "need at least 0.1" in refused.reason
    assert rig.ros.set_parameter("/policy", "max_age_s", 0.5) == (True, "")
    rig.bring_up()
    rig.expect(State.WAITING)


def test_a_policy_that_cannot_be_loaded_is_refused_at_configure(start_policy, tmp_path):
    rig = start_policy(policy="replay", replay_file=str(tmp_path / "missing.npy"))
    assert not rig.ros.change_state("/policy", "configure")
    refused = rig.expect(lambda s: "refused" in s.reason)
    assert "cannot read actions from" in refused.reason
    assert "missing.npy" in refused.reason
    assert refused.state == State.UNCONFIGURED
    assert not rig.ros.change_state("/policy", "activate")
    assert not len(rig.commands)


def test_how_the_engine_runs_reaches_it(ros_env, monkeypatch):
    """From the node's arguments to the options with which the worker loads."""
    import threading

    import rclpy

    from vla_ros.policies.conventions import settle
    from vla_ros.policies.vla import engine_options
    from vla_ros.ros.nodes.policy import runtime
    from vla_ros.ros.nodes.policy.node import PolicyNode

    loaded = []

    def executor(spec, *_):
        loaded.append(spec)
        raise RuntimeError("seen enough")

    monkeypatch.setattr(runtime, "Executor", executor)
    given = [
        "policy:=vla", "checkpoint:=random:small", "decoding:=actionflow",
        "engine_options:=[image_steps=device, attention=torch, gemm=auto]",
    ]  # fmt: skip
    rclpy.init(args=["--ros-args", *(word for value in given for word in ("-p", value))])
    try:
        node = PolicyNode(threading.Event())
        node.on_configure(None)
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
    options = engine_options(loaded[0], settle(loaded[0])[0])
    assert (options.decoding, options.image_steps, options.attention, options.gemm) == (
        "actionflow", "device", "torch", "auto",
    )  # fmt: skip


def test_a_flow_policy_is_not_told_how_a_token_policy_runs(start_policy):
    """As it is, it loads; what is of token policies alone is refused with its name."""
    rig = start_policy(
        policy="vla",
        checkpoint="random:smolvla-small",
        engine_options=["image_steps=device"],
        num_threads=1,
    )
    assert not rig.ros.change_state("/policy", "configure")
    refused = rig.expect(lambda s: "refused" in s.reason)
    assert "image_steps: these options are for token policies" in refused.reason


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--params-file", "/nowhere/policy.yaml"], "/nowhere/policy.yaml"),
        (["-p", "max_age_s:=[1"], "max_age_s:=[1"),
    ],
)
def test_an_unreadable_parameter_is_one_clear_line(ros_env, words, says):
    command = [sys.executable, "-m", "vla_ros.ros.nodes.policy.node", "--ros-args", *words]
    ended = subprocess.run(command, env=ros_env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("bad parameter: ")]
    assert says in line and "Traceback" not in ended.stderr
