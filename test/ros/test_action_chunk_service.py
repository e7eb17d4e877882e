"""MoveIt Pro's GetActionChunk: the chunk for the observation in the request, its rest continued as
the policy continues its own; and nothing moves."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
torch = pytest.importorskip("torch", reason="torch is not installed: no vla policy here")

from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, MultiArrayDimension
from std_srvs.srv import Trigger

from support import built_messages
from support.nodes import Program
from support.policy_client import PolicyRig
from support.wait import wait_until
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Executing, Instruction, Observation, Timeline
from vla_ros.core.types import PolicyState as State
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.registry import write_folder
from vla_ros.policies.load import load_policy
from vla_ros.ros.common.convert import to_time
from vla_ros.ros.nodes.policy.parameters import TABLE
from vla_ros.ros.nodes.policy.settings import spec_of

PACKAGE = "moveit_pro_ml_msgs"
JOINTS = [*(f"joint_{i}" for i in range(1, 7)), "finger_joint"]
NODE = {
    "policy": "vla",
    "action_chunk_service": True,
    "execution": "rtc",
    "joint_names": JOINTS,
    "action_space": "joint_position",
    "gripper_names": ["finger_joint"],
    "gripper_range": [0.8, 0.0],
    "bounds_low": [-3.1] * 6,
    "bounds_high": [3.1] * 6,
    "velocity_limits": [1.0] * 6,
    "stale_action": "hold",
    "max_age_s": 5.0,
    "action_rate_hz": 10.0,
    "num_threads": 1,
    "warmup_count": 1,
}
HOME = [0.1, -1.5, 1.2, -0.4, 0.3, 0.2, 0.4]
PROMPT = "stack the blue cube on the green cube"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Where moveit_pro_ml_msgs can be imported from; "" where it is installed."""
    try:
        folder = built_messages.where(PACKAGE, tmp_path_factory.mktemp(PACKAGE))
    except LookupError as missing:
        pytest.skip(str(missing))
    sys.path[:0] = [folder] if folder else []
    yield folder
    sys.path[:] = [one for one in sys.path if one != folder]
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "it"
    config = replace(PRESETS["smolvla-small"], action_dim=7, state_dim=7, cameras=("front",))
    write_folder(folder, config, seed=4)
    return str(folder)


class Planner:
    """What MoveIt Pro's ExecutePolicy does: it asks a policy node for chunks."""

    def __init__(self, ros, spawn_node, ros_env, folder, parameters):
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))
        node: Program = spawn_node("policy", parameters, extra_env={"PYTHONPATH": path})
        self.rig, self.ros = PolicyRig(ros, node, ros_env, []), ros
        self.kind = importlib.import_module(f"{PACKAGE}.srv").GetActionChunk

    def request(self, stamp_ns=1_000_000_007, **fields):
        """An observation of this stamp, which the pixels follow."""
        pixels = np.random.default_rng(stamp_ns).integers(0, 256, (48, 64, 3), np.uint8)
        shown = Image(height=48, width=64, encoding="rgb8", step=64 * 3, data=pixels.tobytes())
        shown.header.stamp = to_time(stamp_ns)
        out = self.kind.Request(image_names=["main"], images=[shown], prompt=PROMPT)
        # As a planner lists them: in an order of its own, with a joint that the policy has not.
        out.robot_state = JointState(name=[*JOINTS[::-1], "rail"], position=[*HOME[::-1], 9.0])
        for name, value in fields.items():
            setattr(out, name, value)
        return out

    def ask(self, stamp_ns=1_000_000_007, **fields):
        request = self.request(stamp_ns, **fields)
        return self.ros.call(self.kind, "get_action_chunk", request, timeout=60.0)

    def refused(self, because, **fields):
        answer = self.ask(**fields)
        assert answer.status == self.kind.Response.ERROR
        assert because in answer.message
        assert not answer.chunk.points and "\n" not in answer.message


def rest_of(array, begin):
    """The rows of a policy_action_chunk from ``begin`` on, as a caller sends them back."""
    steps, width = (one.size for one in array.layout.dim)
    rows = np.array(array.data).reshape(steps, width)[begin:]
    out = Float64MultiArray(data=rows.ravel().tolist())
    out.layout.dim = [
        MultiArrayDimension(label="steps", size=len(rows), stride=rows.size),
        MultiArrayDimension(label="dims", size=width, stride=width),
    ]
    return out


def positions_of(answer):
    """float64 [n, 7] in the policy's order, the gripper's as an opening of 0 to 1."""
    names = list(answer.chunk.joint_names)
    rows = np.array([point.positions for point in answer.chunk.points])
    rows = rows[:, [names.index(name) for name in JOINTS]]
    rows[:, 6] = 1.0 - rows[:, 6] / 0.8
    return rows


@pytest.fixture
def planner(ros, spawn_node, ros_env, package, checkpoint):
    """A planner beside a policy node that is configured."""
    given = NODE | {"checkpoint": checkpoint}
    planner = Planner(ros, spawn_node, ros_env, package, given)
    assert ros.change_state("/policy", "configure", timeout=120.0), planner.rig.status.last.reason
    return planner


class Reference:
    """The same policy in this process."""

    def __init__(self, checkpoint):
        defaults = {row.name: row.default for row in TABLE}
        self._policy = load_policy(spec_of(defaults | NODE | {"checkpoint": checkpoint}))
        self._policy.reset(Instruction(PROMPT, 0))

    def chunk(self, request, executing=None):
        image, stamp = request.images[0], request.images[0].header.stamp
        seen = Observation(
            stamp.sec * 10**9 + stamp.nanosec, 0, 0,
            np.frombuffer(image.data, np.uint8).reshape(48, 64, 3),
            proprio=np.array(HOME), executing=executing,
        )  # fmt: skip
        return self._policy.step(seen, Timeline(0), SystemClock())


def test_the_chunk_is_the_policy_s_and_continues_what_the_caller_executes(planner, checkpoint):
    reference = Reference(checkpoint)
    first = planner.ask(new_episode=True)
    assert (first.status, first.message) == (planner.kind.Response.CHUNK_PRODUCED, "")
    assert list(first.chunk.joint_names) == JOINTS[::-1], "in the request's order"
    assert first.native_control_period == pytest.approx(0.1)
    alone = reference.chunk(planner.request())
    assert np.allclose(positions_of(first), np.clip(alone.actions, [*[-9] * 6, 0], [*[9] * 6, 1]))
    assert np.array_equal(np.reshape(first.policy_action_chunk.data, (-1, 7)), alone.actions)

    rest = rest_of(first.policy_action_chunk, begin=3)
    how = {"previous_action_chunk": rest, "frozen_prefix_steps": 3}
    answers = [
        planner.ask(1_800_000_000, **how),
        planner.ask(1_800_000_000, guidance_horizon=2, **how),
        planner.ask(1_800_000_000),
    ]
    wanted = [
        reference.chunk(planner.request(1_800_000_000), executing)
        for executing in (Executing(alone.stamp_ns, 3, 3), Executing(alone.stamp_ns, 3, 3, 2), None)
    ]
    chunks = [np.reshape(answer.policy_action_chunk.data, (-1, 7)) for answer in answers]
    for answer, chunk, inference in zip(answers, chunks, wanted, strict=True):
        assert not answer.message
        assert np.array_equal(chunk, inference.actions)
    assert wanted[0].continues and not np.array_equal(chunks[0], chunks[1])
    before = alone.actions[3:6]
    apart = [np.abs(chunk[:3] - before).max() for chunk in chunks]
    assert max(apart[:2]) < 0.5 * apart[2], "the frozen steps hold"
    assert not planner.rig.commands.messages, "nothing moves"
    assert planner.rig.status.last.state == State.INACTIVE


def test_what_is_not_understood_is_refused_and_the_next_request_is_answered(planner):
    planner.refused("set image_names to these", image_names=["scene"])
    planner.refused("the prompt is empty", prompt=" ")
    planner.refused("robot_state lacks", robot_state=JointState(name=["j"], position=[0.0]))
    bad = planner.request().images[0]
    bad.encoding = "16UC1"
    planner.refused("image main: encoding '16UC1'", images=[bad])
    strange = Float64MultiArray(data=[0.0] * 14)
    planner.refused("a layout of []", previous_action_chunk=strange)
    strange.layout.dim = [MultiArrayDimension(size=2), MultiArrayDimension(size=7)]
    planner.refused("send its rows back as they came", previous_action_chunk=strange)
    assert planner.ask().status == planner.kind.Response.CHUNK_PRODUCED
    assert planner.ros.change_state("/policy", "activate")
    planner.refused("deactivate it first")
    assert planner.ros.change_state("/policy", "deactivate")
    assert planner.ask().status == planner.kind.Response.CHUNK_PRODUCED


def test_a_worker_that_is_lost_ends_the_request_and_another_answers_the_next(planner):
    pid = planner.rig.status.last.worker_pid
    os.kill(pid, signal.SIGSTOP)
    client = planner.ros.node.create_client(planner.kind, "get_action_chunk")
    assert client.wait_for_service(10.0)
    waits = client.call_async(planner.request())
    assert not planner.ros.call(Trigger, "policy/resume").success, "the node answers meanwhile"
    assert not waits.done()
    os.kill(pid, signal.SIGKILL)
    wait_until(waits.done, 20.0)
    assert waits.result().status == planner.kind.Response.ERROR
    assert "worker was lost" in waits.result().message
    wait_until(
        lambda: planner.ask().status == planner.kind.Response.CHUNK_PRODUCED, 60.0,
        lambda: planner.rig.status.last.reason,
    )  # fmt: skip


def test_it_is_refused_at_configure_where_it_cannot_be(ros, spawn_node, ros_env, package):
    """Without the package, and for actions that MoveIt Pro does not execute."""
    without = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with_it = {"PYTHONPATH": os.pathsep.join(filter(None, (package, without["PYTHONPATH"])))}
    cases = [(with_it, "MoveIt Pro executes joint positions, action_space is end_effector_delta")]
    if package:
        needs = "action_chunk_service needs moveit_pro_ml_msgs/srv/GetActionChunk"
        cases.append((without, needs))
    for env, because in cases:
        given = {"policy": "zero", "action_chunk_service": True}
        node = spawn_node("policy", given, extra_env=env)
        rig = PolicyRig(ros, node, ros_env, [])
        assert not ros.change_state("/policy", "configure")
        assert rig.expect(lambda s, why=because: why in s.reason).state == State.UNCONFIGURED
        node.end()
