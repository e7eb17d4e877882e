"""A robot on Cyclone DDS beside our nodes: a camera, a person and a listener, by PyPI's cyclonedds.

    python cyclone_peer.py INSTRUCTION COMMANDS DOMAIN

Publishes `image` at 20 Hz and `instruction`, and reads `policy/action_chunk`, whose messages it
counts; prints what it has heard once there were so many, and ends with 0; with 1 after 30 s. No ROS
is imported: types and names are those that ROS 2 gives to DDS (rt/NAME, PKG::msg::dds_::TYPE_).
"""

import sys
import time
from dataclasses import dataclass

from cyclonedds.core import Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import float64, int32, sequence, uint8, uint32
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

LIMIT_S = 30.0
SIDE = 64


@dataclass
class Time(IdlStruct, typename="builtin_interfaces::msg::dds_::Time_"):
    sec: int32
    nanosec: uint32


@dataclass
class Header(IdlStruct, typename="std_msgs::msg::dds_::Header_"):
    stamp: Time
    frame_id: str


@dataclass
class Image(IdlStruct, typename="sensor_msgs::msg::dds_::Image_"):
    header: Header
    height: uint32
    width: uint32
    encoding: str
    is_bigendian: uint8
    step: uint32
    data: sequence[uint8]


@dataclass
class String(IdlStruct, typename="std_msgs::msg::dds_::String_"):
    data: str


@dataclass
class Vector3(IdlStruct, typename="geometry_msgs::msg::dds_::Vector3_"):
    x: float64
    y: float64
    z: float64


@dataclass
class Twist(IdlStruct, typename="geometry_msgs::msg::dds_::Twist_"):
    linear: Vector3
    angular: Vector3


@dataclass
class TwistStamped(IdlStruct, typename="geometry_msgs::msg::dds_::TwistStamped_"):
    header: Header
    twist: Twist


def main(instruction: str, commands: int, domain: int) -> int:
    """Exit status."""
    participant = DomainParticipant(domain)
    best = Qos(Policy.Reliability.BestEffort, Policy.History.KeepLast(5))
    kept = Qos(
        Policy.Reliability.Reliable(duration(seconds=1)),
        Policy.Durability.TransientLocal,
        Policy.History.KeepLast(1),
    )
    camera = DataWriter(participant, Topic(participant, "rt/image", Image), best)
    person = DataWriter(participant, Topic(participant, "rt/instruction", String), kept)
    robot = DataReader(participant, Topic(participant, "rt/policy/twist", TwistStamped), best)
    person.write(String(instruction))
    heard, begun, number = 0, time.monotonic(), 0
    while heard < commands and time.monotonic() - begun < LIMIT_S:
        now = time.time_ns()
        stamp = Time(now // 10**9, now % 10**9)
        data = list(bytes([number % 251, *range(255)]) * (SIDE * SIDE * 3 // 256))
        camera.write(Image(Header(stamp, "camera"), SIDE, SIDE, "rgb8", 0, 3 * SIDE, data))
        number += 1
        time.sleep(0.05)
        heard += sum(twist.twist.linear.x > 0 for twist in robot.take(100))
    print(f"heard {heard} moving twists after {number} images", flush=True)
    return 0 if heard >= commands else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
