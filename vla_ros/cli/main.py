"""`vla-ros`: finds the verb, imports only that verb, runs it.

Exit status: 0 done, 1 it ran and failed, 2 wrong usage or a bad file, 130 interrupted.

Errors that the user can put right end every verb with one line, here and nowhere else: a
:class:`~vla_ros.core.errors.UserError`, and an OSError about a file (not there, not a folder, no
permission, disk full), and a package that an extra of setup.py brings. Every other error is one of
the program and keeps its traceback.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NoReturn

from vla_ros.cli.arguments import GROUPS, VERBS
from vla_ros.core.console import error, plain_output
from vla_ros.core.errors import UserError
from vla_ros.core.extensions import LAB, extensions, imported
from vla_ros.core.extensions import VERBS as GROUP
from vla_ros.core.names import nearest

EPILOG = """\
`vla-ros VERB --help` explains each; docs/reference/parameters.md has the
parameters of the nodes."""


class Parser(argparse.ArgumentParser):
    """Wrong usage is one line on stderr and exit status 2."""

    def __init__(self, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        self.color = False  # of Python 3.14's help: its escape codes would be shown as text
        self.verbs: Mapping[str, argparse.ArgumentParser] = {}

    def error(self, message: str) -> NoReturn:
        if refused := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message):
            near = nearest(refused[1], re.findall(r"[^\s,']+", refused[2]))
            message += near.replace(":", ";", 1)
        error(self.prog, f"{message} (see {self.prog} --help)")
        self.exit(2)


def available() -> dict[str, tuple[str, str]]:
    """Verb -> module and line of help: this package's, then those of other distributions."""
    found = {verb: (f"vla_ros.cli.{verb}", text) for verb, text in VERBS.items()}
    for package in _packages():
        for verb, text in package.VERBS.items():
            found.setdefault(verb, (f"{package.__name__}.{verb}", text))
    return found


@cache
def _packages() -> list[ModuleType]:
    """The packages of other distributions' verbs. A damaged one is named, and takes none of the
    other verbs away."""
    found = []
    try:
        for point in extensions(GROUP).values():
            found.append(imported(point))
    except UserError as wrong:
        error("vla-ros", wrong)
    return found


def make_parser(chosen: str | None) -> tuple[Parser, ModuleType | None]:
    """A parser that knows every verb by name and only the chosen one in full."""
    from vla_ros import __version__

    known = available()
    parser = Parser(
        prog="vla-ros",
        usage="vla-ros [-h] [--version] VERB ...",
        description="The ROS 2 runtime for vision-language-action policies.",
        epilog=f"{_grouped(known)}\n\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"vla-ros {__version__}")
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, prog="vla-ros", help=argparse.SUPPRESS
    )
    parser.verbs = verbs.choices
    module = None
    for verb, (path, _) in known.items():
        if verb == chosen:
            module = importlib.import_module(path)
            module.add_parser(verbs)
        else:
            verbs.add_parser(verb)
    return parser, module


def _instead(chosen: str) -> str:
    """End of a line that refuses a verb."""
    known = available()
    if "=" in chosen:
        return ": the verb comes first"
    alone = known.keys() == VERBS.keys()
    return nearest(chosen, known, f" here; those of the lab come with it: {LAB}" if alone else "")


def _grouped(known: Mapping[str, tuple[str, str]]) -> str:
    """The verbs in their groups, for help."""
    width = max(map(len, known)) + 2
    groups: dict[str, tuple[str, ...]] = dict(GROUPS)
    for package in _packages():
        for title, verbs in getattr(package, "GROUPS", {"others": tuple(package.VERBS)}).items():
            groups[title] = (*groups.get(title, ()), *verbs)
    grouped = {verb for verbs in groups.values() for verb in verbs}
    groups["others"] = tuple(verb for verb in known if verb not in grouped)
    parts = []
    for title, verbs in groups.items():
        rows = [
            textwrap.fill(
                f"  {verb:<{width}}{known[verb][1]}", 80, subsequent_indent=" " * (width + 2)
            )
            for verb in verbs
            if verb in known
        ]
        if rows:
            parts.append("\n".join([f"{title}:", *rows]))
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    with plain_output():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    parser, module = make_parser(chosen)
    if chosen is not None and module is None:
        parser.error(f"there is no verb {chosen!r}{_instead(chosen)}")
    args, strange = parser.parse_known_args(arguments)
    if strange:
        _refuse_strange(parser.verbs[args.verb], strange)
    assert module is not None  # argparse refused an unknown verb
    who = f"vla-ros {args.verb}"
    try:
        _refuse_absent(args)
        status: int = module.run(args)
        return status
    except UserError as wrong:
        error(who, wrong)
        return 2
    except KeyboardInterrupt:
        error(who, "interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output (head, less) went away
        sys.stderr.close()
        return 1
    except OSError as wrong:
        if wrong.filename is None:
            raise
        error(who, f"{wrong.filename}: {_reason(wrong)}")
        return 2
    except ModuleNotFoundError as wrong:
        extra = _extra_with(wrong.name or "")
        if not extra:
            raise
        error(who, f"{wrong.name} is not installed: pip install '.[{extra}]' in the checkout")
        return 2


def _refuse_absent(args: argparse.Namespace) -> None:
    """Raise CheckpointError for a --checkpoint that is not there, before the verb imports torch,
    which takes seconds. A robot's file may have a lock of its own; doctor has a table for it."""
    name, robot = getattr(args, "checkpoint", None), getattr(args, "robot", None)
    if not isinstance(name, str) or not name or robot or args.verb == "doctor":
        return
    if "://" in name or getattr(args, "policy", None) not in (None, "", "vla", "lerobot"):
        return
    from vla_ros.engine.io.hub import look

    look(name)


def _refuse_strange(parser: argparse.ArgumentParser, words: Sequence[str]) -> NoReturn:
    """End with a line about words that the verb does not know: a mistyped flag, or the rest of a
    value."""
    if (first := words[0].partition("=")[0]).startswith("-"):
        flags = [flag for action in parser._actions for flag in action.option_strings]
        parser.error(f"there is no {first}{nearest(first, flags)}")
    parser.error(f"what is {' '.join(words)}? Put a value with spaces in quotes")


def _extra_with(module: str) -> str:
    """The extra that brings this module, after package metadata; "": none does."""
    wanted = {"rclpy": "ros-rclpy", "vla_ros": ""}.get(first := module.partition(".")[0], first)
    try:
        requirements = importlib.metadata.requires("vla_ros") or []
    except importlib.metadata.PackageNotFoundError:  # of a colcon workspace: only pip has extras
        return ""
    for line in requirements:
        name, extra = re.match(r"[\w-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and extra and name[0].lower() == wanted:
            return extra[1]
    return ""


def _reason(wrong: OSError) -> str:
    """Reason of an OSError of a file, in the system's words or plainer ones."""
    if isinstance(wrong, FileExistsError | NotADirectoryError):
        return "there is a file of this name, and a folder is needed"
    return wrong.strerror or type(wrong).__name__


if __name__ == "__main__":
    sys.exit(main())
