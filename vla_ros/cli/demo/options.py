"""The options of `vla-ros demo`: what they mean for the nodes, and which do not go together."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_ros.bringup.graph_file import GraphSpec, parse_overrides
from vla_ros.cli.defaults import (
    CHECKPOINT,
    DRAFT_CHECKPOINT,
    SCHEDULES,
    default_checkpoint,
    refuse_unreadable,
)
from vla_ros.errors import UserError
from vla_ros.policies.base import POLICIES, refuse_unknown
from vla_ros.sim.goals import COLOURS

RANDOM_MAX_AGE_S = 2.0  # wiring and timing must show on a slow or busy CPU too
WITHOUT_MODEL = ("scripted", "zero", "replay")

DESCRIPTION = """\
Start the simulation, a policy and the monitor as processes of a ROS 2 graph of their own, let
the policy do one task without a window, and print what was measured during the episode.

The graph is local to this machine and in a ROS domain of its own: it cannot reach a robot."""

EPILOG = """\
tasks: C and D are two of {colours}
  pick_C_cube, push_C_cube_left, push_C_cube_right, stack_C_on_D, reach_C_cube

schedules:
{schedules}

examples:
  vla-ros demo                                  the small trained VLA solves a task
  vla-ros demo --schedule speculative --task push_blue_cube_left
  vla-ros demo --checkpoint DIR --device cuda:0 --schedule actionflow
  vla-ros demo --checkpoint random:small        random weights: wiring and timing
  vla-ros demo --policy scripted                an expert that is told where everything is
  vla-ros demo --mode lockstep --json           reproducible; the last line is JSON
  vla-ros demo --view                           a page in the browser, while it runs
  vla-ros demo --gif episode.gif                keep what the camera saw

exit status: 0 the task was solved (with random weights or the zero policy: the graph ran
properly), 1 it was not, 2 wrong usage, 3 the graph did not start or a node ended"""


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The options of this verb."""
    parser = verbs.add_parser(
        "demo",
        help="run one simulated task through the whole graph and print a card",
        description=DESCRIPTION,
        epilog=EPILOG.format(
            colours=", ".join(COLOURS),
            schedules=textwrap.indent(textwrap.fill(", ".join(SCHEDULES), 76), "  "),
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--policy",
        metavar="NAME",
        default="vla",
        help=f"who acts: {', '.join(POLICIES)}, or what an installed package offers (default: vla)",
    )
    add(
        "--policy-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="lerobot, an installed package's: an option of its own; may be repeated",
    )
    add(
        "--mode",
        choices=("realtime", "lockstep"),
        default="realtime",
        help="realtime: the world does not wait (default); lockstep: every frame is answered",
    )
    add("--task", metavar="NAME", help="what to do, see below (default: pick_red_cube)")
    add("--initial-state", type=int, metavar="N", help="which fixed initial state")
    add("--seed", type=int, metavar="N", help="of the initial states and of random weights")
    add("--control-rate", type=float, metavar="HZ", help="commands per second, 1 to 200")
    add("--schedule", metavar="NAME", help="vla: how tokens are decoded, see below")
    add("--checkpoint", metavar="DIR", help=f"model; required for lerobot (vla: {CHECKPOINT})")
    add("--embodiment", metavar="TAG", help="vla: the robot, where a checkpoint has several")
    add("--device", help="of the model: torch device, such as cuda:0")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="of the weights")
    add("--weights", metavar="F", help="vla: their formats, such as int8, fp8 or"
        " decoder=int4,head=int8, with --dtype bfloat16")  # fmt: skip
    add("--replay-file", type=Path, metavar="FILE", help="replay: .npy or .npz of [N, 7]")
    add(
        "-p",
        "--param",
        action="append",
        default=[],
        metavar="NODE.PARAM=VALUE",
        help="any other parameter of a node; may be repeated",
    )
    add(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="longest time for the episode, loading not counted (default: 120)",
    )
    add("--gif", type=Path, metavar="FILE", help="write the camera's images: .gif, or .png (last)")
    add("--view", action="store_true", help="show it in the browser while it runs")
    add("--domain-id", type=int, metavar="N", help="ROS domain (default: a free one, 1 to 100)")
    add("--json", action="store_true", help="end with one line of JSON on stdout")
    add("--verbose", action="store_true", help="show the log of every node")


def parameters(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The parameters that the options stand for; `-p` wins. Raises UserError."""
    _check(args)
    policy = {
        "policy": args.policy,
        "policy_options": args.policy_option or None,
        **(_for_model(args) if args.policy == "vla" else {"checkpoint": args.checkpoint}),
        "mode": args.mode,
        "schedule": args.schedule,
        "embodiment": args.embodiment,
        "device": args.device,
        "dtype": args.dtype,
        "weights": args.weights,
        "control_rate_hz": args.control_rate,
        "seed": args.seed,
        "replay_file": str(args.replay_file) if args.replay_file else None,
    }
    bridge = {
        "mode": args.mode,
        "task": args.task,
        "initial_state": args.initial_state,
        "seed": args.seed,
        "auto_reset": False,
    }
    found: dict[str, dict[str, Any]] = {"policy": policy, "bridge": bridge, "monitor": {}}
    if args.mode == "lockstep":
        policy["use_sim_time"] = True
        found["monitor"]["use_sim_time"] = True
    found = {
        node: {name: value for name, value in values.items() if value is not None}
        for node, values in found.items()
    }
    for node, values in parse_overrides(args.param).items():
        found[node] = found.get(node, {}) | values
    return found


def _for_model(args: argparse.Namespace) -> dict[str, Any]:
    """What a VLA needs to run well beside a simulation on one machine."""
    checkpoint = args.checkpoint or default_checkpoint([args.schedule])
    said = parse_overrides(args.param).get("policy", {})
    if args.weights:
        from vla_ros.engine.inspection import refuse_weights

        try:
            refuse_weights(checkpoint, args.weights, args.device or "cpu", args.dtype or "float32")
        except ValueError as wrong:
            raise UserError(str(wrong)) from None
    refuse_unreadable(checkpoint, str(said.get("tokenizer", "")))
    robot = args.embodiment or str(said.get("embodiment", ""))
    values: dict[str, Any] = {"checkpoint": checkpoint, **_state(checkpoint, said, robot)}
    if args.schedule == "vanilla_speculative":  # by definition with a draft model
        values |= {"drafter": "model", "draft_checkpoint": DRAFT_CHECKPOINT}
    if (args.device or "cpu") == "cpu" and checkpoint.startswith("random"):
        values["max_age_s"] = RANDOM_MAX_AGE_S
    return values


def _state(checkpoint: str, said: Mapping[str, Any], embodiment: str) -> dict[str, Any]:
    """How the robot's state is put together for a checkpoint that takes LIBERO's."""
    from vla_ros.evaluation.robot_state import state_parameters
    from vla_ros.policies.base import PolicyRefused
    from vla_ros.policies.conventions import conventions_of

    try:
        key = str(said.get("unnorm_key", ""))
        found = conventions_of(checkpoint, unnorm_key=key, embodiment=embodiment)
    except PolicyRefused as error:  # the node says it, where `-p` does not put it right
        if embodiment:
            raise UserError(str(error)) from None
        return {}
    return state_parameters(found.state)


def _check(args: argparse.Namespace) -> None:
    """Options that do not go together, and names that do not exist. Raises UserError."""
    if args.policy not in POLICIES:
        refuse_unknown(args.policy)
    _check_policy_options(args)
    owners = {"schedule": "vla", "embodiment": "vla", "weights": "vla", "replay_file": "replay"}
    for option, who in owners.items():
        if getattr(args, option) is not None and args.policy != who:
            name = option.replace("_", "-")
            raise UserError(f"--{name} needs --policy {who}, not {args.policy}")
    for option in ("checkpoint", "device", "dtype"):
        if getattr(args, option) is not None and args.policy in WITHOUT_MODEL:
            raise UserError(f"--{option} needs --policy vla, or another with a model,"
                            f" not {args.policy}")  # fmt: skip
    if args.policy == "lerobot" and not args.checkpoint:
        raise UserError("--policy lerobot needs --checkpoint: a folder, or a hub id")
    if args.policy == "replay" and args.replay_file is None:
        raise UserError("--policy replay needs --replay-file FILE")
    if args.replay_file is not None and not args.replay_file.is_file():
        raise UserError(f"--replay-file: no file {args.replay_file}")
    if args.control_rate is not None and not 1.0 <= args.control_rate <= 200.0:
        raise UserError(f"--control-rate {args.control_rate:g}: must be 1 to 200 Hz")
    if args.seed is not None and not 0 <= args.seed < 2**31:
        raise UserError(f"--seed {args.seed}: must be 0 to {2**31 - 1}")
    if not 0 < args.timeout <= 3600:
        raise UserError(f"--timeout {args.timeout:g}: must be above 0, at most 3600 seconds")
    if args.domain_id is not None and not 0 <= args.domain_id <= 232:
        raise UserError(f"--domain-id {args.domain_id}: must be 0 to 232")
    if args.schedule is not None:
        _check_schedule(args.schedule)


def _check_policy_options(args: argparse.Namespace) -> None:
    if args.policy_option and args.policy in ("vla", *WITHOUT_MODEL):
        raise UserError(
            "--policy-option needs --policy lerobot or one of an installed package, not"
            f" {args.policy}"
        )
    if wrong := [one for one in args.policy_option if not one.partition("=")[0] or "=" not in one]:
        raise UserError(f"--policy-option {wrong[0]}: write name=value")


def check_graph(spec: GraphSpec) -> None:
    """What a node would refuse only once it was started. Raises UserError."""
    policy, bridge = spec.node("policy").values(), spec.node("bridge").values()
    if policy["policy"] == "vla":
        _check_schedule(str(policy["schedule"]))
        _check_device(str(policy["device"]))
    if bridge["environment"] == "tabletop":
        _check_task(str(bridge["task"]), int(bridge["initial_state"]))


def _check_schedule(name: str) -> None:
    if name not in SCHEDULES:
        raise UserError(f"schedule {name}: there are {', '.join(SCHEDULES)}")


def _check_device(name: str) -> None:
    if name != "cpu":
        from vla_ros.engine.device import usable_device

        usable_device(name)


def _check_task(name: str, initial_state: int) -> None:
    from vla_ros.sim.tasks import TASKS

    tasks = {task.name: task for task in TASKS}
    if name not in tasks:
        raise UserError(f"task {name}: there are {', '.join(tasks)}")
    count = tasks[name].initial_states
    if not 0 <= initial_state < count:
        raise UserError(f"initial state {initial_state}: {name} has 0 to {count - 1}")
