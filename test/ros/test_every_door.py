"""One chunk through every door: the same observation and instruction give the same actions, to the
door's own precision, whoever asks and whoever executes them."""

from __future__ import annotations

import base64
import http.client
import importlib
import json
import os
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("torch", reason="torch is not installed: no vla policy here")
pytest.importorskip("websockets", reason="websockets is not installed: pip install '.[serve]'")
pytest.importorskip("prometheus_client", reason="not installed: pip install '.[serve]'")
pytest.importorskip("zmq", reason="pyzmq is not installed: no GR00T protocol here")

from sensor_msgs.msg import Image, JointState
from trajectory_msgs.msg import JointTrajectory, MultiDOFJointTrajectory

from support import built_messages
from support.cartesian_controller import CartesianController
from support.foreign_server import ForeignServer
from support.groot_server import GrootServer, config
from support.motion_poses import poses_of
from support.policy_client import PolicyRig
from support.serving import serving
from support.wait import repeating, wait_until
from vla_ros.core import rotation
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.options import EngineOptions
from vla_ros.policies.load import load_policy
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import set_time, stamp_of, to_time
from vla_ros.ros.nodes.policy.parameters import TABLE
from vla_ros.ros.nodes.policy.settings import spec_of

CLOCK = SystemClock()
TASK = Instruction("stack the blue cube on the green cube", 1)
JOINTS = [*(f"joint_{i}" for i in range(1, 7)), "finger_joint"]
HOME = np.array([0.1, -0.5, 0.2, -0.4, 0.3, 0.2, 0.4])
PIXELS = np.random.default_rng(5).integers(0, 256, (48, 64, 3), np.uint8)
NODE = {
    "policy": "vla",
    "outputs": ["trajectory"],
    "action_chunk_service": True,
    "joint_names": JOINTS,
    "action_space": "joint_position",
    "gripper_names": ["finger_joint"],
    "bounds_low": [-3.1] * 6,
    "bounds_high": [3.1] * 6,
    "velocity_limits": [100.0] * 6,
    "stale_action": "hold",
    "max_age_s": 5.0,
    "action_rate_hz": 5.0,  # a machine that does other work is late by less than the chunk
    "control_rate_hz": 5.0,
    "num_threads": 1,
    "warmup_count": 1,
}


@pytest.fixture
def values(tmp_path):
    """Parameters of a node with a policy of seven joint positions, and of what asks the same."""
    config = replace(PRESETS["smolvla-small"], action_dim=7, state_dim=7, cameras=("front",))
    write_folder(tmp_path / "it", config, seed=4)
    return NODE | {"checkpoint": str(tmp_path / "it")}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """PYTHONPATH of a node that finds MoveIt Pro's interface; it is found here too."""
    try:
        folder = built_messages.where("moveit_pro_ml_msgs", tmp_path)
    except LookupError as missing:
        pytest.skip(str(missing))
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))
    if folder:
        monkeypatch.syspath_prepend(folder)
    yield {"PYTHONPATH": path}
    for name in [name for name in sys.modules if name.startswith("moveit_pro_ml_msgs")]:
        del sys.modules[name]


def frame(stamp_ns):
    shown = Image(height=48, width=64, encoding="rgb8", step=64 * 3, data=PIXELS.tobytes())
    shown.header.stamp = to_time(stamp_ns)
    return shown


def chunk_of(policy, stamp_ns):
    """float64 [n, 7]: what a policy in this process answers; a client of a server is one too."""
    policy.reset(TASK)
    now = CLOCK.steady_ns()
    seen = Observation(stamp_ns, now, now, PIXELS, proprio=HOME)
    return policy.step(seen, Timeline(now).mark("queue", now), CLOCK).actions


def posted(address, stamp_ns):
    """The answer of POST /act, as a client with nothing but json-numpy has it."""

    def encoded(array):
        data = base64.b64encode(array.tobytes()).decode()
        return {"__numpy__": data, "dtype": array.dtype.str, "shape": list(array.shape)}

    connection = http.client.HTTPConnection(address.removeprefix("ws://"), timeout=60)
    body = {"image": encoded(PIXELS), "state": encoded(HOME), "instruction": TASK.text}
    connection.request("POST", "/act", json.dumps(body | {"stamp_ns": stamp_ns}))
    answer = connection.getresponse()
    found = json.loads(answer.read())
    assert answer.status == 200, found
    return np.stack(
        [np.frombuffer(base64.b64decode(row["__numpy__"]), row["dtype"]) for row in found]
    )


def through_groot(policy, stamp_ns, table):
    """The chunk by way of GR00T's ZeroMQ, whose arrays are float32: the server has the policy."""
    modalities = {
        "video": config("front"),
        "state": config("arm"),
        "action": config("arm"),
        "language": config("task"),
    }

    asked_for = []

    def act(asked):
        seen = asked
        if seen["language"]["task"] == [[TASK.text]]:  # else the client warms up
            assert (seen["video"]["front"][0, 0] == PIXELS).all()
            assert np.allclose(seen["state"]["arm"][0, 0], HOME, atol=1e-6)
            asked_for.append(TASK.text)
        return {"arm": chunk_of(policy, stamp_ns)[None].astype(np.float32)}

    table.write_text(
        "images: {main: video.front}\nstate: {state.arm: 7}\nprompt: language.task\n"
        "action_space: joint_position\n"
    )
    with GrootServer(act, modalities) as server:
        spec = spec_of({row.name: row.default for row in TABLE} | NODE | {
            "policy": "remote", "checkpoint": server.url, "policy_options": [f"names={table}"],
        })  # fmt: skip
        found = chunk_of(load_policy(replace(spec, warmup_size=(48, 64))), stamp_ns)
    assert asked_for
    return found


@pytest.mark.long
def test_one_chunk_of_joint_positions(ros, spawn_node, ros_env, values, package, tmp_path):
    spec = spec_of({row.name: row.default for row in TABLE} | values)
    policy = load_policy(spec)
    node = spawn_node("policy", values, extra_env=package)
    rig = PolicyRig(ros, node, ros_env, [])
    plans = ros.inbox(JointTrajectory, "policy/joint_trajectory", qos.ACTION)
    assert ros.change_state("/policy", "configure", timeout=120.0), rig.status.last.reason

    # MoveIt Pro asks the node, which does not act
    kind = importlib.import_module("moveit_pro_ml_msgs.srv").GetActionChunk
    stamp_ns = ros.node.get_clock().now().nanoseconds
    request = kind.Request(image_names=["main"], images=[frame(stamp_ns)], prompt=TASK.text)
    request.robot_state = JointState(name=JOINTS, position=HOME.tolist())
    answer = ros.call(kind, "get_action_chunk", request, timeout=60.0)
    assert answer.status == kind.Response.CHUNK_PRODUCED, answer.message
    planned = np.array([point.positions for point in answer.chunk.points])

    # the node acts: one frame, one chunk, one trajectory
    assert ros.change_state("/policy", "activate")
    rig.instruct(TASK.text)
    joints = ros.publisher(JointState, "joint_states", qos.STATE)
    images = ros.publisher(Image, "image", qos.IMAGE_PUB)
    ros.wait_for_subscriber(joints)
    ros.wait_for_subscriber(images)

    def read():
        message = JointState(name=JOINTS, position=HOME.tolist())
        set_time(message.header.stamp, ros.node.get_clock().now().nanoseconds)
        joints.publish(message)

    def show():
        if not rig.chunks.messages:
            images.publish(frame(ros.node.get_clock().now().nanoseconds))

    with repeating(read, 0.02), repeating(show, 0.5):
        chunk = rig.chunks.wait(lambda m: True, 30.0)
        plans.wait(lambda m: len(m.points) > 3, 10.0)
    observed_ns = stamp_of(chunk.observation_stamp)
    executed = np.reshape(chunk.actions, (-1, 7))

    with serving(spec) as server:
        remote = EngineOptions(server.address)
        there = load_policy(replace(spec, name="remote", engine=remote))
        doors = {
            "GetActionChunk": (planned, chunk_of(policy, stamp_ns), 1e-12),
            "~/action_chunk": (executed, chunk_of(policy, observed_ns), 0.0),
            "websocket": (chunk_of(there, stamp_ns), chunk_of(policy, stamp_ns), 0.0),
            "POST /act": (posted(server.address, stamp_ns), chunk_of(policy, stamp_ns), 0.0),
        }
    table = tmp_path / "names.yaml"
    groot = through_groot(policy, stamp_ns, table)
    doors["GR00T's ZeroMQ"] = (groot, chunk_of(policy, stamp_ns), 1e-6)
    for door, (found, wanted, apart) in doors.items():
        assert found.shape == wanted.shape, door
        assert np.abs(found - wanted).max() <= apart, door
    assert np.ptp(executed[:, :6], axis=0).min() > 1e-3, "chunks that say nothing would be equal"

    # the trajectory's points are the chunk's actions in their order, once the arm has come to them
    rows = executed[:, :6].clip(-3.1, 3.1)
    apart = np.array([np.abs(rows - point.positions).max(1) for point in plans.messages[0].points])
    places = [int(one.argmin()) for one in apart if one.min() < 1e-9]
    met = list(dict.fromkeys(places))  # it stands at the last one
    assert len(met) > 3
    assert met == list(range(met[0], met[0] + len(met)))


def test_one_chunk_of_displacements(start_policy, tmp_path):
    """Of a stranger's server: what it said is the chunk, and the poses lead along it."""
    rows = np.random.default_rng(2).normal(0.0, 0.01, (10, 7))
    rows[:, 6] = 1.0
    table = tmp_path / "names.yaml"
    table.write_text("images: {main: image}\n")
    begin = np.array([0.4, -0.1, 0.3, np.pi, 0.0, 0.0])
    done = threading.Event()

    def infer(message):
        if message["prompt"] == TASK.text:  # else the client warms up
            done.wait(60.0 if answered else 0.0)  # one chunk, and no other replaces it
            answered.append(1)
        return {"actions": rows}

    answered: list[int] = []
    with ForeignServer(infer) as server:
        rig = start_policy(
            policy="remote", checkpoint=server.url, policy_options=[f"names={table}"],
            action_scale=[1.0] * 6, outputs=["cartesian_trajectory"], leash_s=0.5,
            joint_delta_from="commanded", action_rate_hz=20.0, max_age_s=1.5,
            velocity_limits=[2.0, 2.0, 2.0, 10.0, 10.0, 10.0],
        )  # fmt: skip
        rig.bring_up(TASK.text)
        arm = CartesianController(rig.ros, begin[:3], (1.0, 0.0, 0.0, 0.0))
        try:
            rig.camera()
            wait_until(lambda: arm.messages and rig.chunks.messages, 40.0,
                       lambda: rig.status.last.reason)  # fmt: skip
        finally:
            done.set()
            arm.end()
    assert np.array_equal(np.reshape(rig.chunks.messages[0].actions, (-1, 7)), rows)
    first: MultiDOFJointTrajectory = arm.messages[0]
    _, places, turns = poses_of(first)
    at = begin.copy()
    for row, place, turn in zip(rows, places, turns, strict=False):
        at = np.concatenate((at[:3] + row[:3], rotation.turned(row[3:6], at[3:])))
        w, vector = rotation.quaternion(at[3:])
        assert np.abs(place - at[:3]).max() < 1e-9
        assert abs(abs(turn @ np.array([*vector, w])) - 1.0) < 1e-12
