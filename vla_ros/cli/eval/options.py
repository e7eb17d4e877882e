"""The options of `vla-ros eval`: what they mean as a setup and as variants. Raises UserError."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vla_ros.bringup.view import view_node
from vla_ros.cli.defaults import (
    CHECKPOINT,
    SCHEDULE,
    default_checkpoint,
    refuse_unreadable,
)
from vla_ros.errors import UserError

if TYPE_CHECKING:
    from vla_ros.evaluation.records import Setup

T = TypeVar("T")

POLICIES = ("vla", "scripted", "zero")
MODES = ("lockstep", "realtime")

DESCRIPTION = """\
Play many episodes of many tasks and say how often the policy succeeds, with 95 % Wilson
intervals: through the ROS graph, or straight on the policy (--no-ros), in lock-step the same to
the last bit. Every variant (schedule, drafter, acceptance, delay, replan interval) plays the same
episodes; the same options give the same initial states. An episode that breaks counts as failed.

Stopped at any moment, the same command with the same --out goes on. DIR holds run.json,
episodes.jsonl (a line an episode), report.html and summary.json."""

EPILOG = """\
examples:
  vla-ros eval --policy scripted --no-ros --episodes 5
  vla-ros eval --episodes 20 --no-ros --workers 4 --out runs/eval
  vla-ros eval --schedule autoregressive,speculative,actionflow --tasks reach push
  vla-ros eval --schedule speculative --relaxed 1,2,3,5,8,15 --no-ros
  vla-ros eval --episodes 2 --mode realtime --view
  vla-ros eval --checkpoint DIR --mode realtime --image-delay-ms 0,50,100,200
  vla-ros eval --env libero --suite libero_object --checkpoint openvla/... --device cuda:0

exit status: 0 all episodes were played (successful or not), 1 a variant cannot be played,
2 wrong usage, 130 interrupted (to be continued)"""


def listed(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A type for argparse: values joined by commas, none twice."""

    def parse(text: str) -> list[T]:
        return list(dict.fromkeys(kind(word.strip()) for word in text.split(",") if word.strip()))

    parse.__name__ = f"list of {kind.__name__}"
    return parse


def add_parser(verbs: Any) -> None:
    """The options of this verb."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "eval",
        help="measure success over many episodes",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _what(parser.add_argument_group("what is played").add_argument)
    _policy(parser.add_argument_group("the policy").add_argument)
    _variants(parser.add_argument_group("variants; lists are joined by commas").add_argument)
    _how(parser.add_argument_group("how").add_argument)


def _what(add: Callable[..., Any]) -> None:
    add("--env", choices=("tabletop", "libero"), help="simulation (tabletop; libero with --suite)")
    add("--suite", default="", metavar="S", help="libero: such as libero_object")
    add("--tasks", nargs="+", default=[], metavar="NAME", help="tasks or families (all)")
    add("--episodes", type=int, default=20, metavar="N", help="of every task and variant (20)")
    add("--seed", type=int, default=0, help="of the initial states, 0 to 999999 (0)")
    add("--mode", choices=MODES, default="lockstep", help="realtime: the world does not wait")
    add("--instruction", default="", metavar="TEXT", help="said instead of each task's own")
    add("--nudge", type=float, default=0.0, metavar="M", help="tabletop: move the task's cube so"
        " far while the hand is on its way to it")  # fmt: skip
    add("--max-steps", type=int, default=0, metavar="N", help="of an episode (the task's limit)")


def _policy(add: Callable[..., Any]) -> None:
    add("--policy", choices=POLICIES, default="vla", help="who acts (vla)")
    add("--checkpoint", metavar="C", help=f"vla: directory or hub id ({CHECKPOINT})")
    add("--device", default="cpu", help="vla: torch device (cpu)")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    add("--weights", default="", metavar="F", help="formats of the weights, such as int8, fp8 or"
        " decoder=int4,head=int8, with --dtype bfloat16 (as stored)")  # fmt: skip
    add("--threads", type=int, metavar="N", help="of the model (lock-step 1, else half the CPUs)")
    add("--unnorm-key", default="", metavar="KEY", help="vla: whose action statistics")
    add("--embodiment", default="", metavar="TAG", help="vla: the robot, where a checkpoint has"
        " several")  # fmt: skip
    add("--max-age", type=float, default=0.5, metavar="S", help="age limit of evidence (0.5)")


def _variants(add: Callable[..., Any]) -> None:
    words = listed(str)
    add("--schedule", type=words, metavar="S,..", help=f"vla: decoding schedules ({SCHEDULE})")
    add("--drafter", type=words, default=["temporal"], metavar="D,..", help="temporal,"
        " temporal_tree, head, model")  # fmt: skip
    add("--draft-checkpoint", default="", metavar="C", help="of drafter model or head; not"
        f" needed for {CHECKPOINT}")  # fmt: skip
    add("--calibration", default="", metavar="FILE", help="of heterospec (heterospec.json beside"
        " the checkpoint)")  # fmt: skip
    add("--acceptance", type=words, default=["exact"], metavar="A,..", help="exact, sampling")
    add("--relaxed", type=listed(int), default=[], metavar="R,..", help="and relaxed by r bins")
    add("--extrapolation", choices=("repeat", "linear"), default="repeat", help="temporal drafts")
    add("--replan-interval", type=listed(int), default=[0], metavar="S,..", help="actions of a"
        " chunk that are executed; 0: all")  # fmt: skip
    add(
        "--execution",
        type=words,
        default=["async"],
        metavar="E,..",
        help="of chunks: sync, async, ensemble, rtc, rtc_trained (async)",
    )
    add("--rtc-jacobian", type=words, default=["identity"], metavar="J,..", help="of rtc:"
        " identity, true (identity)")  # fmt: skip
    add("--delay-frames", type=listed(int), default=[0], metavar="D,..", help="lock-step: act on"
        " the observation of so many control steps ago; chunks come so late")  # fmt: skip
    add("--image-delay-ms", type=listed(float), default=[0.0], metavar="MS,..", help="realtime:"
        " images come so much later, their stamp unchanged")  # fmt: skip


def _how(add: Callable[..., Any]) -> None:
    add("--no-ros", action="store_true", help="lock-step straight on the policy, without ROS")
    add("--workers", type=int, default=1, metavar="N", help="lock-step: processes (1)")
    add("--ray", action="store_true", help="workers are actors of a Ray cluster")
    add("--image-size", type=int, default=256, metavar="PX", help="of the cameras (256)")
    add("--out", type=Path, metavar="DIR", help="the evaluation's directory (runs/eval-TIME)")
    add("--keep-tokens", action="store_true", help="keep what the policy said of every frame,"
        " an .npz an episode in DIR/tokens (vla-ros coverage reads them)")  # fmt: skip
    add("--view", action="store_true", help="show the graph in the browser while it plays")
    add("--json", action="store_true", help="end with one line of JSON on stdout")


def check(args: argparse.Namespace) -> None:
    """Options that do not go together. Raises UserError."""
    realtime = args.mode == "realtime"
    model_options = {
        "checkpoint": args.checkpoint,
        "embodiment": args.embodiment,
        "schedule": args.schedule,
        "relaxed": args.relaxed,
        "draft-checkpoint": args.draft_checkpoint,
    }
    if args.policy != "vla":
        for name, value in model_options.items():
            if value:
                raise UserError(f"--{name} needs --policy vla, not {args.policy}")
    elif not args.checkpoint:
        if environment_of(args) != "tabletop":  # the shipped ones know nothing else
            raise UserError("--env libero needs --checkpoint: a directory or a hub id")
        args.checkpoint = default_checkpoint(args.schedule or [])
    if args.suite and args.env == "tabletop":
        raise UserError("--suite belongs to --env libero")
    if realtime and args.no_ros:
        raise UserError("--no-ros is lock-step: real time is measured through the ROS graph")
    if realtime and (args.workers > 1 or args.ray):
        raise UserError("--workers and --ray are for lock-step: in real time episodes that share"
                        " a machine slow each other down")  # fmt: skip
    if realtime and any(args.delay_frames):
        raise UserError("--delay-frames is lock-step: in real time use --image-delay-ms")
    if not realtime and any(args.image_delay_ms):
        raise UserError("--image-delay-ms is real time: in lock-step use --delay-frames")
    if args.view:
        _check_view(args)
    if min(args.workers, args.episodes) < 1:
        raise UserError("--workers and --episodes must be at least 1")
    if args.max_steps < 0 or (args.threads is not None and args.threads < 1):
        raise UserError("--max-steps must be 0 or more, --threads at least 1")
    if any(r < 1 or r > 255 for r in args.relaxed):
        raise UserError("--relaxed: distances are 1 to 255 bins")


def _check_view(args: argparse.Namespace) -> None:
    if args.no_ros:
        raise UserError("--view shows a running graph, and with --no-ros there is none")
    if args.workers > 1 or args.ray:
        raise UserError("--view shows one graph: without --workers and --ray")
    view_node(simulated=False)  # raises where viser is missing


def setup_of(args: argparse.Namespace, note: str) -> Setup:
    """What all episodes share; looks into the checkpoint. Raises UserError."""
    from vla_ros.evaluation.records import Setup
    from vla_ros.sim.episode.state import Mode

    shared: dict[str, Any] = {
        "environment": environment_of(args),
        "suite": args.suite,
        "policy": args.policy,
        "mode": Mode(args.mode),
        "route": "direct" if args.no_ros else "ros",
        "seed": args.seed,
        "threads": args.threads or _threads(args.mode),
        "image_size": args.image_size,
        "max_steps": args.max_steps,
        "max_age_s": args.max_age,
        "nudge_m": args.nudge,
        "note": note,
    }
    try:
        if args.policy == "vla":
            shared |= _of_checkpoint(args)
        return Setup(**shared)
    except ValueError as error:
        raise UserError(str(error)) from error
    except ImportError as error:
        raise UserError(f"{error}: pip install '.[model]' in the checkout") from error


def environment_of(args: argparse.Namespace) -> str:
    """The environment's name; a suite is LIBERO's."""
    return str(args.env or ("libero" if args.suite else "tabletop"))


def _of_checkpoint(args: argparse.Namespace) -> dict[str, Any]:
    from vla_ros.engine.device import usable_device
    from vla_ros.engine.inspection import refuse_weights, sha256_on_disk
    from vla_ros.engine.quantised.formats import parse_formats
    from vla_ros.policies.conventions import conventions_of

    usable_device(args.device)
    try:
        refuse_weights(args.checkpoint, args.weights, args.device, args.dtype)
    except ValueError as wrong:
        raise UserError(str(wrong)) from None
    refuse_unreadable(args.checkpoint)
    found = conventions_of(args.checkpoint, args.suite, args.unnorm_key, embodiment=args.embodiment)
    known = "" if args.checkpoint.startswith("random:") else sha256_on_disk(args.checkpoint)
    return {
        "checkpoint": args.checkpoint,
        "checkpoint_sha256": known,
        "device": args.device,
        "dtype": args.dtype,
        "weights": str(parse_formats(args.weights)),
        "unnorm_key": found.unnorm_key,
        "embodiment": args.embodiment,
        "center_crop": found.center_crop,
        "preprocessing": found.preprocessing,
        "ungated": environment_of(args) == "libero",  # the published protocol has no gate
        "action_scale": found.action_scale,
        "wrist": found.cameras == 2,
        "chunk": found.chunk,
        "state": found.state,
    }


def _threads(mode: str) -> int:
    """Lock-step: one, so that any machine computes the same. Real time: the simulation and the
    control tick need the other CPUs."""
    return 1 if mode == "lockstep" else max(1, len(os.sched_getaffinity(0)) // 2)
