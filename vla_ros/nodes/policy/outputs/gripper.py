"""Grippers as goals of control_msgs: GripperCommand or ParallelGripperCommand."""

from __future__ import annotations

import importlib
from typing import Any

from rclpy.action import ActionClient
from rclpy.node import Node

from vla_ros.core import Command
from vla_ros.nodes.policy.outputs.base import Robot

ACTIONS = ("GripperCommand", "ParallelGripperCommand")
_LEAST = 1e-3  # of an opening: less is no other goal


def control_msgs() -> Any:
    """The actions of control_msgs. ValueError, in one line, where it cannot be imported."""
    try:
        return importlib.import_module("control_msgs.action")
    except ImportError as error:
        raise ValueError(
            f"outputs 'gripper' needs the ROS package control_msgs ({error}): install it, or use"
            " ~/gripper_positions of 'trajectory' and 'positions', or ~/gripper of 'twist'"
        ) from None


class GripperOutput:
    """A goal to the action server `~/<the gripper's name>_cmd` whenever its number has changed.

    The gate has held it still by then: see ``gripper_hysteresis`` and ``gripper_dwell_s``. A goal
    replaces the one before it; what becomes of it is the controller's to say.
    """

    def __init__(self, robot: Robot, action: str, max_effort: float) -> None:
        self._robot = robot
        self._kind = getattr(control_msgs(), action)
        self._parallel = action == "ParallelGripperCommand"
        self._max_effort = max_effort
        self._clients: list[ActionClient] = []
        self._told: list[float] = []

    def open(self, node: Node) -> None:
        space = self._robot.limits.space
        names = [space.names[place] for place in space.grippers]
        self._clients = [ActionClient(node, self._kind, f"~/{name}_cmd") for name in names]
        self._told = [float("nan")] * len(names)

    def close(self) -> None:
        for client in self._clients:
            client.destroy()
        self._clients = []

    def command(self, command: Command) -> None:
        space = self._robot.limits.space
        positions = self._robot.openings(command.action)
        for i, (client, place) in enumerate(zip(self._clients, space.grippers, strict=True)):
            opening = float(command.action[place])
            if abs(opening - self._told[i]) < _LEAST:
                continue
            if not client.server_is_ready():
                self._robot.warn("gripper", f"nobody takes goals for {space.names[place]!r}")
                continue
            self._told[i] = opening
            client.send_goal_async(self._goal(space.names[place], positions[i]))

    def rest(self, now_ns: int) -> None:
        """Nothing: it stays as it is."""

    def _goal(self, name: str, position: float) -> Any:
        goal = self._kind.Goal()
        if self._parallel:
            goal.command.name, goal.command.position = [name], [position]
            goal.command.effort = [self._max_effort] if self._max_effort else []
        else:
            goal.command.position, goal.command.max_effort = position, self._max_effort
        return goal
