"""From separate streams to one observation: the parts must be of the same instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from vla_ros.core import Floats, Image, Observation, Pose
from vla_ros.timing import Moment

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stamped(Generic[T]):
    """The newest message of a stream: its stamp, when it came, what it said."""

    stamp_ns: int
    received: Moment
    value: T


class Assembler:
    """Joins the newest camera image with what else the policy needs.

    A part joins an image whose stamp differs by at most ``slop_ns``. Half a control period
    lets cameras run unsynchronised and still keeps a frame from being paired with the one
    before it, whichever of the messages arrives first. Not thread-safe.
    """

    def __init__(self, slop_ns: int, *, wrist: bool, proprio: bool, poses: bool) -> None:
        self._slop_ns = slop_ns
        self._needs = {"wrist_image": wrist, "joint_states": proprio, "ground_truth": poses}
        self._image: Stamped[Image] | None = None
        self._wrist: Stamped[Image] | None = None
        self._proprio: Stamped[Floats] | None = None
        self._poses: Stamped[Mapping[str, Pose]] | None = None

    def image(self, part: Stamped[Image]) -> Observation | None:
        """A new main camera image; returns the observation if nothing else is missing."""
        self._image = part
        return self._complete()

    def wrist(self, part: Stamped[Image]) -> Observation | None:
        self._wrist = part
        return self._complete()

    def proprio(self, part: Stamped[Floats]) -> Observation | None:
        self._proprio = part
        return self._complete()

    def poses(self, part: Stamped[Mapping[str, Pose]]) -> Observation | None:
        self._poses = part
        return self._complete()

    def missing(self) -> list[str]:
        """Topics whose newest message does not fit the newest image."""
        if self._image is None:
            return ["image"]
        parts = {
            "wrist_image": self._wrist,
            "joint_states": self._proprio,
            "ground_truth": self._poses,
        }
        return [name for name, part in parts.items() if self._needs[name] and not self._fits(part)]

    def _fits(self, part: Stamped[Any] | None) -> bool:
        if part is None or self._image is None:
            return False
        return abs(part.stamp_ns - self._image.stamp_ns) <= self._slop_ns

    def _complete(self) -> Observation | None:
        """The observation, once: the image is used up by it."""
        image = self._image
        if image is None or self.missing():
            return None
        self._image = None
        wrist = self._wrist if self._needs["wrist_image"] else None
        proprio = self._proprio if self._needs["joint_states"] else None
        poses = self._poses if self._needs["ground_truth"] else None
        return Observation(
            stamp_ns=min(image.stamp_ns, wrist.stamp_ns if wrist else image.stamp_ns),
            received_ns=image.received.now_ns,
            received_steady_ns=image.received.steady_ns,
            image=image.value,
            wrist_image=wrist.value if wrist else None,
            proprio=proprio.value if proprio else None,
            poses=poses.value if poses else {},
        )
