"""The options of `vla-ros replay`, and what they mean for the policy node."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_ros.bringup.graph_file import GraphSpec, NodeSpec, parse_overrides
from vla_ros.errors import UserError
from vla_ros.policies.base import POLICIES, refuse_unknown
from vla_ros.resources import config_path

CHUNKS = "chunks"
MODES = ("lockstep", "recorded", "fast", CHUNKS)
AS_IT_IS_ASKED = ("lockstep", CHUNKS)  # the world waits for every answer

DESCRIPTION = """\
Play the frames of a bag into a policy node, compare what it says with what was recorded, and
show where the time went, in both runs. The node runs in a ROS domain of its own.

A bag of `vla-ros record` says which policy it was of: nothing else need be given. Other bags
(rosbag2: MCAP or sqlite3; images rgb8, bgr8, rgba8, bgra8, mono8, JPEG or PNG) need a policy,
and an instruction unless they have one.

modes:
  lockstep   every frame is answered before the next one comes: the same actions every time,
             as fast as the policy goes (default)
  recorded   frames come as they were recorded, --rate times as fast; the policy runs in real
             time and answers the newest frame
  fast       as recorded, but each frame comes as soon as the policy has answered one
  chunks     the chunks of a run in real time again: the frames that it asked for, each told
             what the robot was executing and how late the answer was, one after the other"""

EPILOG = """\
examples:
  vla-ros replay run1                                the same policy again
  vla-ros replay run1 --schedule speculative         another schedule: the same actions?
  vla-ros replay run1 --rate 1 --device cuda:0       how old would they be on this machine?
  vla-ros replay run1 --mode chunks                  a run with execution rtc: the same chunks?
  vla-ros replay cam.db3 -r image=/cam/color --policy vla --checkpoint DIR \\
      --instruction "pick up the red cube" --save golden.json
  vla-ros replay cam.db3 ... --golden golden.json --json

exit status: 0 nothing differs by more than --tolerance, 1 something does, 2 wrong usage or a
bag that cannot be replayed, 3 the policy node did not start or stopped answering"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The options of this verb."""
    parser = verbs.add_parser(
        "replay",
        help="play a bag into a policy and compare what it says",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("bag", type=Path, help="a folder, an .mcap or a .db3 file")
    _add_frames(add)
    _add_policy(add)
    add("--golden", type=Path, metavar="FILE", help="compare with this file, not with the bag")
    add("--save", type=Path, metavar="FILE", help="keep the actions as a golden file")
    add(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="X",
        help="largest difference that is none, m, rad and gripper alike (default: 0)",
    )
    add("--json", action="store_true", help="end with one line of JSON on stdout")
    add("--html", type=Path, metavar="FILE", help="write the report as a page")
    add("--domain-id", type=int, metavar="N", help="ROS domain (default: a free one, 1 to 100)")
    add("--verbose", action="store_true", help="show the log of the policy node")


def _add_frames(add: Any) -> None:
    add("--mode", choices=MODES, help="see above")
    add("--rate", type=float, metavar="R", help="mode recorded, R times as fast (default: 1)")
    add(
        "-r",
        "--remap",
        action="append",
        default=[],
        metavar="ROLE=TOPIC",
        help="what a topic is called in the bag: image, wrist_image, joint_states, ground_truth,"
        " instruction, policy/action, policy/action_chunk; may be repeated",
    )
    add("--instruction", metavar="TEXT", help="the task, instead of the bag's own")
    add("--frames", metavar="A:B", help="only frames A to B, counted from 0, B included")
    add("--max-gap", type=float, default=10.0, metavar="S", help="longest pause (default: 10 s)")
    add(
        "--answer-timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="lockstep: longest wait for one answer (default: 60)",
    )


def _add_policy(add: Any) -> None:
    add(
        "--policy",
        metavar="NAME",
        help=f"who acts: {', '.join(POLICIES)}, or what an installed package offers (default: as"
        " recorded)",
    )
    add("--checkpoint", metavar="DIR", help="vla: model")
    add("--schedule", metavar="NAME", help="vla: decoding schedule")
    add("--device", help="vla: torch device, such as cuda:0")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="vla: of the weights")
    add("--weights", metavar="F", help="vla: formats of the weights, such as int8")
    add(
        "-p",
        "--param",
        action="append",
        default=[],
        metavar="PARAM=VALUE",
        help="any other parameter of the policy node; may be repeated",
    )


def check(args: argparse.Namespace) -> str:
    """The mode. Raises UserError for options that are wrong or do not go together."""
    if args.rate is not None and args.mode not in (None, "recorded"):
        raise UserError(f"--rate needs --mode recorded, not {args.mode}")
    if args.rate is not None and not 0.01 <= args.rate <= 100:
        raise UserError(f"--rate {args.rate:g}: must be 0.01 to 100")
    if not args.tolerance >= 0:
        raise UserError(f"--tolerance {args.tolerance:g}: must be 0 or more")
    if not args.max_gap > 0 or not args.answer_timeout > 0:
        raise UserError("--max-gap and --answer-timeout must be above 0 seconds")
    if args.domain_id is not None and not 0 <= args.domain_id <= 232:
        raise UserError(f"--domain-id {args.domain_id}: must be 0 to 232")
    for option in (args.save, args.html):
        if option is not None and not option.absolute().parent.is_dir():
            raise UserError(f"there is no folder {option.absolute().parent}")
        if option is not None and option.is_dir():
            raise UserError(f"{option} is a folder: name a file in it")
    frame_range(args.frames)
    elsewhere = any(item.startswith("worker_python=") for item in args.param)
    if args.policy not in (None, *POLICIES) and not elsewhere:
        refuse_unknown(args.policy)
    return str(args.mode or ("recorded" if args.rate is not None else "lockstep"))


def frame_range(text: str | None) -> tuple[int, int | None]:
    """(first, last) of "A:B"; either may be left out. Raises UserError."""
    if text is None:
        return 0, None
    first, colon, last = text.partition(":")
    try:
        if not colon:
            raise ValueError
        found = int(first or 0), int(last) if last else None
    except ValueError:
        raise UserError(f"--frames {text}: write A:B, such as 0:199") from None
    if found[0] < 0 or (found[1] is not None and found[1] < found[0]):
        raise UserError(f"--frames {text}: B must not be before A, and A not below 0")
    return found


def graph_of(
    args: argparse.Namespace,
    mode: str,
    recorded: Mapping[str, Any],
    compressed: bool,
    camera_hz: float,
) -> GraphSpec:
    """The policy node: the parameters it was recorded with, those that the mode needs, and
    those that the user gave, in this order.

    UserError: a parameter that the node does not have, or nobody says which policy it is.
    """
    file = config_path("policy.yaml")
    known = NodeSpec("policy", "policy", (file,)).file_parameters()
    values = {name: value for name, value in recorded.items() if name in known}
    waits = mode in AS_IT_IS_ASKED
    rate = 1.0 if waits else float(args.rate or 1.0)
    if not values and camera_hz:  # a bag of somebody else: one action a frame
        values["control_rate_hz"] = min(200.0, max(1.0, camera_hz))
    if camera_hz:
        values["camera_rate_hz"] = min(1000.0, max(0.1, camera_hz * rate))
    if mode == "fast":
        values["control_rate_hz"] = 200.0
    values |= {
        "mode": "lockstep" if waits else "realtime",
        "use_sim_time": waits,
        "image_transport": "compressed" if compressed else "raw",
        "instruction": "",
        "detect_frozen": False,
    }
    if mode == CHUNKS:  # each is late by what the questions say, and by nothing else
        values |= {"delay_frames": 0}
    own = ("policy", "checkpoint", "schedule", "device", "dtype", "weights")
    values |= {name: getattr(args, name) for name in own if getattr(args, name) is not None}
    node = NodeSpec("policy", "policy", (file,), values, lifecycle=True)
    given = parse_overrides([f"policy.{item}" for item in args.param]).get("policy", {})
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UserError(f"-p {unknown[0]}: the policy node has {', '.join(known)}")
    if not (args.policy or "policy" in given or "policy" in recorded):
        raise UserError(
            f"{args.bag} does not say which policy it is of: give --policy, and for vla"
            " --checkpoint (a bag of `vla-ros record` says it in its metadata or in"
            " vla_ros_run.json beside it)"
        )
    floats = {n: float(v) for n, v in given.items() if type(known[n]) is float and type(v) is int}
    values |= given | floats
    return GraphSpec((node,), "replay")


def _of_checkpoint(values: Mapping[str, Any]) -> tuple[int, int]:
    """Cameras that the checkpoint looks through, and values of robot state that it takes; one that
    cannot be read is for the policy node to refuse."""
    if values.get("policy") != "vla":
        return 1, 0
    from vla_ros.policies.base import PolicyRefused
    from vla_ros.policies.conventions import conventions_of

    try:
        key, scale = str(values.get("unnorm_key", "")), (1.0,) * 6
        found = conventions_of(str(values.get("checkpoint", "")), "", key, scale)
    except PolicyRefused:
        return 1, 0
    return found.cameras, found.state


def needs_of(node: NodeSpec) -> tuple[str, ...]:
    """What the policy joins with an image; in the order in which it is published."""
    values = {**node.file_parameters(), **node.parameters}
    needs = []
    if values.get("policy") == "scripted":
        needs.append("ground_truth")
    cameras, state = _of_checkpoint(values)
    if values.get("use_joint_states") or state:
        needs.append("joint_states")
    if values.get("use_wrist_image") or cameras == 2:
        needs.append("wrist_image")
    return tuple(needs)
