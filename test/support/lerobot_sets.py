"""Run by LeRobot's Python: small data sets as somebody else might have made them.

    python -I lerobot_sets.py FOLDER

cartesian: two cameras of other names and sizes, 6 numbers of state, 12 fps, gripper -1..1.
plain: one camera, gripper 0..1. joints: an action of 6 joints. blind: no camera. old: cartesian in
the format v2.1, as LeRobot 0.3 wrote it.
"""

import json
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


def written(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def statistics(values, axes):
    kept = {
        n: getattr(values, n)(axis=axes, keepdims=len(axes) > 1)
        for n in ("min", "max", "mean", "std")
    }
    kept = {n: (one[0] if len(axes) > 1 else one).tolist() for n, one in kept.items()}
    return {**kept, "count": [len(values)]}


def as_v21(source, to):
    """One file an episode, and what is known of them in lines of JSON."""
    import av
    import pandas as pd

    info = json.loads((source / "meta" / "info.json").read_text())
    dataset = LeRobotDataset("someone/set", root=source, return_uint8=True)
    videos = [name for name, one in info["features"].items() if one["dtype"] == "video"]
    numbers = [name for name in info["features"] if name not in videos]
    items = [dataset[i] for i in range(len(dataset))]
    (to / "meta").mkdir(parents=True)
    episodes, known = [], []
    for episode in range(info["total_episodes"]):
        own = [one for one in items if int(one["episode_index"]) == episode]
        tables = {n: np.stack([np.asarray(one[n]) for one in own]) for n in numbers}
        path = to / f"data/chunk-000/episode_{episode:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame({n: list(t) for n, t in tables.items()}).to_parquet(path)
        stats = {n: statistics(t.reshape(len(t), -1), (0,)) for n, t in tables.items()}
        for name in videos:
            film = np.stack([np.asarray(one[name]) for one in own])  # [T, 3, H, W]
            path = to / f"videos/chunk-000/{name}/episode_{episode:06d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            with av.open(str(path), "w") as file:
                stream = file.add_stream("libx264", rate=info["fps"])
                stream.width, stream.height, stream.pix_fmt = (
                    film.shape[3],
                    film.shape[2],
                    "yuv420p",
                )
                for image in film.transpose(0, 2, 3, 1):
                    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), "rgb24")
                    file.mux(stream.encode(frame))
                file.mux(stream.encode(None))
            stats[name] = statistics(film / 255.0, (0, 2, 3))
        episodes.append({"episode_index": episode, "tasks": [own[0]["task"]], "length": len(own)})
        known.append({"episode_index": episode, "stats": stats})
    written(to / "meta" / "episodes.jsonl", episodes)
    written(to / "meta" / "episodes_stats.jsonl", known)
    written(to / "meta" / "tasks.jsonl", [{"task_index": 0, "task": items[0]["task"]}])
    chunk, episode = "chunk-{episode_chunk:03d}", "episode_{episode_index:06d}"
    info |= {"codebase_version": "v2.1", "total_chunks": 1, "chunks_size": 1000,
             "total_videos": len(videos) * len(episodes), "total_tasks": 1,
             "data_path": f"data/{chunk}/{episode}.parquet",
             "video_path": f"videos/{chunk}/{{video_key}}/{episode}.mp4"}  # fmt: skip
    for of in ("data_files_size_in_mb", "video_files_size_in_mb"):
        info.pop(of, None)
    (to / "meta" / "info.json").write_text(json.dumps(info))


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
    as_v21(to / "cartesian", to / "old")


if __name__ == "__main__":
    main()
