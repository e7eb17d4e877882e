"""What a running graph offers a policy: cameras, joint states, controllers, the description.

Apart from the survey that fills it, since a proposal is made of it where there is no ROS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from vla_ros.core.types import Image


@dataclass(frozen=True, slots=True)
class SeenCamera:
    """A topic of images. ``topic``: without /compressed, ``transport`` raw or compressed.
    ``rate_hz``: of receipt, 0 where no two images came. ``late_s``: receipt after the stamp."""

    topic: str
    transport: str = "raw"
    width: int = 0
    height: int = 0
    encoding: str = ""
    rate_hz: float = 0.0
    reliable: bool = False
    publishers: tuple[str, ...] = ()
    late_s: float = 0.0
    image: Image | None = None

    def __str__(self) -> str:
        size = f"{self.width}x{self.height} {self.encoding} at {self.rate_hz:.3g} Hz"
        if not self.width:
            size = "no image came"
        how = "reliable" if self.reliable else "best effort"
        return f"{self.transport} {size}, {how}, by {', '.join(self.publishers)}"


@dataclass(frozen=True, slots=True)
class SeenJoints:
    """A topic of joint states. ``names``: in the order of the messages."""

    topic: str
    names: tuple[str, ...]
    rate_hz: float = 0.0
    publishers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeenController:
    """A topic, or an action, that takes commands, by its message's type: one of :data:`TAKEN`.
    ``joints``: those of its node's parameter ``joints``, () where it has none."""

    topic: str
    kind: str
    nodes: tuple[str, ...] = ()
    joints: tuple[str, ...] = ()


#: Type of commands -> output of the policy node, and the topic of ours that becomes it.
TAKEN = {
    "trajectory_msgs/msg/JointTrajectory": ("trajectory", "~/joint_trajectory"),
    "sensor_msgs/msg/JointState": ("joint_state", "~/joint_commands"),
    "std_msgs/msg/Float64MultiArray": ("positions", "~/positions"),
    "geometry_msgs/msg/TwistStamped": ("twist", "~/twist"),
}
#: Actions of a gripper's controller.
GRIPPERS = {
    "control_msgs/action/GripperCommand": "GripperCommand",
    "control_msgs/action/ParallelGripperCommand": "ParallelGripperCommand",
}


@dataclass(frozen=True, slots=True)
class SeenGraph:
    """A graph as a survey saw it. ``description``: the URDF, "" where nobody publishes one.
    ``policies``: nodes that command already. ``why``: nothing could be seen, in a line."""

    cameras: tuple[SeenCamera, ...] = ()
    joints: tuple[SeenJoints, ...] = ()
    controllers: tuple[SeenController, ...] = ()
    description: str = field(default="", repr=False)
    policies: tuple[str, ...] = ()
    why: str = ""

    def taking(self, output: str) -> list[SeenController]:
        """The controllers for an output of the policy node."""
        return [one for one in self.controllers if TAKEN.get(one.kind, ("",))[0] == output]

    def lines(self) -> Iterator[str]:
        """What was seen, a line each."""
        for camera in self.cameras:
            yield f"camera      {camera.topic}: {camera}"
        for joints in self.joints:
            by = ", ".join(joints.publishers)
            yield (f"joints      {joints.topic}: {', '.join(joints.names)} at {joints.rate_hz:.3g}"
                   f" Hz, by {by}")  # fmt: skip
        for one in self.controllers:
            by = f", {', '.join(one.nodes)}" if one.nodes else ""
            yield f"controller  {one.topic}: {one.kind.rpartition('/')[2]}{by}"
        if self.description:
            yield f"URDF        robot_description, {len(self.description)} characters"
