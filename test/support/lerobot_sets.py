"""Run by LeRobot's Python: small data sets as somebody else might have made them.

    python -I lerobot_sets.py FOLDER

cartesian: two cameras of other names and sizes, 6 numbers of state, 12 fps, gripper -1..1.
plain: one camera, gripper 0..1. joints: an action of 6 joints. blind: no camera.
"""

import sys
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

POSE = ["dx", "dy", "dz", "droll", "dpitch", "dyaw", "grip"]
JOINTS = [f"j{i}" for i in range(6)]


def camera(height, width):
    return {"dtype": "video", "shape": (height, width, 3), "names": ["height", "width", "channels"]}


def numbers(names):
    return {"dtype": "float32", "shape": (len(names),), "names": names}


def make(root, fps, features, lengths, gripper=(0.0, 1.0)):
    dataset = LeRobotDataset.create("someone/set", fps, features, root=root, use_videos=True)
    rng = np.random.default_rng(0)
    for length in lengths:
        for i in range(length):
            frame = {"task": "fold the blue towel"}
            for name, one in features.items():
                if one["dtype"] == "video":
                    frame[name] = rng.integers(0, 255, one["shape"], dtype=np.uint8)
                else:
                    frame[name] = (0.02 * rng.normal(size=one["shape"])).astype(np.float32)
                    if name == "action" and one["shape"] == (7,):
                        frame[name][6] = gripper[i % 2]
            dataset.add_frame(frame)
        dataset.save_episode()
    dataset.finalize()


def main():
    to = Path(sys.argv[1])
    images = {"observation.images.wrist_cam": camera(120, 160),
              "observation.images.front": camera(96, 128)}  # fmt: skip
    state = {"observation.state": numbers(JOINTS)}
    pose = {"action": numbers(POSE)}
    make(to / "cartesian", 12, images | state | pose, (6, 4), gripper=(-1.0, 1.0))
    make(to / "plain", 10, {"observation.images.top": camera(96, 96)} | pose, (12,))
    make(to / "joints", 30, images | state | {"action": numbers(JOINTS)}, (3,))
    make(to / "blind", 30, state | pose, (3,))


if __name__ == "__main__":
    main()
