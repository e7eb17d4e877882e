"""`vla-ros demonstrations`: demonstrations as a LeRobotDataset, and a LeRobotDataset as such."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_fields, add_verb
from vla_ros.cli.export import add_set_flags, make_set, outcome, repo_id, updater
from vla_ros.core.console import Progress
from vla_ros.core.errors import UserError
from vla_ros_lab.train.options import CollectOptions

if TYPE_CHECKING:
    from vla_ros_lab.train.imports import ImportOptions

DESCRIPTION = """\
--to-lerobot DIR makes a LeRobotDataset (v3.0) of the demonstrations of `vla-ros collect`, which
LeRobot's own policies can be trained on.
--from-lerobot DATASET makes demonstrations for `vla-ros train` of a LeRobotDataset (which that verb
does by itself where nothing need be said).

LeRobot's own code writes and reads, in its own environment (`vla-ros lerobot setup`)."""

EPILOG = """\
examples:
  vla-ros demonstrations --to-lerobot data/tabletop --out data/tabletop-lerobot
  vla-ros demonstrations --from-lerobot somebodys_set --out data/shards \\
      -r image=observation.images.top --gripper=1..-1

exit status: 0 done, 2 wrong usage, unusable data, or LeRobot is missing"""

_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)")


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "demonstrations", DESCRIPTION, EPILOG)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to-lerobot", type=Path, nargs="+", metavar="DIR",
                      help="folders of `vla-ros collect`")  # fmt: skip
    what.add_argument("--from-lerobot", type=Path, metavar="DATASET",
                      help="a LeRobotDataset's folder")  # fmt: skip
    add_set_flags(parser)
    group = parser.add_argument_group("--from-lerobot")
    add = group.add_argument
    add("-r", "--remap", action="append", default=[], metavar="ROLE=FEATURE",
        help="what a feature is called: image, wrist_image, action; may be repeated")  # fmt: skip
    add("--gripper", default="0..1", metavar="A..B",
        help="the gripper's values, closed..open (0..1)")  # fmt: skip
    add("--action-scale", type=float, nargs=2, metavar=("M", "RAD"),
        help="an action of 1, where actions are in a controller's units")  # fmt: skip
    add_fields(group, CollectOptions, "image_size")


def run(args: argparse.Namespace) -> int:
    """Convert; returns the exit status."""
    if not 16 <= args.image_size <= 1024:
        raise UserError(f"--image-size {args.image_size}: give 16 to 1024 pixels")
    if args.to_lerobot:
        return make_set(args, args.to_lerobot, _to_lerobot)
    return make_set(args, [args.from_lerobot], _from_lerobot)


def _to_lerobot(args: argparse.Namespace, python: str, progress: Progress) -> dict[str, Any]:
    from vla_ros.data.lerobot.dataset import write
    from vla_ros_lab.train.demonstrations import shards
    from vla_ros_lab.train.lerobot_rows import ShardRows

    source = ShardRows([path for folder in args.to_lerobot for path in shards(folder)])
    written = write(
        python,
        args.out,
        repo_id(args),
        source.info.environment,
        source.columns(args.fps),
        source.rows(),
        args.images == "video",
        source.note,
        updater(progress, "demonstrations", len(source)),
    )
    return outcome(written, [])


def _from_lerobot(args: argparse.Namespace, python: str, progress: Progress) -> dict[str, Any]:
    from vla_ros_lab.train.imports import import_shards

    def progressed(frames: int, total: int) -> None:
        progress.update("import", "demonstrations", frames, total)

    done = import_shards(python, args.from_lerobot, args.out, _import_options(args), progressed)
    return {
        "episodes": done.demonstrations,
        "frames": done.frames,
        "notes": list(done.notes),
        "what": ", demonstrations for vla-ros train",
    }


def _import_options(args: argparse.Namespace) -> ImportOptions:
    from vla_ros_lab.train.imports import ROLES, ImportOptions

    features = {}
    for item in args.remap:
        role, equals, name = item.partition("=")
        if not (equals and name) or role not in ROLES:
            raise UserError(f"-r {item}: write ROLE=FEATURE; roles are {', '.join(ROLES)}")
        features[role] = name
    found = _RANGE.fullmatch(args.gripper)
    closed, opened = map(float, found.groups()) if found else (0.0, 0.0)
    if closed == opened:
        raise UserError(f"--gripper {args.gripper}: write closed..open, such as 0..100 or 1..-1")
    scale = None
    if args.action_scale:
        step, turn = args.action_scale
        if not (step > 0 and turn > 0):
            raise UserError("--action-scale: both must be above 0")
        scale = (step,) * 3 + (turn,) * 3
    return ImportOptions(features, (closed, opened), scale, args.image_size)
