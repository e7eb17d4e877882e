"""`vla-ros export`: bags as a LeRobotDataset."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_flag, add_verb, require_rosbags
from vla_ros.core.console import Progress, print_json
from vla_ros.core.errors import UserError
from vla_ros.core.pixels import sizes_of
from vla_ros.core.text import printable

if TYPE_CHECKING:
    from vla_ros.data.lerobot.from_bags import BagOptions

DESCRIPTION = """\
--lerobot BAG ... makes a LeRobotDataset (v3.0) of bags, which LeRobot's own policies can be trained
on. One row an action, at the rate of the policy's data: what was executed over it, and the images,
state and instruction that belong to it. No image is later than the moment that its row shows.
(`vla-ros demonstrations` does it for demonstrations.)

LeRobot's own code writes, in its own environment (`vla-ros lerobot setup`)."""

EPILOG = """\
examples:
  vla-ros export --lerobot run1 run2 --out data/robot
  vla-ros export --lerobot arm.mcap --out data/arm -r image=/cam/color/image_raw \\
      -r policy/action=/cmd --instruction "pick up the red cube" --fps 15

pairing, of commands that say what they rest on (those of vla_ros do):
  due        the image of the moment that the action was made for: of a chunk's third action the
             image two action periods after the one that the chunk rests on (default)
  observation  the image that the action rests on
  newest     the newest image that the policy node had when the command was published
Other commands get the newest image that had arrived before them.

exit status: 0 done, 2 wrong usage, unusable data, or LeRobot is missing"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "export", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--lerobot", type=Path, nargs="+", required=True, metavar="BAG", help="bags")
    add_set_flags(parser)
    add("-r", "--remap", action="append", default=[], metavar="ROLE=TOPIC",
        help="what a topic is called in the bag: image, wrist_image, joint_states,"
        " end_effector_pose, instruction, policy/action, bridge/episode;"
        " may be repeated")  # fmt: skip
    add("--camera", action="append", default=[], metavar="NAME=TOPIC",
        help="one more camera; may be repeated")  # fmt: skip
    add("--resize", action="append", default=[], metavar="[NAME=]HxW",
        help="bring images to this height and width by the nearest pixel, as Rosetta does (what the"
        " run's policy had, else as they are); may be repeated")  # fmt: skip
    add("--instruction", metavar="TEXT", help="the task, instead of the bag's own")
    add("--pairing", choices=("due", "observation", "newest"), default="due",
        help="which image belongs to an action, see below (due)")  # fmt: skip
    add("--max-age", type=float, default=1.0, metavar="S",
        help="oldest image of a row (1 s)")  # fmt: skip
    add("--max-gap", type=float, metavar="S",
        help="a longer pause begins another episode (two periods of the rows)")  # fmt: skip
    add("--only-success", action="store_true",
        help="bags of a simulation: only the episodes that succeeded")  # fmt: skip


def add_set_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of a data set's writer; for the lab's `demonstrations` too."""
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    add("--repo-id", metavar="NAME", help="name of the data set (local/ and that of --out)")
    add("--fps", type=int, default=0, metavar="N", help="rows a second (the action rate)")
    add("--images", choices=("video", "png"), default="video",
        help="how images are stored: small, or to the last bit (video)")  # fmt: skip
    add("--python", default="", help="LeRobot's interpreter (that of `vla-ros lerobot setup`)")
    add_flag(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Export; returns the exit status."""
    if not args.max_age > 0 or not (args.max_gap is None or args.max_gap > 0):
        raise UserError("--max-age and --max-gap must be above 0 seconds")
    for path in args.lerobot:
        if path.is_dir() and any(path.glob("*.hdf5")):
            raise UserError(f"{path} holds demonstrations: `vla-ros demonstrations --to-lerobot`")
    return make_set(args, args.lerobot, _bags)


def make_set(
    args: argparse.Namespace,
    sources: Sequence[Path],
    make: Callable[[argparse.Namespace, str, Progress], dict[str, Any]],
) -> int:
    """Make --out of the ``sources`` by ``make``, which gets LeRobot's interpreter; returns the exit
    status."""
    from vla_ros.data.lerobot.dataset import python_of, refuse_existing

    if args.fps < 0 or args.fps > 1000:
        raise UserError(f"--fps {args.fps}: must be 1 to 1000")
    refuse_existing(args.out)
    for path in sources:
        if not path.exists():
            raise UserError(f"{path} is not there")
    python = python_of(args.python)
    began = time.monotonic()
    with Progress() as progress:
        found = make(args, python, progress)
    found |= {"out": str(args.out), "seconds": round(time.monotonic() - began, 1)}
    for note in found["notes"]:
        print(printable(note))
    print(f"{args.out}: {found['episodes']} episodes, {found['frames']} frames{found.pop('what')}")
    if args.json:
        print_json(dict(sorted(found.items())))
    return 0


def repo_id(args: argparse.Namespace) -> str:
    """Name of the data set: --repo-id, else from --out."""
    return args.repo_id or f"local/{re.sub(r'[^A-Za-z0-9._-]', '-', args.out.absolute().name)}"


def updater(progress: Progress, what: str, total: int) -> Callable[[int, int], None]:
    """Show the progress of an export: called with the episodes and frames that are written."""

    def update(episodes: int, frames: int) -> None:
        progress.update("export", f"{what}: {episodes} episodes", frames, total)

    return update


def _bags(args: argparse.Namespace, python: str, progress: Progress) -> dict[str, Any]:
    require_rosbags()
    from vla_ros.data.lerobot.dataset import write
    from vla_ros.data.lerobot.from_bags import Bags

    with Bags(args.lerobot, _bag_options(args)) as bags:
        progress.say(f"{len(bags)} rows in {bags.episodes} episodes of {len(args.lerobot)} bags")
        written = write(
            python,
            args.out,
            repo_id(args),
            "unknown",
            bags.columns(),
            bags.rows(),
            args.images == "video",
            lambda: {"bags": [str(path) for path in args.lerobot], "pairing": args.pairing},
            updater(progress, "bags", len(bags)),
        )
        return outcome(written, bags.notes()) | {"dropped": dict(bags.dropped)}


def _bag_options(args: argparse.Namespace) -> BagOptions:
    from vla_ros.data.bag_frames import parse_remaps
    from vla_ros.data.lerobot.from_bags import BagOptions
    from vla_ros.data.lerobot.streams import ROLES

    cameras = {}
    for item in args.camera:
        name, equals, topic = item.partition("=")
        if not (equals and topic and re.fullmatch(r"[A-Za-z0-9_]+", name)):
            raise UserError(f"--camera {item}: write NAME=TOPIC, such as left=/left/image_raw")
        cameras[name] = topic if topic.startswith("/") else f"/{topic}"
    try:
        sizes = sizes_of(args.resize, ("main", "wrist", *cameras))
    except ValueError as error:
        raise UserError(f"--resize {error}") from None
    return BagOptions(
        remaps=parse_remaps(args.remap, ROLES),
        cameras=cameras,
        sizes=sizes,
        instruction=args.instruction,
        fps=args.fps,
        pairing=args.pairing,
        max_age_s=args.max_age,
        max_gap_s=args.max_gap or 0.0,
        only_success=args.only_success,
    )


def outcome(written: Any, notes: list[str]) -> dict[str, Any]:
    """Result of an export, for --json; ``what`` ends the printed line."""
    return {
        "episodes": written.episodes,
        "frames": written.frames,
        "notes": notes,
        "format": written.version,
        "what": f", LeRobotDataset {written.version}",
    }
