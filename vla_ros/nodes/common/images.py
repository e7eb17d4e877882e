"""Where a camera's pictures are: raw, or compressed beside them as image_transport has it."""

from __future__ import annotations

from typing import Any

from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image

TRANSPORTS = ("raw", "compressed")


def image_topic(node: Node, base: str, transport: str) -> tuple[Any, str]:
    """Message type and topic of a camera.

    ``base:=X`` moves ``base/compressed`` to ``X/compressed`` too, as image_transport's own
    subscribers do; a remapping of ``base/compressed`` itself wins.
    """
    if transport == "raw":
        return Image, base
    name = f"{base}/{transport}"
    given = node.resolve_topic_name(name)
    if given != node.resolve_topic_name(name, only_expand=True):
        return CompressedImage, given
    return CompressedImage, f"{node.resolve_topic_name(base)}/{transport}"
