"""The other robot and the policy node in one graph, and what a bystander measures of them.

The policy replays chunks of joint positions; the node's `trajectory` output is remapped to the
arm's joint trajectory controller, its grippers' to the arm's gripper controller.
"""

from __future__ import annotations

import signal
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory

from support.nodes import Program
from support.policy_client import PolicyRig
from support.ros import RosPeer
from support.wait import wait_until
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common.convert import stamp_of

ARM_PROGRAM = Path(__file__).with_name("arm.py")
ARM = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")
FINGER = "finger_joint"
HOME = np.array([0.0, -1.2, 1.4, -1.7, -1.5, 0.0])  # where it stands when it is switched on
GOAL = HOME + np.array([0.6, 0.4, -0.5, 0.3, 0.2, -0.4])
OPEN_M = 0.04
T = 0.05  # the control period
CHUNK, KEPT = 8, 4
PARAMETERS: Mapping[str, Any] = {
    "policy": "replay",
    "replay_loop": False,
    "replan_interval": KEPT,
    "outputs": ["trajectory"],
    "action_space": "joint_position",
    "action_names": [*ARM, FINGER],
    "gripper_names": [FINGER],
    "gripper_range": [0.0, OPEN_M],
    "joint_names": [*ARM, FINGER],
    "bounds_low": [-3.0] * 6,
    "bounds_high": [3.0] * 6,
    "stale_action": "hold",
    "cameras.wrist.topic": "wrist/image_raw",
    "cameras.wrist.transport": "compressed",
    "use_wrist_image": True,
}
REMAPPINGS = {
    "image": "front/image_raw",
    "policy/joint_trajectory": "arm_controller/joint_trajectory",
    "policy/gripper_positions": "gripper_controller/commands",
}
DEEP = QoSProfile(depth=100, reliability=ReliabilityPolicy.BEST_EFFORT)


def to_goal(folder: Path, seconds: float = 3.0) -> Path:
    """Chunks that lead from HOME to GOAL and stay there, the gripper half closed on the way."""
    share = np.clip(np.arange(round(seconds / T) + CHUNK) * T / seconds, 0.0, 1.0)
    return _chunks(folder / "to_goal.npy", HOME + share[:, None] * (GOAL - HOME), 1 - share / 2)


def to_and_fro(folder: Path, seconds: float = 60.0, chunks: bool = True, leap: float = 0.0) -> Path:
    """A motion that goes on and on, at 0.3 rad/s: chunks, or single actions, one a frame. Every 4 s
    it leaps by ``leap`` rad, as a policy does that changes its mind."""
    at = np.arange(round(seconds / T)) * T
    phase = at % 2.0
    away = 0.3 * np.minimum(phase, 2.0 - phase) + leap * (at // 4.0 % 2.0)
    rows = HOME + away[:, None] * np.sign(GOAL - HOME)
    if chunks:
        return _chunks(folder / "to_and_fro.npy", rows, np.ones(len(rows)))
    np.save(folder / "to_and_fro.npy", np.column_stack([rows, np.ones(len(rows))]))
    return folder / "to_and_fro.npy"


def _chunks(path: Path, rows: np.ndarray, gripper: np.ndarray) -> Path:
    """One chunk a question: the rows of the following CHUNK periods. It is asked when KEPT were
    executed, about a frame that is some periods old by then."""
    actions = np.column_stack([rows, gripper])
    begins = range(0, len(actions) - CHUNK + 1, KEPT // 2)
    np.save(path, np.stack([actions[i : i + CHUNK] for i in begins]))
    return path


@dataclass(frozen=True)
class AnsweredFrames:
    """Frames that could be answered and were, and the observation age in ms."""

    offered: int
    answered: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Motion:
    """What the arm did over some time, and what the status said at its end. ``share``: control
    periods with an action of their own; ``held``: statuses in HOLD; ``told`` and ``fastest``: of
    all joints, rad/s, from one command to the next and as measured over 0.1 s."""

    share: float
    clamped: int
    held: int
    told: float
    fastest: float
    state: str
    reason: str


class Session:
    """Both started, the policy active without a task yet."""

    def __init__(
        self,
        spawn: Callable[..., Program],
        ros: RosPeer,
        env: dict[str, str],
        started: list[Program],
        replay: Path,
        options: str = "{}",
        **parameters: object,
    ) -> None:
        self.ros = ros
        given = {**PARAMETERS, "replay_file": str(replay), **parameters}
        node = spawn("policy", given, remappings=REMAPPINGS)
        self.rig = PolicyRig(ros, node, env, started)
        self.trajectories = ros.inbox(JointTrajectory, REMAPPINGS["policy/joint_trajectory"], 10)
        self.seen: list[int] = []  # stamps of the front camera
        self.wrist: list[int] = []
        self.times: list[int] = []  # steady, of joint states
        self.positions: list[np.ndarray] = []  # [6], in the order of ARM
        self.stamps: list[int] = []  # of joint states, by the robot's clock
        self.finger = float("nan")
        listen = ros.node.create_subscription
        listen(Image, "front/image_raw", lambda m: self.seen.append(_stamp(m)), DEEP)
        wrist = "wrist/image_raw/compressed"
        listen(CompressedImage, wrist, lambda m: self.wrist.append(_stamp(m)), DEEP)
        listen(JointState, "joint_states", self._on_joints, qos_profile_sensor_data)
        self._clock = ros.publisher(Float64, "clock_offset_ms")
        self.arm = Program("arm", [sys.executable, str(ARM_PROGRAM), options], env)
        started.append(self.arm)
        self.rig.bring_up()
        wait_until(lambda: len(self.seen) > 5 and self.positions, 20.0, "the other robot")

    def _on_joints(self, message: JointState) -> None:
        if FINGER in message.name:
            self.finger = message.position[0]
            return
        order = [message.name.index(name) for name in ARM]
        self.positions.append(np.array(message.position)[order])
        self.stamps.append(_stamp(message))
        self.times.append(time.monotonic_ns())

    # What is done to it

    def begin(self, task: str) -> None:
        """Give a task and wait until the arm moves."""
        self.rig.instruct(task)
        self.rig.expect(State.RUNNING)
        self.wait_for_motion()

    def blind(self, covered: bool) -> None:
        """Cover the cameras, or uncover them."""
        self.ros.call(SetBool, "blind", SetBool.Request(data=covered))

    def emergency_stop(self, pressed: bool) -> None:
        """Press it, or release it."""
        self.ros.call(SetBool, "estop", SetBool.Request(data=pressed))

    def set_clock(self, offset_ms: float) -> None:
        """Set the robot's clock so far ahead of this machine's."""
        self.ros.wait_for_subscriber(self._clock)
        self._clock.publish(Float64(data=offset_ms))

    # What is seen of it

    def speed(self) -> float:
        """Of the fastest joint over the last 50 ms, rad/s."""
        step = 10
        if len(self.positions) <= step:
            return 0.0
        moved = np.abs(self.positions[-1] - self.positions[-1 - step]).max()
        return float(moved * SECOND / (self.times[-1] - self.times[-1 - step]))

    def wait_for_motion(self, timeout: float = 10.0) -> None:
        def standing() -> str:
            status = self.rig.status.last
            return f"motion of the arm; the policy is {State(status.state).name}: {status.reason}"

        wait_until(lambda: self.speed() > 0.15, timeout, standing)

    def wait_for(self, goal: np.ndarray, timeout: float = 15.0) -> None:
        """Until every joint is within 10 mrad of ``goal``."""
        wait_until(
            lambda: np.abs(self.positions[-1] - goal).max() < 0.01,
            timeout,
            lambda: f"{goal}, the joints are at {self.positions[-1]}",
        )

    def stopped_after_s(self, since_ns: int) -> float:
        """Wait until the arm rests; how long after ``since_ns`` (steady) it came to within 5 mrad
        of where it rests."""
        begin = max(0, len(self.times) - 1)

        def rests() -> bool:
            still = self.positions[-30:]  # 0.15 s: a new worker may be there after 0.3 s
            enough = len(self.times) - begin > 30
            return enough and float(np.ptp(still, axis=0).max()) < 1e-3

        wait_until(rests, 10.0, "the arm to rest")
        away = [np.abs(p - self.positions[-1]).max() > 5e-3 for p in self.positions]
        last = max((t for t, far in zip(self.times, away, strict=False) if far), default=since_ns)
        return max(0.0, (last - since_ns) / SECOND)

    def pause_after_s(self, since_ns: int) -> float:
        """Wait for 40 ms in which the arm stands still, however soon it goes on: a new worker may
        be there after 0.15 s. How long after ``since_ns`` (steady) the first of them began."""
        still = 8  # samples
        found = 0.0

        def paused() -> bool:
            nonlocal found
            first = bisect_right(self.times, since_ns)
            for end in range(first + still, len(self.times)):
                if float(np.ptp(self.positions[end - still : end], axis=0).max()) < 1e-3:
                    found = (self.times[end - still] - since_ns) / SECOND
                    return True
            return False

        wait_until(paused, 10.0, "the arm to pause")
        return found

    def stop_s(self) -> float:
        """Call ~/stop of a robot that moves; how long after the call it stood still."""
        self.wait_for_motion()
        began = time.monotonic_ns()
        self.rig.call("stop")
        return self.stopped_after_s(began)

    def answers(self, seconds: float) -> AnsweredFrames:
        """Over so long, from a second after its begin on: frames with an image of both cameras
        within T/2, those of them that were answered, and the age of what was acted on."""
        begin = self.seen[-1] + SECOND
        time.sleep(seconds + 1.5)
        end = begin + round(seconds * SECOND)
        pairs = {
            stamp: min([stamp, *near])
            for stamp in self.seen
            if begin <= stamp < end
            and (near := [w for w in self.wrist if abs(w - stamp) <= round(T / 2 * SECOND)])
        }
        answered = {stamp_of(chunk.observation_stamp) for chunk in self.rig.chunks.messages}
        ages = [
            stamp_of(m.header.stamp) - stamp_of(m.observation_stamp)
            for m in self.rig.commands.messages
            if m.kind == CommandKind.POLICY and begin <= stamp_of(m.observation_stamp) < end
        ]
        p50, p99 = np.percentile(np.array(ages) / MS, (50, 99))
        count = sum(stamp in answered or oldest in answered for stamp, oldest in pairs.items())
        return AnsweredFrames(len(pairs), count, float(p50), float(p99))

    def motion(self, seconds: float) -> Motion:
        """Over so long from now on."""
        begin, commands = len(self.stamps), len(self.rig.commands)
        clamped = self.rig.status.wait_new().actions_clamped
        states = len(self.rig.status)
        time.sleep(seconds)
        status = self.rig.status.wait_new()
        said = list(self.rig.commands.messages[commands:])
        places = np.array([m.action[:6] for m in said])
        at, times = np.array(self.positions[begin:]), np.array(self.stamps[begin:]) / SECOND
        over = 20  # samples, 0.1 s
        speeds = np.abs(at[over:] - at[:-over]).max(1) / (times[over:] - times[:-over])
        return Motion(
            sum(m.kind == CommandKind.POLICY for m in said) * T / seconds,
            status.actions_clamped - clamped,
            sum(s.state == State.HOLD for s in list(self.rig.status.messages[states:])),
            float(np.abs(np.diff(places, axis=0)).max()) / T,
            float(speeds.max()),
            State(status.state).name,
            status.reason,
        )

    def runs_again_s(self, since: float, timeout: float) -> float:
        """How long after ``since`` (steady, s) the arm was driven again; inf: not in that time."""
        begin = len(self.rig.commands)

        def acts() -> bool:
            said = self.rig.commands.messages[begin:]
            return sum(m.kind == CommandKind.POLICY for m in said) > 3

        while time.monotonic() - since < timeout:
            if acts():
                return time.monotonic() - since
            time.sleep(0.005)
        return float("inf")

    def check_trajectories(self) -> None:
        """No point lies beyond the life of its observation, and the arm has refused none."""
        valid = {
            stamp_of(m.header.stamp): stamp_of(m.valid_until)
            for m in list(self.rig.commands.messages)
        }
        for message in list(self.trajectories.messages):
            stamp, last = stamp_of(message.header.stamp), message.points[-1].time_from_start
            if stamp == 0:
                assert len(message.points) == 1, "a stop is one point"
                continue
            end = stamp + last.sec * SECOND + last.nanosec
            assert stamp not in valid or end <= valid[stamp] + MS
        refusals = [line for line in self.arm.log.splitlines() if "trajectory refused" in line]
        assert not refusals, f"the arm has refused a trajectory: {refusals[0]}"

    @property
    def refused(self) -> int:
        """Trajectories that were over when the arm had them."""
        return self.arm.log.count("trajectory refused")

    def kill_worker(self) -> int:
        """SIGKILL; the steady time of it."""
        self.wait_for_motion()
        self.rig.worker(signal.SIGKILL)
        return time.monotonic_ns()


def _stamp(message: Any) -> int:
    return stamp_of(message.header.stamp)
