"""An arm behind ros2_controllers' cartesian_trajectory_controller, as its source takes messages.

Of a message: points, the base frame or none, one transform a point, times that increase; the others
are ignored there with a warning, and kept here in ``refused``. The arm goes from where it is
through the poses, translation and rotation at their times, counted from the stamp, or from now
where that is 0; behind the last pose it stands. Here on chords instead of the controller's spline,
and without joints.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped
from trajectory_msgs.msg import MultiDOFJointTrajectory

from support.motion_poses import PosePlan, poses_of
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import set_time, stamp_of

PERIOD_S = 0.01


class CartesianController:
    """Controller and arm from construction until :meth:`end`; it publishes measured_pose."""

    def __init__(self, ros: Any, position: Any, quaternion: Any, base: str = "base_link") -> None:
        self._ros, self._base, self._lock = ros, base, threading.Lock()
        begin = np.array([time.time(), time.time() + 1e-9])
        self._plan = PosePlan(begin, np.array([position] * 2), np.array([quaternion] * 2))
        self.messages: list[MultiDOFJointTrajectory] = []
        self.refused: list[str] = []
        #: where the arm was, one a period: time, s, position, quaternion
        self.poses: list[tuple[float, np.ndarray, np.ndarray]] = []
        topic = "policy/cartesian_reference"
        ros.node.create_subscription(MultiDOFJointTrajectory, topic, self._take, 50)
        self._measured = ros.publisher(PoseStamped, "measured_pose", qos.STATE)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _take(self, message: MultiDOFJointTrajectory) -> None:
        self.messages.append(message)
        if message.header.frame_id not in ("", self._base):
            self.refused.append(f"frame {message.header.frame_id!r}")
        elif not message.points or any(len(point.transforms) != 1 for point in message.points):
            self.refused.append("a point has no transform")
        else:
            times, positions, quaternions = poses_of(message)
            if (np.diff(times, prepend=0.0) <= 0).any():
                self.refused.append(f"times {times}")
                return
            begin = stamp_of(message.header.stamp) / 1e9 or time.time()
            with self._lock:
                place, turn = self._plan.where(begin)
                at = np.array([begin, *(begin + times)])
                self._plan = PosePlan(
                    at, np.array([place, *positions]), np.array([turn, *quaternions])
                )

    def _run(self) -> None:
        while not self._done.wait(PERIOD_S):
            now_ns = time.time_ns()
            with self._lock:
                place, turn = self._plan.where(now_ns / 1e9)
            self.poses.append((now_ns / 1e9, place, turn))
            message = PoseStamped()
            message.header.frame_id = self._base
            set_time(message.header.stamp, now_ns)
            position, rotation = message.pose.position, message.pose.orientation
            position.x, position.y, position.z = place.tolist()
            rotation.x, rotation.y, rotation.z, rotation.w = turn.tolist()
            self._measured.publish(message)

    def end(self) -> None:
        self._done.set()
        self._thread.join()
