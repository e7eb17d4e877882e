"""Names that only the one who starts a process may give: programs, plug-ins, servers, paths.

Parameters of a command line, a launch file or a parameter file are the operator's and are not
looked at here. A bag's recorded parameters, a contract's own section and a call of
``set_parameters`` are somebody else's: they may name what was given at the start, what comes with
the package, and what lies below the roots. The roots are the folders in ``$VLA_ROS_ROOTS`` (joined
by ``:``); without it the home folder and the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vla_ros.core.errors import UserError
from vla_ros.policies.base import POLICIES

VARIABLE = "VLA_ROS_ROOTS"
#: Checkpoints that are code or files of the package.
OURS = ("shipped:", "random:")
_PROGRAMS = ("worker_python",)
_PATHS = ("replay_file", "replay_requests_file")
_OPTIONS = ("policy_options", "engine_options")
_PATH_OPTIONS = ("tokenizer", "draft_checkpoint")  # of the engine: a folder, whatever it looks like


class Untrusted(UserError, ValueError):
    """A name that only the one who starts the process may give, in one line; ``parameter``: of
    which one."""

    def __init__(self, parameter: str, text: str) -> None:
        super().__init__(text)
        self.parameter = parameter


def roots() -> tuple[Path, ...]:
    """Folders below which others may name paths, links resolved."""
    given = os.environ.get(VARIABLE)
    found = given.split(os.pathsep) if given else ["~", os.getcwd()]
    return tuple(Path(os.path.expanduser(one)).resolve() for one in found if one)


def refuse_named(
    values: Mapping[str, Any], source: str, started: Mapping[str, Any], how: str
) -> None:
    """Raise Untrusted where parameters ``values`` of the policy node name what ``source`` may not.

    ``started``: parameters that the operator gave; what they name is trusted. ``how``: with what
    the operator gives another one, as "--checkpoint" or "at the start".
    """
    for name, value, what in _named(values, started):
        raise Untrusted(
            name,
            f"{source} names {what} {value!r} ({name}), and only who starts the process may: give"
            f" it {how}{_hint(what)}",
        )


def _hint(what: str) -> str:
    if what != "the path":
        return ""
    return f", or put its folder into ${VARIABLE} ({os.pathsep.join(map(str, roots()))})"


def _named(values: Mapping[str, Any], started: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name, value and kind of each parameter that names what its source may not."""
    for name in _PROGRAMS:
        if (value := str(values.get(name) or "")) and value != started.get(name):
            yield name, value, "the program"
    policy = str(values.get("policy") or "")
    if policy and policy not in POLICIES and policy != started.get("policy"):
        yield "policy", policy, "the installed package's policy"
    checkpoint = str(values.get("checkpoint") or "")
    if checkpoint and checkpoint != started.get("checkpoint") and not checkpoint.startswith(OURS):
        if "://" in checkpoint:
            yield "checkpoint", checkpoint, "the server"
        elif not _below_roots(checkpoint.partition("#")[0]):
            yield "checkpoint", checkpoint, "the path"
    for name in _PATHS:
        value = str(values.get(name) or "")
        if value and value != started.get(name) and not _below_roots(value):
            yield name, value, "the path"
    for name in _OPTIONS:
        trusted = set(_words(started.get(name)))
        for word in _words(values.get(name)):
            option, _, text = (part.strip() for part in word.partition("="))
            path = _is_path(text) or (text and option in _PATH_OPTIONS)
            if path and word not in trusted and not _below_roots(text):
                yield name, word, "the path"


def _words(value: Any) -> Sequence[str]:
    return [str(word) for word in value] if isinstance(value, (list, tuple)) else []


def _is_path(text: str) -> bool:
    """True of text that a reader may take for a file, a folder or a repository."""
    return "/" in text or text.startswith(("~", "."))


def _below_roots(text: str) -> bool:
    """True of a file or folder that is there and lies below a root, links resolved."""
    try:
        path = Path(text).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # not there, a loop of links, a NUL
        return False
    return any(path.is_relative_to(root) for root in roots())
