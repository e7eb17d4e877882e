"""Rows into a new LeRobotDataset, by LeRobot's own code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.errors import UserError
from vla_ros.lerobot_data.process import LeRobot
from vla_ros.lerobot_data.rows import Columns, Row

OURS = (
    Path("meta") / "vla_ros.json"
)  # what we add: where it came from, and what LeRobot has no word for


@dataclass(frozen=True, slots=True)
class Written:
    """What there is in the new data set; ``version`` of its format."""

    episodes: int
    frames: int
    version: str


def write(
    python: str,
    out: Path,
    repo_id: str,
    robot_type: str,
    columns: Columns,
    rows: Iterable[Row],
    videos: bool,
    note: Callable[[], dict[str, Any]],
    shown: Callable[[int, int], None],
) -> Written:
    """Write ``rows`` into ``out``, which must not be there; ``shown`` (episodes, frames) is told on
    the way, ``note`` is asked at the end for what goes into meta/vla_ros.json.

    The folder appears when it is whole. UserError: LeRobot refused, or nothing came.
    """
    scratch = out.with_name(f".{out.name}.part")
    refuse_existing(out)
    shutil.rmtree(scratch, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with LeRobot(python) as there:
            request = {
                "root": str(scratch.absolute()),
                "repo_id": repo_id,
                "fps": columns.fps,
                "robot_type": robot_type,
                "features": columns.features(videos),
                "videos": videos,
                "threads": 2,
            }
            there.ask("create", request)
            episodes = 0
            last: int | None = None
            for frames, row in enumerate(rows, 1):
                if last is not None and row.episode != last:
                    episodes = _save(there)
                last = row.episode
                there.ask("frame", {"task": row.task}, row.arrays())
                shown(episodes, frames)
            if last is None:
                raise UserError("there is not one frame to write")
            _save(there)
            there.ask("end", {})
            done = there.hear("done").fields
        (scratch / OURS).write_text(json.dumps(note(), indent=1) + "\n", encoding="utf-8")
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Written(int(done["episodes"]), int(done["frames"]), str(done["version"]))


def refuse_existing(out: Path) -> None:
    """UserError: ``out`` is there."""
    if out.exists():
        raise UserError(f"{out} is there already: give another --out, or remove it")


def _save(there: LeRobot) -> int:
    there.ask("save", {})
    return int(there.hear("saved").fields["episodes"])
