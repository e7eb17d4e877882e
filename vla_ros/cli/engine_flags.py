"""Flags of the engine's options: one a field, by its name, with its choices and its text."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from vla_ros.engine.options import OPTIONS, RENAMED


def add_engine_flags(parser: Any, *names: str, **defaults: Any) -> None:
    """Declare ``--name`` for every option of ``names``; ``defaults`` replace the engine's own.

    A switch that is on by default is turned off by ``--no-name``. Names of the last release are
    taken too, with one warning line.
    """
    for name in names:
        option = OPTIONS[name]
        default = defaults.get(name, option.default)
        flag, kind = name.replace("_", "-"), type(option.default)
        words: dict[str, Any] = {"dest": name, "default": default}
        if kind is bool:
            on = not option.default
            flag = flag if on else f"no-{flag}"
            words["action"] = "store_true" if on else "store_false"
            words["help"] = option.text if on else f"do not {option.text}"
        else:
            said = f" ({default})" if default not in ("", (), 0, None) else ""
            words |= {"help": option.text.replace("%", "%%") + said}
            words |= {"choices": option.choices} if option.choices else {"metavar": _METAVARS[kind]}
            words |= {"action": "append", "default": []} if kind is tuple else {"type": kind}
        parser.add_argument(f"--{flag}", **words)
        for old, new in RENAMED.items():
            if new == name and kind is not bool:
                taken = {k: words[k] for k in ("type", "choices") if k in words}
                old_flag(parser, f"--{old.replace('_', '-')}", f"--{flag}", dest=name, **taken)


_METAVARS = {str: "TEXT", int: "N", float: "X", tuple: "NAME"}


def old_flag(parser: Any, old: str, new: str, **words: Any) -> None:
    """Take a flag of the last release, with one warning line."""
    parser.add_argument(
        old, action=_Old, default=argparse.SUPPRESS, help=argparse.SUPPRESS, new=new, **words
    )


class _Old(argparse.Action):
    """Stores as the flag that it is called now does."""

    def __init__(self, *args: Any, new: str, **words: Any) -> None:
        super().__init__(*args, **words)
        self._new = new

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        line = f"{option_string} is now {self._new}; the old flag goes with the next release"
        print(line, file=sys.stderr)
        if self.nargs != 0:
            setattr(namespace, self.dest, values)
