"""The process in LeRobot's Python: LeRobot's own code writes a data set, or reads one.

It imports of ours the wire alone. Standard output is the pipe; what libraries print goes to
standard error.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vla_ros.data.lerobot.wire import Message, receive, send

_OWN = ("timestamp", "frame_index", "episode_index", "index", "task_index")  # LeRobot's columns


def main() -> int:
    """Serve one request, "create" or "read"; returns the exit status."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    try:
        first = receive(requests)
        if first is None:
            return 0
        try:
            from lerobot.datasets.lerobot_dataset import (  # type: ignore[import-not-found, unused-ignore]
                LeRobotDataset,
            )
        except ImportError as error:
            send(out, Message("missing", {"line": _line(error)}))
            return 1
        serve: Callable[[Any, Message, BinaryIO, BinaryIO], None]
        serve = _write if first.kind == "create" else _read
        serve(LeRobotDataset, first, requests, out)
    except BrokenPipeError:
        return 1  # the other end is gone
    except Exception as error:  # LeRobot raises whatever its libraries raise
        import traceback

        traceback.print_exc()
        send(out, Message("failed", {"line": _line(error)}))
        return 1
    return 0


def _write(dataset_class: Any, first: Message, requests: BinaryIO, out: BinaryIO) -> None:
    """Frames into a new data set; after each episode and at the end, how much there is."""
    request = first.fields
    features = {
        name: {**one, "shape": tuple(one["shape"])} for name, one in request["features"].items()
    }
    dataset = dataset_class.create(
        repo_id=request["repo_id"],
        fps=request["fps"],
        features=features,
        root=request["root"],
        robot_type=request["robot_type"],
        use_videos=request["videos"],
        image_writer_threads=request["threads"],
    )
    while (message := receive(requests)) is not None:
        if message.kind == "frame":
            # add_frame takes the task out of its dictionary: it is made anew for every frame.
            dataset.add_frame({**message.arrays, "task": message.fields["task"]})
        elif message.kind == "save":
            dataset.save_episode()
            send(out, Message("saved", {"episodes": dataset.meta.total_episodes}))
        elif message.kind == "end":
            dataset.finalize()
            meta = dataset.meta
            counts = {"episodes": meta.total_episodes, "frames": meta.total_frames}
            send(out, Message("done", {**counts, "version": str(meta.info.codebase_version)
                              if hasattr(meta.info, "codebase_version")
                              else meta.info["codebase_version"]}))  # fmt: skip
            return


def _read(dataset_class: Any, first: Message, requests: BinaryIO, out: BinaryIO) -> None:
    """Send the data set's description; then, on request, every frame of it."""
    root = Path(first.fields["root"])
    backend = first.fields.get("video_backend") or "pyav"
    dataset = dataset_class(root.name, root=root, video_backend=backend, return_uint8=True)
    meta = dataset.meta
    features = {
        name: {"dtype": one["dtype"], "shape": list(one["shape"]), "names": one.get("names")}
        for name, one in meta.features.items()
        if name not in _OWN
    }
    counts = {"episodes": meta.total_episodes, "frames": len(dataset), "fps": meta.fps}
    named = [str((names or [""])[0]) for names in meta.episodes["tasks"]]
    tasks = sorted(Counter(named).values())
    send(out, Message("meta", {**counts, "tasks": tasks, "features": features}))
    if (wanted := receive(requests)) is None:
        return
    names = wanted.fields["features"]
    for number in range(len(dataset)):
        item = dataset[number]
        arrays = {name: _numbers(item[name], features[name]["dtype"]) for name in names}
        fields = {"task": item["task"], "episode": int(item["episode_index"])}
        send(out, Message("frame", fields, arrays))
    send(out, Message("done"))


def _numbers(value: Any, dtype: str) -> np.ndarray[Any, Any]:
    """A value as it was put in: images uint8 [height, width, 3], numbers at least [1]."""
    array = np.asarray(value)
    if dtype not in ("image", "video"):
        return np.atleast_1d(array)
    if array.dtype != np.uint8:  # LeRobot gives stored images as 0..1
        array = np.rint(array * 255.0).astype(np.uint8)
    return np.ascontiguousarray(array.transpose(1, 2, 0))


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 300 else words[:297] + "..."
