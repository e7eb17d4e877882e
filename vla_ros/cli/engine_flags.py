"""Flags of the engine's options: one a field, by its name, with its choices and its text."""

from __future__ import annotations

from typing import Any

from vla_ros.engine.options import OPTIONS


def add_engine_flags(parser: Any, *names: str, **defaults: Any) -> None:
    """Declare ``--name`` for every option of ``names``; ``defaults`` replace the engine's own.

    A switch that is on by default is turned off by ``--no-name``.
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
            said = f" ({default})" if default not in ("", 0, None) else ""
            words |= {"help": option.text.replace("%", "%%") + said}
            words |= {"choices": option.choices} if option.choices else {"metavar": _METAVARS[kind]}
            words["type"] = kind
        parser.add_argument(f"--{flag}", **words)


_METAVARS = {str: "TEXT", int: "N", float: "X", tuple: "NAME"}
