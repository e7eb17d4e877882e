"""A gripper's controller as far as its action server goes.

    python gripper_controller.py /policy/gripper_cmd GripperCommand reject,succeed

The n-th goal is met by the n-th of these answers, all later ones by the last: reject, succeed,
abort, or stall (aborted, because the fingers stand still on something). Prints a line a goal: the
steady time in ns, the position and what was answered.
"""

from __future__ import annotations

import importlib
import sys
import time

import rclpy
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.executors import ExternalShutdownException


def main() -> None:
    name, kind, words = sys.argv[1:]
    action = getattr(importlib.import_module("control_msgs.action"), kind)
    answers = words.split(",")
    rclpy.init()
    node = rclpy.create_node("controller")

    def decide(goal):
        answer = answers[0] if len(answers) == 1 else answers.pop(0)
        taken.append(answer)
        position = goal.command.position
        first = position if isinstance(position, float) else position[0]
        print(f"goal {time.monotonic_ns()} {first:g} {answer}", flush=True)
        return GoalResponse.REJECT if answer == "reject" else GoalResponse.ACCEPT

    def execute(handle):
        answer = taken[-1]
        if answer == "succeed":
            handle.succeed()
        else:
            handle.abort()
        return action.Result(stalled=answer == "stall")

    taken: list[str] = []
    ActionServer(
        node,
        action,
        name,
        execute,
        goal_callback=decide,
        cancel_callback=lambda _: CancelResponse.ACCEPT,
    )
    print("ready", flush=True)
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        node.destroy_node()


if __name__ == "__main__":
    main()
