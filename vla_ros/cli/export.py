"""`vla-ros export`: bags and demonstrations as a LeRobotDataset, a LeRobotDataset as our shards."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_flag, add_verb, require_rosbags
from vla_ros.core.console import Progress, print_json
from vla_ros.core.errors import UserError

if TYPE_CHECKING:
    from vla_ros.data.lerobot.from_bags import BagOptions
    from vla_ros_lab.train.shards import ImportOptions

DESCRIPTION = """\
--lerobot SOURCE ... makes a LeRobotDataset (v3.0) of bags, or of the demonstrations of `vla-ros
collect`, which LeRobot's own policies can be trained on. One row a command: the action, and the
images, state and instruction that belong to it. No image is later than the moment that its row
shows.
--shards DATASET makes demonstrations for `vla-ros train` of a LeRobotDataset (which that verb does
by itself where nothing need be said).

LeRobot's own code writes and reads, in its own environment (`vla-ros lerobot setup`)."""

EPILOG = """\
examples:
  vla-ros export --lerobot run1 run2 --out data/robot
  vla-ros export --lerobot arm.mcap --out data/arm -r image=/cam/color/image_raw \\
      -r policy/action=/cmd --instruction "pick up the red cube" --fps 15
  vla-ros export --lerobot data/tabletop --out data/tabletop-lerobot
  vla-ros export --shards somebodys_set --out data/shards -r image=observation.images.top \\
      --gripper=1..-1

pairing, of commands that say what they rest on (those of vla_ros do):
  due        the image of the moment that the action was made for: of a chunk's third action the
             image two periods after the one that the chunk rests on (default)
  observation   the image that the action rests on
  newest     the newest image that the policy node had when the command was published
Other commands get the newest image that had arrived before them.

exit status: 0 done, 2 wrong usage, unusable data, or LeRobot is missing"""

_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)")


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "export", DESCRIPTION, EPILOG)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--lerobot", type=Path, nargs="+", metavar="SOURCE",
                      help="bags, or one folder of `vla-ros collect`")  # fmt: skip
    what.add_argument("--shards", type=Path, metavar="DATASET", help="a LeRobotDataset's folder")
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    add("--repo-id", metavar="NAME", help="name of the data set (local/ and that of --out)")
    add("--fps", type=int, default=0, metavar="N", help="rows a second (the control rate)")
    add("--images", choices=("video", "png"), default="video",
        help="how images are stored: small, or to the last bit (video)")  # fmt: skip
    add("-r", "--remap", action="append", default=[], metavar="ROLE=TOPIC",
        help="what a topic is called in the bag: image, wrist_image, joint_states,"
        " end_effector_pose, instruction, policy/action, bridge/episode; with --shards what a"
        " feature is called: image, wrist_image, action; may be repeated")  # fmt: skip
    add("--camera", action="append", default=[], metavar="NAME=TOPIC",
        help="bags: one more camera; may be repeated")  # fmt: skip
    add("--instruction", metavar="TEXT", help="bags: the task, instead of the bag's own")
    add("--pairing", choices=("due", "evidence", "newest"), default="due",
        help="bags: which image belongs to an action, see below (due)")  # fmt: skip
    add("--max-age", type=float, default=1.0, metavar="S",
        help="bags: oldest image of a row (1 s)")  # fmt: skip
    add("--max-gap", type=float, default=10.0, metavar="S",
        help="bags: a longer pause begins another episode (10 s)")  # fmt: skip
    add("--only-success", action="store_true",
        help="bags of a simulation: only the episodes that succeeded")  # fmt: skip
    add("--gripper", default="0..1", metavar="A..B",
        help="--shards: the gripper's values, closed..open (0..1)")  # fmt: skip
    add("--action-scale", type=float, nargs=2, metavar=("M", "RAD"),
        help="--shards: an action of 1, where actions are in a controller's units")  # fmt: skip
    add("--image-size", type=int, default=128, help="--shards: pixels a side (128)")
    add("--python", default="", help="LeRobot's interpreter (that of `vla-ros lerobot setup`)")
    add_flag(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Export; returns the exit status."""
    from vla_ros.data.lerobot.dataset import python_of, refuse_existing

    _check(args)
    refuse_existing(args.out)
    python = python_of(args.python)
    began = time.monotonic()
    with Progress() as progress:
        if args.shards is not None:
            said = _shards(args, python, progress)
        elif _are_shards(args.lerobot):
            said = _demonstrations(args, python, progress)
        else:
            said = _bags(args, python, progress)
    said |= {"out": str(args.out), "seconds": round(time.monotonic() - began, 1)}
    for note in said["notes"]:
        print(note)
    print(f"{args.out}: {said['episodes']} episodes, {said['frames']} frames{said['what']}")
    del said["what"]
    if args.json:
        print_json(dict(sorted(said.items())))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.fps < 0 or args.fps > 1000:
        raise UserError(f"--fps {args.fps}: must be 1 to 1000")
    if not args.max_age > 0 or not args.max_gap > 0:
        raise UserError("--max-age and --max-gap must be above 0 seconds")
    if not 16 <= args.image_size <= 1024:
        raise UserError(f"--image-size {args.image_size}: give 16 to 1024 pixels")


def _repo_id(args: argparse.Namespace) -> str:
    return args.repo_id or f"local/{re.sub(r'[^A-Za-z0-9._-]', '-', args.out.absolute().name)}"


def _shower(progress: Progress, verb: str, what: str, total: int) -> Callable[[int, int], None]:
    def shown(episodes: int, frames: int) -> None:
        progress.update(verb, f"{what}: {episodes} episodes", frames, total)

    return shown


# ---------------------------------------------------------------------- demonstrations


def _are_shards(sources: list[Path]) -> bool:
    """UserError: folders of demonstrations among bags."""
    folders = [path.is_dir() and any(path.glob("*.hdf5")) for path in sources]
    if any(folders) and not all(folders):
        raise UserError("--lerobot takes bags, or demonstrations, not both in one data set")
    return all(folders)


def _demonstrations(args: argparse.Namespace, python: str, progress: Progress) -> dict[str, Any]:
    try:
        from vla_ros_lab.train.demonstrations import shards
        from vla_ros_lab.train.shards import ShardRows
    except ImportError as error:
        raise UserError(f"{error}: pip install '.[sim]' ./lab in the checkout") from error
    from vla_ros.data.lerobot.dataset import write

    source = ShardRows([path for folder in args.lerobot for path in shards(folder)])
    written = write(
        python,
        args.out,
        _repo_id(args),
        source.info.environment,
        source.columns(args.fps),
        source.rows(),
        args.images == "video",
        source.note,
        _shower(progress, "export", "demonstrations", len(source)),
    )
    return _said(written, [])


# ---------------------------------------------------------------------- bags


def _bags(args: argparse.Namespace, python: str, progress: Progress) -> dict[str, Any]:
    require_rosbags()
    from vla_ros.data.lerobot.dataset import write
    from vla_ros.data.lerobot.from_bags import Bags

    with Bags(args.lerobot, _bag_options(args)) as bags:
        progress.say(f"{len(bags)} rows in {bags.episodes} episodes of {len(args.lerobot)} bags")
        written = write(
            python,
            args.out,
            _repo_id(args),
            "unknown",
            bags.columns(),
            bags.rows(),
            args.images == "video",
            lambda: {"bags": [str(path) for path in args.lerobot], "pairing": args.pairing},
            _shower(progress, "export", "bags", len(bags)),
        )
        return _said(written, bags.notes()) | {"dropped": dict(bags.dropped)}


def _bag_options(args: argparse.Namespace) -> BagOptions:
    from vla_ros.data.bag_frames import parse_remaps
    from vla_ros.data.lerobot.from_bags import ROLES, BagOptions

    cameras = {}
    for item in args.camera:
        name, equals, topic = item.partition("=")
        if not (equals and topic and re.fullmatch(r"[A-Za-z0-9_]+", name)):
            raise UserError(f"--camera {item}: write NAME=TOPIC, such as left=/left/image_raw")
        cameras[name] = topic if topic.startswith("/") else f"/{topic}"
    return BagOptions(
        remaps=parse_remaps(args.remap, ROLES),
        cameras=cameras,
        instruction=args.instruction,
        fps=args.fps,
        pairing=args.pairing,
        max_age_s=args.max_age,
        max_gap_s=args.max_gap,
        only_success=args.only_success,
    )


def _said(written: Any, notes: list[str]) -> dict[str, Any]:
    return {
        "episodes": written.episodes,
        "frames": written.frames,
        "notes": notes,
        "format": written.version,
        "what": f", LeRobotDataset {written.version}",
    }


# ---------------------------------------------------------------------- the way back


def _shards(args: argparse.Namespace, python: str, progress: Progress) -> dict[str, Any]:
    try:
        from vla_ros_lab.train.shards import import_shards
    except ImportError as error:
        raise UserError(f"{error}: pip install ./lab in the checkout") from error

    def shown(frames: int, total: int) -> None:
        progress.update("export", "demonstrations", frames, total)

    done = import_shards(python, args.shards, args.out, _import_options(args), shown)
    return {
        "episodes": done.demonstrations,
        "frames": done.frames,
        "notes": list(done.notes),
        "what": ", demonstrations for vla-ros train",
    }


def _import_options(args: argparse.Namespace) -> ImportOptions:
    from vla_ros_lab.train.shards import ROLES, ImportOptions

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
        place, turn = args.action_scale
        if not (place > 0 and turn > 0):
            raise UserError("--action-scale: both must be above 0")
        scale = (place,) * 3 + (turn,) * 3
    return ImportOptions(features, (closed, opened), scale, args.image_size)
