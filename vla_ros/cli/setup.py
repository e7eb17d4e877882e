"""`vla-ros setup`: from a running robot, and a checkpoint, to a robot file."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_flag, add_verb, check_domain
from vla_ros.core.console import error, print_json
from vla_ros.core.errors import UserError
from vla_ros.core.text import printable

if TYPE_CHECKING:
    from vla_ros.ros.bringup.robot_proposal import CheckpointNeeds, Proposal
    from vla_ros.ros.common.seen_graph import SeenGraph

DESCRIPTION = """\
Look at the running robot and at a checkpoint, ask what neither says, and write a robot file: which
topic is which camera, the joints and their order, limits, the controller, units. `vla-ros up` and
`robot:=` of policy.launch.py read it.

Start the drivers first: cameras, joint states, controllers, robot_state_publisher. Nothing is
published and nothing moves. Every line has a comment that says where its value comes from; a
comment that begins with ? is doubtful. Limits are the tighter ones of the robot's own file and
robot_description, and a tenth of its speeds. Of each camera an image is written beside the file."""

EPILOG = """\
examples:
  vla-ros setup /models/my_smolvla --robot so101    a robot that has a file in config/robots
  vla-ros setup /models/my_act                      any other, as its drivers show it
  vla-ros setup --robot ur5e --yes                  without a checkpoint, without questions

exit status: 0 the file is written, 1 there is nothing to write: no robot was seen and none named,
2 wrong usage, 130 Ctrl-C: nothing is written"""

LOOK_S = 4.0  # discovery, and some images and joint states of the slowest


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "setup", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("checkpoint", nargs="?", default="", metavar="CHECKPOINT", help="a folder, a hub id,"
        " shipped:..., or a server's ws:// address; without one the policy is zero")  # fmt: skip
    add("--robot", default="", metavar="NAME", help="a file of config/robots to start from, or any"
        " other robot file")  # fmt: skip
    add("--out", type=Path, default=Path("robot.yaml"), metavar="FILE", help="(robot.yaml)")
    add("--force", action="store_true", help="write over a file that is there")
    add("--yes", action="store_true", help="ask nothing: take the safe answers")
    add_flag(parser, "--for", default=LOOK_S, help=f"look for so long ({LOOK_S:g})")
    add_flag(parser, "--domain-id", help="ROS domain (ROS_DOMAIN_ID)")
    add_flag(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Look, ask, write; returns the exit status."""
    from vla_ros.ros.bringup.robot_file import find_robot, shipped_robots
    from vla_ros.ros.bringup.robot_proposal import Safe, propose

    if not 0.5 <= args.seconds <= 60.0:
        raise UserError(f"--for {args.seconds:g}: give 0.5 to 60 seconds")
    check_domain(args.domain_id)
    if args.out.exists() and not args.force:
        raise UserError(f"{args.out} is there: --force writes over it, --out names another")
    if not args.out.parent.is_dir():
        raise UserError(f"--out {args.out}: there is no folder {args.out.parent}")
    if not (args.yes or sys.stdin.isatty()):
        raise UserError("nobody can be asked here: --yes takes the safe answers")
    robot = find_robot(args.robot) if args.robot else None
    needs, lacks = needs_of(args.checkpoint) if args.checkpoint else (None, ())
    seen = look(args.seconds, args.domain_id)
    for line in seen.lines():
        print(line)
    if robot is None and not (seen.cameras or seen.joints):
        names = ", ".join(shipped_robots())
        error("vla-ros setup", f"{seen.why or nothing_seen(args)}, or start from --robot ({names})")
        return 1
    shots = thumbnails(seen, args.out)
    try:
        made = propose(seen, needs, robot, Safe() if args.yes else Terminal())
    except KeyboardInterrupt:
        for path in shots.values():
            path.unlink()
        print()  # after ^C
        error("vla-ros setup", f"interrupted: {args.out} is not written")
        return 130
    args.out.write_text(made.text(title(args), commands(args)), encoding="utf-8")
    report(made, seen, shots, lacks, args)
    return 0


def nothing_seen(args: argparse.Namespace) -> str:
    """Why there is nothing to write."""
    domain = args.domain_id if args.domain_id is not None else os.environ.get("ROS_DOMAIN_ID", "0")
    return (
        f"no camera and no joint states in ROS domain {domain} within {args.seconds:g} s: start the"
        " drivers"
    )


def title(args: argparse.Namespace) -> str:
    """First line of the file."""
    words = ["vla-ros setup", args.checkpoint, f"--robot {args.robot}" if args.robot else ""]
    return f"A robot, by `{' '.join(filter(None, words))}`."


def commands(args: argparse.Namespace) -> list[str]:
    """What to type next."""
    checked = args.checkpoint or "CHECKPOINT"
    return [
        f"vla-ros check {checked} BAG --robot {args.out}",
        f"vla-ros up {args.out}",
        f"ros2 launch vla_ros policy.launch.py robot:={args.out}",
    ]


# The checkpoint


def needs_of(checkpoint: str) -> tuple[CheckpointNeeds, Sequence[str]]:
    """What a checkpoint needs, by its names and JSON alone, and what it lacks to be loaded.
    UserError: there is none."""
    from vla_ros.core.errors import user_errors
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.families.folder import describe
    from vla_ros.engine.io.action_data import action_names_in
    from vla_ros.engine.io.rates import action_rate_of
    from vla_ros.ros.bringup.robot_proposal import CheckpointNeeds

    if checkpoint.startswith(("ws://", "wss://", "tcp://")):
        return CheckpointNeeds(checkpoint, "remote", "a server's: what it needs is not asked"), ()
    if checkpoint.startswith("random:"):
        return CheckpointNeeds(checkpoint, family="random weights"), ()
    with user_errors(CheckpointError):
        found = describe(checkpoint)
        names, _ = action_names_in(found.directory, found.actions)
        rate = action_rate_of(found.directory)
    local = Path(checkpoint).is_dir()
    needs = CheckpointNeeds(
        str(Path(checkpoint).resolve()) if local else checkpoint,
        family=found.family,
        cameras=found.cameras,
        state=found.state,
        actions=found.actions,
        names=names,
        rate_hz=rate,
        choices=found.choices,
    )
    return needs, found.lacks


# The graph


def look(seconds: float, domain: int | None) -> SeenGraph:
    """The running graph; an empty one with the reason where ROS is not there."""
    from vla_ros.ros.bringup.environment import prepare
    from vla_ros.ros.common.seen_graph import SeenGraph

    if domain is not None:
        os.environ["ROS_DOMAIN_ID"] = str(domain)
    prepare()
    try:
        from vla_ros.ros.listeners.survey import Survey
    except ImportError as wrong:
        why = f"{wrong}; `vla-ros doctor` says what to install"
        error("vla-ros setup", f"the running graph is not looked at: {why}")
        return SeenGraph(why=why)
    with Survey(int(os.environ.get("ROS_DOMAIN_ID") or 0)) as survey:
        return survey.look(seconds)


def thumbnails(seen: SeenGraph, out: Path) -> dict[str, Path]:
    """An image of each camera beside the file: topic -> PNG."""
    from PIL import Image

    written = {}
    for camera in seen.cameras:
        if camera.image is not None:
            name = re.sub(r"\W+", "_", camera.topic.strip("/"))
            path = out.with_name(f"{out.stem}_{name}.png")
            shot = Image.fromarray(camera.image)
            shot.thumbnail((640, 640))
            shot.save(path)
            written[camera.topic] = path
            print(f"image       {camera.topic}: {path}")
    return written


# The person


class Terminal:
    """Questions on the terminal; the empty answer takes what is offered, or leaves numbers out."""

    def choose(self, question: str, options: Sequence[str], default: int) -> tuple[int, bool]:
        """Index of one of the options, and that a person chose it."""
        if len(options) == 1:
            return default, False
        print(question)
        for number, option in enumerate(options, 1):
            print(f"  {number}  {printable(option)}")
        while True:
            try:
                answer = input(f"1 to {len(options)} [{default + 1}]: ").strip()
            except EOFError:
                return default, False
            if not answer:
                return default, True
            if answer.isdecimal() and 1 <= int(answer) <= len(options):
                return int(answer) - 1, True
            print(f"{printable(answer)}: give a number of the list, or Enter for {default + 1}")

    def numbers(self, question: str, count: int) -> list[float]:
        """So many numbers, joined by spaces or commas; []: the person does not know them."""
        while True:
            try:
                words = input(f"{printable(question)} (empty: left out): ").replace(",", " ")
            except EOFError:
                return []
            with contextlib.suppress(ValueError):
                found = [float(word) for word in words.split()]
                if not found or (len(found) == count and all(map(math.isfinite, found))):
                    return found
            print(f"give {count} numbers, joined by spaces" if count > 1 else "give a number")


# The report


def report(
    made: Proposal,
    seen: SeenGraph,
    shots: dict[str, Path],
    lacks: Sequence[str],
    args: argparse.Namespace,
) -> None:
    """Say what was written, what is doubtful, what is missing, and what to type next."""
    for lack in lacks:
        print(f"lacks       {args.checkpoint}: {lack}")
    for name in seen.policies:
        print(f"runs        {name}: a policy commands this robot already")
    values: dict[str, Any] = {**made.parameters, **made.remappings}
    for name in made.doubts:
        print(f"look        {name}: {values[name].why}")
    for name, why in made.missing.items():
        print(f"missing     {name}: {why}")
    print(f"wrote {args.out}: {len(values)} values, {len(made.doubts)} to look at,"
         f" {len(made.missing)} missing")  # fmt: skip
    check, up, _ = commands(args)
    if args.json:
        print_json(
            {
                "file": str(args.out),
                "parameters": {name: one.value for name, one in made.parameters.items()},
                "remappings": {name: one.value for name, one in made.remappings.items()},
                "doubts": made.doubts,
                "missing": made.missing,
                "images": {topic: str(path) for topic, path in shots.items()},
            }
        )
    else:
        print(f"next: {check}, then {up}")
