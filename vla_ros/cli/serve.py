"""`vla-ros serve`: a policy for clients of openpi's websocket protocol and of `POST /act`."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from typing import Any

from vla_ros.cli.arguments import (
    Verbs,
    adaptation_words,
    add_conventions,
    add_fields,
    add_verb,
    scale_of,
    words_of,
)
from vla_ros.cli.defaults import CHECKPOINT
from vla_ros.core.action_space import KINDS, ActionSpace, end_effectors, is_gripper, joints
from vla_ros.core.adaptation import adaptation_of_words
from vla_ros.core.console import LogFormatter
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.options import AUTO, HERE, EngineOptions, parse_options
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.remote.link import TOKEN

FLAGS = (
    "decoding", "device", "dtype", "weights", "unnorm_key", "embodiment", "camera_map",
    "center_crop", "preprocessing", "rtc_mode", "tokenizer", "num_threads", "seed",
)  # fmt: skip
MIB = 1024 * 1024
DESCRIPTION = """\
Serve a policy over openpi's websocket protocol: policy nodes with policy remote, openpi's own
client and whoever speaks it send observations and get actions; OpenVLA's clients POST them to /act
on the same port. Needs neither ROS 2 nor its network.
Only programs on this machine reach it, unless --host and a token say otherwise."""

EPILOG = """\
VLA_ROS_TOKEN in the environment: what clients have to send as `Authorization: Api-Key ...`; policy
nodes read it from theirs. GET /healthz and /metrics (Prometheus) are answered on the same port.

examples:
  vla-ros serve shipped:tabletop
  VLA_ROS_TOKEN=$(cat token) vla-ros serve DIR --device cuda --dtype bfloat16 --host 0.0.0.0"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "serve", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("checkpoint", nargs="?", default="", metavar="CHECKPOINT", help=f"a folder, a hub id or a"
        f" name ({CHECKPOINT} of policy vla)")  # fmt: skip
    add("--policy", default="vla", help="vla, or another policy that this Python can load (vla)")
    add("--replay-file", default="", metavar="FILE", help="of policy replay")
    add("--host", default="127.0.0.1", help="address to listen at (127.0.0.1)")
    add("--port", type=int, default=8000, help="0: a free one (8000)")
    add("--names", default="", metavar="TABLE", help="what clients call cameras and state: libero,"
        " droid, aloha or a YAML file (observation/image, observation/state ...)")  # fmt: skip
    add("--max-clients", type=int, default=16, metavar="N", help="at once (16)")
    add("--max-mib", type=float, default=32.0, metavar="X", help="largest message (32)")
    add("--max-rate", type=float, default=200.0, metavar="HZ", help="of a client, more waits (200)")
    add("--replicas", type=int, default=0, metavar="N", help="as a Ray Serve application of N"
        " processes, on cuda with a GPU each (0: without Ray)")  # fmt: skip
    add("--rate", type=float, default=0.0, metavar="HZ", help="answers for a client that"
        " asks for no rate; one that cannot have them is refused (0: as they come)")  # fmt: skip
    add("--max-age", type=float, default=0.0, metavar="S", help="how old the observation of its"
        " answers may be; policy nodes say their own (0: as old as it gets)")  # fmt: skip
    add("--state-units", default="", metavar="UNITS", help="of a checkpoint whose joints are not in"
        " rad: one for all, or one each, joined by commas (deg,deg,0..100)")  # fmt: skip
    add("--action-space", choices=KINDS, help="what its actions are, where its files do not say it;"
        " of joints with --action-names")  # fmt: skip
    add("--action-names", default="", metavar="NAMES", help="the joints in its order, joined by"
        " commas; those called gripper or finger, or of --gripper-names, are grippers")  # fmt: skip
    add("--gripper-names", default="", metavar="NAMES", help="which of them are grippers")
    add_conventions(parser)
    add("--action-rate-hz", type=float, default=0.0, metavar="HZ", help="of its data, where its"
        " files do not say it: velocities need it (0: as they say)")  # fmt: skip
    add("--engine-option", action="append", default=[], metavar="NAME=VALUE", help="of the"
        " engine's others, such as state_in_prompt=robot; may be given again")  # fmt: skip
    add("--policy-option", action="append", default=[], metavar="NAME=VALUE", help="of an"
        " installed package's policy; may be given again")  # fmt: skip
    add("--warmup-count", type=int, default=3, metavar="N", help="inferences before it serves (3)")
    group = parser.add_argument_group("the engine")
    add_fields(group, EngineOptions, *FLAGS, **HERE)


def _pairs(words: Sequence[str], flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name.strip() and equals) or name.strip() in found:
            raise UserError(f"{flag} {word}: write NAME=VALUE, each name once")
        found[name.strip()] = value.strip()
    return found


def _space(args: argparse.Namespace) -> ActionSpace:
    """Space of the flags. UserError: joints without names, or names without joints."""
    kind = KINDS[args.action_space or "end_effector_delta"]
    names, grippers = words_of(args.action_names), words_of(args.gripper_names)
    if kind.joints is not bool(names):
        raise UserError("--action-names goes with --action-space joint_position or joint_delta")
    if strange := sorted(set(grippers) - set(names)):
        raise UserError(f"--gripper-names has {', '.join(strange)}: not among --action-names")
    if not names:
        return end_effectors(kind)
    return joints(kind, names, grippers or tuple(name for name in names if is_gripper(name)))


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from vla_ros.serve.server import ServeOptions, serve

    if args.replicas < 0 or (args.replicas and not args.port):
        raise UserError("--replicas must be 0 or more, and with Ray --port is a number")
    if args.replicas and args.device == AUTO:
        from vla_ros.engine.layers.devices import usable_device

        args.device = usable_device(AUTO).type  # the replicas' machines are as this one
    if args.replicas and ":" in args.device:
        raise UserError(f"--device {args.device}: Ray gives each replica its GPU, say cuda")
    if args.policy == "remote":
        raise UserError("--policy remote: its clients may ask that server themselves")
    options = ServeOptions(
        host=args.host,
        port=args.port,
        token=os.environ.get(TOKEN, ""),
        names=args.names,
        max_clients=args.max_clients,
        max_bytes=round(args.max_mib * MIB),
        max_rate_hz=args.max_rate,
        rate_hz=args.rate,
        max_age_s=args.max_age,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    checkpoint = args.checkpoint or (CHECKPOINT if args.policy == "vla" else "")
    given: dict[str, Any] = {name: getattr(args, name) for name in FLAGS}
    with user_errors(ValueError):
        others = parse_options(_pairs(args.engine_option, "--engine-option"))
        if twice := sorted({*others} & {*FLAGS, "checkpoint"}):
            raise UserError(f"--engine-option {twice[0]}: a flag of that name says it")
        engine = EngineOptions(checkpoint=checkpoint, **given, **others)  # type: ignore[arg-type]
    spec = PolicySpec(
        args.policy,
        engine=engine,
        replay_file=args.replay_file,
        warmup_count=args.warmup_count,
        options=_pairs(args.policy_option, "--policy-option"),
        state_units=words_of(args.state_units),
        action_units=words_of(args.action_units),
        action_scale=scale_of(args.action_scale),
        gripper=args.gripper,
        action_rate_hz=args.action_rate_hz,
        action_space=_space(args),
        adaptation=adaptation_of_words(adaptation_words(args)),
    )
    if args.replicas:
        from vla_ros.serve.replicas import serve_replicas

        return serve_replicas(spec, options, args.replicas, lambda line: print(line, flush=True))
    return serve(spec, options, lambda line: print(line, flush=True))
