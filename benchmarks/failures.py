"""Why did a demo fail? What was true of every step of it, kept and put into a class.

    python benchmarks/demo.py benchmarks/demo/quiet --runs 400 --keep runs/demo
    python benchmarks/failures.py runs/demo            the classes of the runs that failed

A trace is an .npz: ``poses`` float64 [T, names, 7] of the bridge's ground truth with their
``stamps`` int64 [T] and ``names``; ``actions`` float64 [N, 7], ``sent`` and ``observed`` int64 [N]
and ``kinds`` [N] of the policy's commands.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vla_ros.ros.common.peer import Peer

Trace = dict[str, npt.NDArray[Any]]

FINGERS = ("finger_left", "finger_right")
AREA = ((-0.10, -0.28), (0.20, 0.24))  # m, from where the hand can take a cube
LIFTED, FALLEN = 0.045, 0.030  # m, height of a cube in the hand, and of one that lies
TOUCHING = 0.062  # m between the middles of two cubes of which one is in the fingers' way
BESIDE = 0.06  # m from the target's middle: let go there it is no drop


class TraceListener(Peer):
    """Listener to the ground truth and the commands of one graph; use it with `with`."""

    def __init__(self, domain: int) -> None:
        super().__init__("trace", domain)
        from vla_ros.msg import ActionCommand, NamedPoses
        from vla_ros.ros.common import qos
        from vla_ros.ros.common.listening import listen

        self._poses: list[tuple[int, npt.NDArray[np.float64]]] = []
        self._names: list[str] = []
        self._commands: list[tuple[int, int, int, list[float]]] = []
        deep = qos.copy
        listen(self.node, NamedPoses, "ground_truth", self._truth, deep(qos.STATE, 100))
        listen(self.node, ActionCommand, "policy/action", self._command, deep(qos.ACTION, 1000))
        self.start()

    def _truth(self, message: Any) -> None:
        rows = [
            (p.position.x, p.position.y, p.position.z,
             p.orientation.x, p.orientation.y, p.orientation.z, p.orientation.w)
            for p in message.poses
        ]  # fmt: skip
        with self.bell:
            self._names = list(message.names)
            self._poses.append((_ns(message.header.stamp), np.array(rows)))

    def _command(self, message: Any) -> None:
        sent, observed = _ns(message.header.stamp), _ns(message.observation_stamp)
        with self.bell:
            self._commands.append((sent, observed, int(message.kind), list(message.action)))

    def trace(self) -> Trace:
        """What came so far."""
        with self.bell:
            poses, commands = list(self._poses), list(self._commands)
        sent, observed, kinds, actions = zip(*commands, strict=True) if commands else ((),) * 4
        return {
            "names": np.array(self._names),
            "stamps": np.array([stamp for stamp, _ in poses], np.int64),
            "poses": np.array([rows for _, rows in poses]),
            "sent": np.array(sent, np.int64),
            "observed": np.array(observed, np.int64),
            "kinds": np.array(kinds, np.int64),
            "actions": np.array(actions),
        }


def _ns(stamp: Any) -> int:
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def class_of(trace: Trace, thing: str = "red_cube", target: str = "plate") -> tuple[str, str]:
    """Class of a failure to put ``thing`` on ``target``, and its figures."""
    names = trace["names"].tolist()
    if not len(trace["poses"]):
        return "nothing seen", ""
    places = trace["poses"][:, :, :3]
    cube, hand, goal = (places[:, names.index(name)] for name in (thing, "gripper", target))
    (low_x, low_y), (high_x, high_y) = AREA
    x, y, _ = cube[-1]
    if not (low_x <= x <= high_x and low_y <= y <= high_y):
        return "out of reach", f"at {x:.2f}, {y:.2f}"
    others = [n for n in range(len(names)) if names[n].endswith("_cube") and names[n] != thing]
    nearest = float(np.linalg.norm(places[-1, others, :2] - cube[-1, :2], axis=1).min())
    near = np.linalg.norm(hand[:, :2] - cube[:, :2], axis=1) < 0.06
    if cube[:, 2].max() < LIFTED:
        way = "beside another cube" if nearest < TOUCHING else "alone"
        return f"never lifted, {way}", f"{1000 * nearest:.0f} mm from the next, hand near it in" \
            f" {near.sum()} of {len(near)} steps"  # fmt: skip
    heights, falls, top = cube[:, 2], [], 0.0
    for step, height in enumerate(heights):
        top = max(top, float(height)) if height > LIFTED else top
        if top and height < FALLEN:
            if np.linalg.norm(cube[step, :2] - goal[step, :2]) > BESIDE:
                falls.append(top)
            top = 0.0
    if falls:
        return "dropped", f"{len(falls)} times, from {100 * max(falls):.0f} cm at the most"
    return "other", f"cube at {1000 * heights[-1]:.0f} mm height"


def main() -> int:
    """Prints a line a failed run and the count of each class."""
    counts: Counter[str] = Counter()
    for path in sorted(Path(sys.argv[1]).glob("*-failure.npz")):
        with np.load(path) as found:
            name, figures = class_of(dict(found))
        counts[name] += 1
        print(f"{path.name}: {name} ({figures})")
    for name, count in counts.most_common():
        print(f"{count:4d}  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
