"""What is wrong with a command of the documentation, without running it: "" for nothing.

A command is held to what the package declares: `vla-ros` to the verbs' own parsers and the graph
files, `make` to the Makefile, `ros2` to launch files, nodes and interfaces, `pip` and `python3` to
the checkout. Every other program needs a reason, said by `<!-- needs: REASON -->` before its block.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache

from support.docs import declared
from support.docs.pages import ROOT
from support.docs.ros2 import ros2
from support.docs.shell import Command
from vla_ros.cli.main import main, make_parser
from vla_ros.sim.tasks import GOALS

#: reasons why a command is not run by anybody who has this checkout alone
NEEDS = {
    "docker": "Docker, and downloads",
    "network": "downloads from a model hub or a registry",
    "another machine": "a second machine in the network",
    "Jetson": "a Jetson",
    "ROS 2": "a ROS 2 install, with ros2 or colcon",
    "robot": "an arm, a camera or their drivers",
    "GPU": "an NVIDIA GPU",
    "LIBERO": "LIBERO's packages and assets",
    "LeRobot": "LeRobot in an environment of its own",
    "hours": "hours of training or evaluation",
}
_PLAIN = ("export", "cp", "cd", "mkdir")  # nothing of ours to hold them to
_TASK = re.compile(r"^(?:[\w.]+=)?((?:pick|push|stack|reach)_\w+)$")


def problem(command: Command) -> str:
    """One line, or "" where nothing is wrong."""
    if command.needs and command.needs not in NEEDS:
        return f"needs: {command.needs} is none of {', '.join(NEEDS)}"
    name = command.words[0].rpartition(".venv/bin/")[2]
    check = PROGRAMS.get(name)
    if check is None:
        if command.needs or name in _PLAIN:
            return ""
        return (
            f"{name!r}: nobody holds it to anything; give a reason, <!-- needs: ... --> before the"
            " block, or call the block ```text if it is no command"
        )
    return _names(command.words) or check(command)


def _names(words: tuple[str, ...]) -> str:
    """Tasks and shipped checkpoints by name, wherever they stand."""
    for word in words:
        task = _TASK.match(word)
        if task and task[1] not in GOALS:
            return f"the tabletop has no task {task[1]}"
        for name in re.findall(r"shipped:[\w-]+", word):
            if not declared.is_shipped(name):
                return f"there is no {name}"
    return ""


def vla_ros(command: Command) -> str:
    """By the verb's own parser; a graph is loaded with its parameters and nothing is started."""
    words = list(command.words[1:])
    wrong = _parsed(words)
    if wrong or words[0] != "up":
        return wrong
    if "--view" in words and not importlib.util.find_spec("viser"):
        words = _without_view(words)  # the graph would be refused: make view
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*words, "--list"])
    return err.getvalue().strip() if status else _graph(words)


def _parsed(words: list[str]) -> str:
    err = io.StringIO()
    parser, _ = make_parser(words[0] if words else None)
    try:
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
            parser.parse_args(words)
    except SystemExit as ended:
        return err.getvalue().strip() if ended.code else ""
    return ""


def _without_view(words: list[str]) -> list[str]:
    """The same words for a graph without a page in the browser."""
    words = [word for word in words if word != "--view"]
    for at in [i for i, word in enumerate(words) if word.startswith("view.")][::-1]:
        name = words[at].partition("=")[0].removeprefix("view.")
        if words[at - 1] in ("-p", "--param") and name in declared.parameters("view"):
            del words[at - 1 : at + 1]
    return words


def _graph(words: list[str]) -> str:
    """Topics that no node has."""
    args = make_parser("up")[0].parse_args(words)
    for item in args.remap:
        name = item.partition("=")[0].rpartition(":")[2]
        if not declared.is_name(name):
            return f"-r {item}: no node listens to or says {name}"
    return ""


def make(command: Command) -> str:
    given = [word for word in command.words[1:] if "=" not in word]
    if wrong := [word for word in given if word not in declared.make_targets()]:
        return f"make has no target {wrong[0]}"
    variables = dict(word.split("=", 1) for word in command.words[1:] if "=" in word)
    if wrong := [name for name in variables if name not in declared.make_variables()]:
        return f"the Makefile has no variable {wrong[0]}"
    if "demo" not in given:
        return ""
    words = ["demo", *shlex.split(variables.get("ARGS", ""))]
    for name, option in (("POLICY", "--policy"), ("TASK", "--task")):
        words += [option, variables[name]] if name in variables else []
    return _parsed(words)


def pip(command: Command) -> str:
    """What is installed from the checkout is there: `.[model,sim]`, a folder."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    for word in command.words[2:]:
        if extras := re.fullmatch(r"\.\[([\w,-]+)\]", word):
            for name in extras[1].split(","):
                if f'"{name}":' not in setup:
                    return f"setup.py has no extra {name}"
        elif "/" in word and not word.startswith(("-", "http")) and not (ROOT / word).exists():
            return f"there is no {word}"
        elif not command.needs and not word.startswith(("-", ".")) and "/" not in word:
            return f"{word} comes from an index: <!-- needs: network --> before the block"
    return ""


def python(command: Command) -> str:
    """A program of the checkout with options that it has, a module, or code that compiles."""
    words = command.words[1:]
    if words[:2] == ("-m", "pip"):
        return pip(Command(command.where, words[1:], needs=command.needs))
    if words[0] == "-m":
        return "" if importlib.util.find_spec(words[1]) else f"there is no module {words[1]}"
    if words[0] == "-c":
        try:
            compile(words[1], command.where, "exec")
        except SyntaxError as error:
            return f"not Python: {error}"
        return ""
    file = ROOT / words[0].removeprefix("src/vla_ros/")
    if not file.is_file():
        return f"there is no {words[0]}"
    options = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    text = file.read_text(encoding="utf-8")
    return next((f"{words[0]} has no {o}" for o in options if f'"{o}"' not in text), "")


def docker(command: Command) -> str:
    if command.needs != "docker":
        return "<!-- needs: docker --> before the block"
    words = command.words
    files = [words[i + 1] for i, word in enumerate(words) if word == "-f"]
    if gone := [file for file in files if not (ROOT / file).is_file()]:
        return f"there is no {gone[0]}"
    given = {words[i + 1].partition("=")[0] for i, w in enumerate(words) if w == "--build-arg"}
    known = declared.dockerfile_arguments(files[0]) if files else frozenset()
    if wrong := given - (known or set()):
        return f"{files[0]} has no ARG {min(wrong)}"
    if wrong := {one.partition("=")[0] for one in command.assigned} - declared.compose_variables():
        return f"docker/compose*.yaml read no {min(wrong)}"
    return ""


PROGRAMS: dict[str, Callable[[Command], str]] = {
    "vla-ros": vla_ros,
    "make": make,
    "ros2": ros2,
    "pip": pip,
    "python": python,
    "python3": python,
    "docker": docker,
}


@cache
def _options(verb: str) -> dict[str, argparse.Action]:
    """Every option of a verb, those of its own verbs too."""
    parser, _ = make_parser(verb)
    found: dict[str, argparse.Action] = {}
    for one in _all_parsers(parser):
        if one.prog.split()[1:2] == [verb]:
            found |= one._option_string_actions
    return found


def _all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _all_parsers(inner)


def inline_problem(command: Command) -> str:
    """Of code in running text, which may be a part of a command: the verb and its options exist."""
    words = command.words
    program = words[0].removeprefix(".venv/bin/")
    if program != "vla-ros":
        return problem(command) if program == "make" else ""
    if len(words) < 2 or words[1].isupper() or words[1].startswith("-"):
        return ""
    try:
        known = _options(words[1])
    except SystemExit:
        return f"vla-ros has no verb {words[1]}"
    if not known:
        return f"vla-ros has no verb {words[1]}"
    for word in words[2:]:
        name = word.partition("=")[0]
        if re.match(r"--?[a-z]", name) and name not in known:
            return f"vla-ros {words[1]} has no option {name}"
    return _names(words)
