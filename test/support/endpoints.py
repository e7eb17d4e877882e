"""What the nodes open, read from their source: every call that makes an endpoint.

What is computed cannot be read: the caller tells it, by file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support.sros2 import Endpoint, absolute

MAKERS = {
    "create_publisher": ("publish", 1),
    "create_subscription": ("subscribe", 1),
    "create_service": ("reply", 1),
    "create_client": ("request", 1),
    "ActionServer": ("execute", 2),
    "ActionClient": ("call", 2),
    # helpers of ours that hand their topic on
    "listen": ("subscribe", 2),
    "_listen": ("subscribe", 1),
    "make": ("publish", 1),
}
UNREADABLE = "?"


def endpoints_of(folder: Path, node: str) -> Iterator[tuple[str, Endpoint]]:
    """File and endpoint of every call in ``folder``; the name is ``UNREADABLE`` where it is
    no text."""
    for path in sorted(folder.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            maker = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if maker not in MAKERS:
                continue
            how, place = MAKERS[maker]
            starred = any(isinstance(arg, ast.Starred) for arg in call.args)
            if len(call.args) <= place and not starred:
                continue
            name = UNREADABLE if starred else _text(call.args[place])
            where = str(path.relative_to(folder))
            yield where, Endpoint(how, name if name == UNREADABLE else absolute(name, "/", node))


def _text(value: ast.expr) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    return UNREADABLE
