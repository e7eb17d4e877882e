"""Names of the verbs, their parsers, flags that several share, and common checks.

Light: `vla-ros --help` imports this and nothing of the other rooms.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

from vla_ros.core.errors import UserError

if TYPE_CHECKING:
    from vla_ros.policies.base import Scale

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

#: verb → one line for `vla-ros --help`; in vla_ros/cli/<verb>.py or vla_ros/cli/<verb>/. Other
#: distributions bring more by entry points, see :mod:`vla_ros.core.extensions`.
VERBS = {
    "demo": "run one simulated task through the whole graph and sum it up",
    "up": "start a graph of nodes from a file, where ros2 launch is not installed",
    "setup": "look at a running robot and a checkpoint, write a robot file",
    "check": "ask a checkpoint about recorded frames: which convention is wrong?",
    "doctor": "check this machine: every line ok, or what to do about it",
    "contract": "a robot's description: Rosetta's contract as our parameters, and back",
    "serve": "a policy for other machines, over openpi's websocket protocol",
    "record": "record a running policy into a bag",
    "replay": "play a bag into a policy and compare its actions",
    "rerun": "a bag as a recording of the Rerun viewer",
    "export": "make a LeRobotDataset of bags",
    "convert": "make a checkpoint that the engine reads of a released one",
    "eval": "measure success over many episodes",
    "quantize": "write a checkpoint with weights of fewer bits",
    "lock": "which commits hub ids are held to; hold one to what the hub has now",
    "libero": "prepare the LIBERO benchmark, list its tasks",
    "lerobot": "set up LeRobot's environment, check its checkpoints",
}

#: title in `vla-ros --help` → its verbs
GROUPS: Mapping[str, tuple[str, ...]] = {
    "run a policy": ("demo", "setup", "check", "up", "serve", "doctor"),
    "data": ("record", "replay", "rerun", "export"),
    "learn": (),
    "measure": ("eval",),
    "checkpoints and robots": ("convert", "quantize", "lock", "contract"),
    "set up": ("lerobot", "libero"),
}

#: flags of several verbs; a verb may give another help, default or metavar
FLAGS: Mapping[str, Mapping[str, Any]] = {
    "--json": {"action": "store_true", "help": "end with one line of JSON on stdout"},
    "--param": {"action": "append", "default": [], "metavar": "NODE.PARAM=VALUE"},
    "--remap": {"action": "append", "default": [], "metavar": "FROM=TO"},
    "--log-level": {"default": "info"},
    "--domain-id": {"type": int, "metavar": "N", "help": "ROS domain (a free one, 1 to 100)"},
    "--for": {"dest": "seconds", "type": float, "metavar": "SECONDS"},
}
SHORT = {"--param": "-p", "--remap": "-r"}


def add_verb(
    verbs: Verbs, name: str, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    """The parser of one verb, ours or another distribution's."""
    return verbs.add_parser(
        name,
        help=VERBS.get(name, ""),
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_flag(group: argparse._ActionsContainer, name: str, **other: Any) -> None:
    """One of :data:`FLAGS`, with what is different here."""
    words = (SHORT[name], name) if name in SHORT else (name,)
    group.add_argument(*words, **{**FLAGS[name], **other})


def add_fields(group: Any, options: type, *names: str, **defaults: Any) -> None:
    """Flags of a dataclass's fields ``names``; ``defaults`` replace the fields' own.

    A field's metadata has the ``text``, and ``choices``, ``metavar``, or ``flag`` where it is not
    the field's name. A switch that is on by default is turned off by ``--no-name``; ``each`` is the
    type of the values of a list, which is joined by commas.
    """
    declared = {one.name: one for one in fields(options)}
    for name in names:
        own, more = declared[name].default, declared[name].metadata
        default = defaults.get(name, own)
        flag, kind = more.get("flag", name.replace("_", "-")), type(own)
        words: dict[str, Any] = {"dest": name, "default": default}
        if kind is bool:
            flag = f"no-{flag}" if own else flag
            words["action"] = "store_false" if own else "store_true"
            words["help"] = f"do not {more['text']}" if own else more["text"]
        else:
            # A text that ends so has the default in it.
            silent = default in ("", 0, None, ()) or more["text"].endswith(")")
            listed = default if isinstance(default, tuple) else (default,)
            shown = "" if silent else f" ({','.join(f'{value}' for value in listed)})"
            words |= {"help": more["text"].replace("%", "%%") + shown}
            words |= {"type": joined(more["each"]) if "each" in more else kind}
            words |= {"choices": more.get("choices") or None}
            words |= {} if words["choices"] else {"metavar": more.get("metavar", METAVARS[kind])}
        group.add_argument(f"--{flag}", **words)


METAVARS = {str: "TEXT", int: "N", float: "X", tuple: "NAME"}


def joined(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """A type for argparse: values joined by commas, none twice."""

    def parse(text: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(kind(word.strip()) for word in text.split(",") if word.strip()))

    parse.__name__ = f"list of {kind.__name__}"
    return parse


def check_seconds(seconds: float | None) -> None:
    """Raise UserError for a --for that is not above 0."""
    if seconds is not None and not seconds > 0:
        raise UserError(f"--for {seconds:g}: must be above 0 seconds")


def check_domain(domain: int | None) -> None:
    """Raise UserError for a number that is no ROS domain."""
    if domain is not None and not 0 <= domain <= 232:
        raise UserError(f"--domain-id {domain}: must be 0 to 232")


def require_rosbags() -> None:
    """Raise UserError where bags cannot be read or written."""
    if importlib.util.find_spec("rosbags") is None:
        raise UserError("rosbags is missing: pip install '.[replay]' in the checkout")


def command() -> str:
    """The command that runs, for a report; --json changes nothing in it."""
    return "vla-ros " + shlex.join(word for word in sys.argv[1:] if word != "--json")


# Flags about what a checkpoint's numbers are, where its files do not say it: of serve and eval.


def add_conventions(group: Any) -> None:
    """Units of actions, and which side of a gripper is open."""
    add = group.add_argument
    add("--action-units", default="", metavar="UNITS", help="of its actions: one for all that move,"
        " or one each, joined by commas (deg; deg,deg,0..100; 0.2rad; rad/s)")  # fmt: skip
    add("--action-scale", default="", metavar="SCALE", help="of an end effector: m and rad of one"
        " unit, two numbers or six joined by commas (0.05,0.5)")  # fmt: skip
    add("--gripper", default="", metavar="CLOSED..OPEN", help="what its actions have for a closed"
        " and an open gripper, such as 1..-1; --gripper=-1..1 where closed is below 0")  # fmt: skip


def words_of(text: str) -> tuple[str, ...]:
    """Words that are joined by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def scale_of(text: str) -> Scale | None:
    """Metres and radians of one unit of x y z rx ry rz; None: as the checkpoint says. UserError."""
    if not text:
        return None
    try:
        numbers = [float(word) for word in words_of(text)]
    except ValueError:
        numbers = []
    if len(numbers) == 2:
        numbers = [*numbers[:1] * 3, *numbers[1:] * 3]
    if len(numbers) != 6:
        raise UserError(f"--action-scale {text}: write two numbers or six, such as 0.05,0.5")
    x, y, z, rx, ry, rz = numbers
    return x, y, z, rx, ry, rz
