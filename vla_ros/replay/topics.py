"""Which topic of a bag is what: by its usual name, by its type, or as the user says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vla_ros.replay.bag import BagTopic
from vla_ros.replay.errors import BagError

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED = "sensor_msgs/msg/CompressedImage"
#: role → the types that its topic may have. Roles are the names of the graph.
ROLES: dict[str, tuple[str, ...]] = {
    "image": (IMAGE, COMPRESSED),
    "wrist_image": (IMAGE, COMPRESSED),
    "joint_states": ("sensor_msgs/msg/JointState",),
    "ground_truth": ("vla_ros/msg/NamedPoses",),
    "instruction": ("std_msgs/msg/String",),
    "policy/action": ("vla_ros/msg/ActionCommand",),
    "policy/action_chunk": ("vla_ros/msg/ActionChunk",),
}


@dataclass(frozen=True, slots=True)
class Picked:
    """The topics of a bag by role. A role that the bag does not have is not in it."""

    topics: Mapping[str, BagTopic]

    def name(self, role: str) -> str | None:
        """The topic of a role."""
        topic = self.topics.get(role)
        return topic.name if topic else None

    @property
    def compressed(self) -> bool:
        """Whether the camera's images are compressed."""
        return self.topics["image"].kind == COMPRESSED


def parse_remaps(
    items: Iterable[str], roles: Mapping[str, tuple[str, ...]] = ROLES
) -> dict[str, str]:
    """Turn ["image=/camera/color", ...] into {"image": "/camera/color"}. BagError."""
    found = {}
    for item in items:
        role, equals, topic = item.replace(":=", "=").partition("=")
        if not (role and equals and topic):
            raise BagError(f"-r {item}: write ROLE=TOPIC, such as image=/camera/image_raw")
        if role not in roles:
            raise BagError(f"-r {item}: no role {role!r}; there are {', '.join(roles)}")
        found[role] = topic if topic.startswith("/") else f"/{topic}"
    return found


def pick(
    topics: Iterable[BagTopic],
    remaps: Mapping[str, str],
    roles: Mapping[str, tuple[str, ...]] = ROLES,
) -> Picked:
    """The topic of every role: the one given, else the one of the usual name, else the only
    one whose name ends so, and for the camera the only one of its type.

    BagError: no camera, several that may be it, or a topic given that is not there or not of
    the right type.
    """
    there = {topic.name: topic for topic in topics if topic.count}
    found: dict[str, BagTopic] = {}
    for role, kinds in roles.items():
        if role in remaps:
            found[role] = _given(role, remaps[role], kinds, there)
            continue
        fitting = [topic for topic in there.values() if topic.kind in kinds]
        topic = _usual(role, fitting)
        if topic is not None:
            found[role] = topic
    if "image" not in found:
        taken = {topic.name for topic in found.values()}
        found["image"] = _only_camera([t for t in there.values() if t.name not in taken], there)
    if roles is ROLES:  # one node hears them all
        _check_transport(found)
    return Picked(found)


def _given(role: str, name: str, kinds: tuple[str, ...], there: Mapping[str, BagTopic]) -> BagTopic:
    if name not in there:
        raise BagError(f"the bag has no topic {name} for {role}; it has {_list(there)}")
    topic = there[name]
    if topic.kind not in kinds:
        raise BagError(f"{name} is a {topic.kind}; {role} must be {' or '.join(kinds)}")
    return topic


def _usual(role: str, fitting: list[BagTopic]) -> BagTopic | None:
    for ending in (role, f"{role}/compressed"):
        exact = [topic for topic in fitting if topic.name == f"/{ending}"]
        others = [topic for topic in fitting if topic.name.endswith(f"/{ending}")]
        if exact or len(others) == 1:
            return (exact or others)[0]
    return None


def _only_camera(free: list[BagTopic], there: Mapping[str, BagTopic]) -> BagTopic:
    cameras = [topic for topic in free if topic.kind in ROLES["image"]]
    if not cameras:
        raise BagError(f"the bag has no camera images; it has {_list(there)}")
    if len(cameras) > 1:
        names = ", ".join(topic.name for topic in cameras)
        raise BagError(f"several cameras ({names}): choose one with -r image=TOPIC")
    return cameras[0]


def _check_transport(found: Mapping[str, BagTopic]) -> None:
    wrist = found.get("wrist_image")
    if wrist is not None and wrist.kind != found["image"].kind:
        raise BagError(
            f"{found['image'].name} is a {found['image'].kind} and {wrist.name} a {wrist.kind}:"
            " both cameras must be raw or both compressed"
        )


def _list(there: Mapping[str, BagTopic]) -> str:
    names = [f"{topic.name} ({topic.kind})" for topic in there.values()]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more
