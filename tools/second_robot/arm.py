"""A six-joint arm with a gripper and two cameras, as somebody else would have written it.

It imports nothing of vla_ros. What makes it a stranger:

* joint states at 200 Hz, best effort, in its driver's order (alphabetical, as UR's), the gripper's
  finger from a driver of its own in messages of its own on the same topic;
* a raw BGR camera that is late, a JPEG camera on the wrist that is later, both with jitter and
  lost frames, both sensor-data QoS;
* a clock of its own, some milliseconds off;
* a joint trajectory controller's topic (ros2_control): a new trajectory replaces the one before
  it at once, joints are found by name, a trajectory that has ended leaves the arm where it is, and
  one that is malformed, or over before it comes, is refused;
* a forward_command_controller's topic for the gripper: one position in metres.

A service, `blind`, covers the cameras or uncovers them, `estop` lets the arm stand where it is or
releases it; the topic `clock_offset_ms` sets its clock.

Positions follow a trajectory exactly, up to the joints' speed limit: there are no dynamics here.

    python arm.py '{"clock_offset_ms": -4.0, "drop": 0.2}'
"""

from __future__ import annotations

import array
import contextlib
import heapq
import io
import itertools
import json
import signal
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from PIL import Image as Picture
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64, Float64MultiArray
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory

ARM = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")
PUBLISHED = tuple(sorted(ARM))
FINGER = "finger_joint"
OPEN_M = 0.04  # the finger's position when the gripper is open
SPEED = 2.0  # rad/s, of every joint
HOME = (0.0, -1.2, 1.4, -1.7, -1.5, 0.0)


@dataclass(frozen=True)
class Options:
    """What makes this robot awkward. Latencies are those of the cameras, capture to publication."""

    state_hz: float = 200.0
    camera_hz: float = 20.0
    front_latency_ms: float = 40.0
    wrist_latency_ms: float = 65.0
    jitter_ms: float = 8.0
    drop: float = 0.0  # share of camera frames that are lost
    scale: float = 1.0  # of the speed of every trajectory, as a teach pendant's slider
    clock_offset_ms: float = -4.0
    seed: int = 0
    size: tuple[int, int] = (240, 320)


@dataclass(frozen=True)
class ArmCourse:
    """A trajectory being executed: instants of the robot's clock [n] and positions [n, 6]."""

    at_ns: np.ndarray
    positions: np.ndarray

    def target(self, now_ns: int) -> np.ndarray:
        """Positions [6], linear between the points, the last one after them."""
        return np.array([np.interp(now_ns, self.at_ns, joint) for joint in self.positions.T])


class Arm(Node):
    """Joint states out, trajectories in, images of where it stands."""

    def __init__(self, options: Options) -> None:
        super().__init__("other_arm")
        self.options = options
        self.clock_offset_ms = options.clock_offset_ms
        self.random = np.random.default_rng(options.seed)
        self.lock = threading.Lock()
        self.position = np.array(HOME)
        self.finger = OPEN_M
        self.wanted_finger = OPEN_M
        self.course: ArmCourse | None = None
        self.blind = False
        self.states = self.create_publisher(JointState, "joint_states", qos_profile_sensor_data)
        self.front = self.create_publisher(Image, "front/image_raw", qos_profile_sensor_data)
        self.wrist = self.create_publisher(
            CompressedImage, "wrist/image_raw/compressed", qos_profile_sensor_data
        )
        self.create_subscription(
            JointTrajectory, "arm_controller/joint_trajectory", self.on_trajectory, 10
        )
        self.create_subscription(
            Float64MultiArray, "gripper_controller/commands", self.on_gripper, 10
        )
        self.stopped = False
        self.create_service(SetBool, "blind", self.on_blind)
        self.create_service(SetBool, "estop", self.on_estop)
        self.create_subscription(Float64, "clock_offset_ms", self.on_clock, 10)
        self.create_timer(1.0 / options.state_hz, self.step)
        self.mail: list[tuple[float, int, object, object]] = []  # due, number, publisher, message
        self.mailed = threading.Condition()
        self.count = 0
        threading.Thread(target=self.post, daemon=True).start()
        threading.Thread(target=self.film, daemon=True).start()

    # The robot's clock

    def now_ns(self) -> int:
        return time.time_ns() + round(self.clock_offset_ms * 1e6)

    def stamp(self) -> Time:
        seconds, nanoseconds = divmod(self.now_ns(), 1_000_000_000)
        return Time(sec=seconds, nanosec=nanoseconds)

    # What it obeys

    def on_blind(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self.blind = request.data
        response.success = True
        return response

    def on_estop(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self.stopped = request.data
        response.success = True
        return response

    def on_clock(self, message: Float64) -> None:
        self.clock_offset_ms = message.data

    def on_trajectory(self, message: JointTrajectory) -> None:
        """Stamp 0 is now; times are of this robot's clock."""
        now = self.now_ns()
        begin = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec or now
        at = [begin + p.time_from_start.sec * 10**9 + p.time_from_start.nanosec
              for p in message.points]  # fmt: skip
        if why := self.fault(message, at, now):
            self.get_logger().error(f"trajectory refused: {why}")
            return
        order = [message.joint_names.index(name) for name in ARM]
        rows = np.array([np.array(p.positions)[order] for p in message.points])
        with self.lock:
            self.course = ArmCourse(np.array([now, *at]), np.vstack([self.position, rows]))

    def fault(self, message: JointTrajectory, at: list[int], now: int) -> str:
        """Why nobody can follow this, or ""."""
        if set(message.joint_names) != set(ARM) or len(message.joint_names) != len(ARM):
            return f"it is for {list(message.joint_names)}"
        if not at:
            return "it has no points"
        if any(len(p.positions) != len(ARM) for p in message.points):
            return "a point has not one position a joint"
        if not np.isfinite([p.positions for p in message.points]).all():
            return "a position is not finite"
        if any(later <= earlier for earlier, later in itertools.pairwise(at)):
            return "its times do not rise"
        if at[-1] < now:
            return f"it was over {(now - at[-1]) / 1e6:.0f} ms ago"
        return ""

    def on_gripper(self, message: Float64MultiArray) -> None:
        with self.lock:
            self.wanted_finger = float(np.clip(message.data[0], 0.0, OPEN_M))

    def step(self) -> None:
        period = 1.0 / self.options.state_hz
        with self.lock:
            before = self.position
            if self.course is not None and not self.stopped:
                begin = int(self.course.at_ns[0])
                now = begin + round(self.options.scale * (self.now_ns() - begin))
                wish = self.course.target(now) - before
                self.position = before + np.clip(wish, -SPEED * period, SPEED * period)
            velocity = (self.position - before) / period
            gap = self.wanted_finger - self.finger
            self.finger += float(np.clip(gap, -0.1 * period, 0.1 * period))
            state = dict(zip(ARM, zip(self.position, velocity, strict=True), strict=True))
            finger = self.finger
        arm = JointState(name=list(PUBLISHED))
        arm.header.stamp = self.stamp()
        arm.position = [float(state[name][0]) for name in PUBLISHED]
        arm.velocity = [float(state[name][1]) for name in PUBLISHED]
        self.states.publish(arm)
        hand = JointState(name=[FINGER], position=[finger])
        hand.header.stamp = arm.header.stamp
        self.states.publish(hand)

    # What it sees

    def film(self) -> None:
        """Both cameras, not synchronized: the wrist's is a third of a period behind."""
        period = 1.0 / self.options.camera_hz
        due = time.monotonic()
        while rclpy.ok():
            self.shoot("front")
            time.sleep(period / 3)
            self.shoot("wrist")
            due += period
            time.sleep(max(0.0, due - time.monotonic()))

    def shoot(self, which: str) -> None:
        options = self.options
        with self.lock:
            position = self.position.copy()
        pixels = self.picture(position)
        stamp = self.stamp()
        if which == "front":
            message: object = self.raw(pixels, stamp)
            publisher, latency = self.front, options.front_latency_ms
        else:
            message = self.jpeg(pixels, stamp)
            publisher, latency = self.wrist, options.wrist_latency_ms
        if self.blind or self.random.random() < options.drop:
            return
        late = (latency + self.random.uniform(0.0, options.jitter_ms)) / 1e3
        with self.mailed:
            self.count += 1
            heapq.heappush(self.mail, (time.monotonic() + late, self.count, publisher, message))
            self.mailed.notify()

    def picture(self, position: np.ndarray) -> np.ndarray:
        """uint8 [h, w, 3], RGB: a bar a joint on a noisy ground."""
        height, width = self.options.size
        out = self.random.integers(90, 110, (height, width, 3), dtype=np.uint8)
        for number, angle in enumerate(position):
            length = int(np.clip((angle + np.pi) / (2 * np.pi), 0.02, 1.0) * width)
            top = number * height // len(position)
            out[top + 4 : top + height // len(position) - 4, :length, number % 3] = 220
        return out

    def raw(self, pixels: np.ndarray, stamp: Time) -> Image:
        height, width = pixels.shape[:2]
        message = Image(height=height, width=width, encoding="bgr8", step=3 * width)
        message.header.stamp, message.header.frame_id = stamp, "front_optical_frame"
        message.data = octets(pixels[..., ::-1].tobytes())
        return message

    def jpeg(self, pixels: np.ndarray, stamp: Time) -> CompressedImage:
        buffer = io.BytesIO()
        Picture.fromarray(pixels).save(buffer, "JPEG", quality=90)
        message = CompressedImage(
            format="rgb8; jpeg compressed bgr8", data=octets(buffer.getvalue())
        )
        message.header.stamp, message.header.frame_id = stamp, "wrist_optical_frame"
        return message

    def post(self) -> None:
        """Publishes what is due: frames of the two cameras overtake each other freely."""
        while rclpy.ok():
            with self.mailed:
                if not self.mail:
                    self.mailed.wait(0.1)
                    continue
                left = self.mail[0][0] - time.monotonic()
                if left > 0:
                    self.mailed.wait(left)
                    continue
                _, _, publisher, message = heapq.heappop(self.mail)
            publisher.publish(message)  # type: ignore[attr-defined]


def octets(data: bytes) -> array.array:
    """As rclpy takes them over at once: of bytes it looks at every single one."""
    return array.array("B", data)


def main() -> int:
    given = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    node = Arm(Options(**given))
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: rclpy.try_shutdown())
    with contextlib.suppress(ExternalShutdownException):
        executor.spin()
    return 0


if __name__ == "__main__":
    sys.exit(main())
