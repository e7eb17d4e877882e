"""What an output is, and what it knows of the robot it speaks to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from rclpy.node import Node

from vla_ros.core import Command, Floats
from vla_ros.safety import Limits


@dataclass(frozen=True, slots=True)
class Robot:
    """``limits`` have the action space and the period, ``frame_id`` is the frame of displacements
    and poses. ``where``: the measured place of every number, float64 [D], grippers 0; None where
    nobody has said so of late. ``gripper_ends``: of each gripper the values that its controller
    takes for 0 (closed) and 1 (open). ``warn(kind, text)`` logs, throttled by kind."""

    limits: Limits
    frame_id: str
    where: Callable[[], Floats | None]
    gripper_ends: tuple[tuple[float, float], ...]
    warn: Callable[[str, str], None]

    def moving(self, action: Floats) -> Floats:
        """The numbers that move the arms, float64 [..., M], of an action [..., D]."""
        out: Floats = action[..., list(self.limits.space.motion)]
        return out

    @property
    def names(self) -> list[str]:
        """Of what :meth:`moving` gives."""
        return [self.limits.space.names[place] for place in self.limits.space.motion]

    def here(self) -> Floats | None:
        """Where the joints are, float64 [M]; None (and a warning) where nobody has said so."""
        where = self.where()
        if where is None:
            self.warn("where", "nothing fresh on joint_states: no output to the joints")
            return None
        return self.moving(where)

    def openings(self, action: Floats) -> list[float]:
        """Each gripper's number as its controller takes it."""
        values = zip(self.limits.space.grippers, self.gripper_ends, strict=True)
        return [float(np.interp(action[place], (0.0, 1.0), ends)) for place, ends in values]


class Output(Protocol):
    """Made for one robot, alive from :meth:`open` to :meth:`close`. Not thread-safe: the calls come
    under the control loop's lock."""

    def open(self, node: Node) -> None:
        """Make the publishers."""
        ...

    def close(self) -> None:
        """Take them away."""
        ...

    def command(self, command: Command) -> None:
        """A command has passed the gate, one a control period."""
        ...

    def rest(self, now_ns: int) -> None:
        """A period without a command, or none will come: what was set in motion stops, if it has
        not been told so yet."""
        ...


class Publishers:
    """Makes publishers and takes them away together."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._all: list[Any] = []

    def open(self, node: Node) -> None:
        self._node = node

    def make(self, kind: Any, topic: str, profile: Any) -> Any:
        assert self._node is not None
        self._all.append(self._node.create_publisher(kind, topic, profile))
        return self._all[-1]

    def close(self) -> None:
        for publisher in self._all:
            assert self._node is not None
            self._node.destroy_publisher(publisher)
        self._all.clear()
