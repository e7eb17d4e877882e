"""Quality of service, one profile a kind of topic, so both ends always match."""

from rclpy.duration import Duration
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSProfile,
    ReliabilityPolicy,
)


def _profile(
    depth: int,
    reliability: ReliabilityPolicy = ReliabilityPolicy.RELIABLE,
    durability: DurabilityPolicy = DurabilityPolicy.VOLATILE,
) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=reliability,
        durability=durability,
    )


def copy(profile: QoSProfile, depth: int = 0) -> QoSProfile:
    """A profile of its own, with another queue length where ``depth`` gives one: for a change, or
    for a reader that must miss nothing."""
    return _profile(depth or profile.depth, profile.reliability, profile.durability)


#: Images in: only the newest counts, and any camera driver's writer matches.
IMAGE_SUB = _profile(1, ReliabilityPolicy.BEST_EFFORT)
#: Images in that are joined to others: an older one may be the one that fits.
PART_SUB = _profile(5, ReliabilityPolicy.BEST_EFFORT)
#: Images in from reliable writers: lost fragments come again, meanwhile images wait.
RELIABLE_IMAGE_SUB = _profile(10)
#: Packets of video in: each is needed for those after it.
PACKET_SUB = _profile(100, ReliabilityPolicy.BEST_EFFORT)
RELIABLE_PACKET_SUB = _profile(100)
#: Images out: a reliable writer serves best-effort and reliable readers.
IMAGE_PUB = _profile(1)
#: Joint states and ground truth out, ground truth in.
STATE = _profile(5)
#: A robot's own state in: any driver's writer matches, and 200 Hz may wait for a slow callback.
STATE_SUB = _profile(50, ReliabilityPolicy.BEST_EFFORT)
#: Commands. Volatile: a late joiner must never be given an old command.
ACTION = _profile(10)
#: Instruction, status, episode: the newest one is for late joiners too.
LATCHED = _profile(1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
#: The policy's status: LATCHED, and the middleware itself reports within LEASE_S that its writer's
#: process is gone or stands still, to every reader that asks for as much.
LEASE_S = 2.0
STATUS = _profile(1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
STATUS.liveliness = LivelinessPolicy.AUTOMATIC
STATUS.liveliness_lease_duration = Duration(seconds=LEASE_S)
#: Events, each of which counts, also where another one follows at once; in from any writer.
EVENT = _profile(10)
EVENT_SUB = _profile(10, ReliabilityPolicy.BEST_EFFORT)
#: LATCHED, for a reader that must miss none of the changes.
EVERY_CHANGE = _profile(10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
#: Transforms, as tf2 has them.
TRANSFORMS = _profile(100)
#: Figures that move nothing.
REPORT = _profile(10)
