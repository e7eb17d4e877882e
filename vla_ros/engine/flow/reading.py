"""Strangers' JSON, opened so that what is wrong with it is one line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vla_ros.engine.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; CheckpointError for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return found


class Fields:
    """An object's fields, each checked for its kind; null counts as absent.

    CheckpointError names the field, what it says and what it should be.
    """

    def __init__(self, raw: object, where: str = "") -> None:
        if not isinstance(raw, Mapping):
            raise CheckpointError(f"{where or 'this'} is {_short(raw)}: wanted an object")
        self.raw: Mapping[str, Any] = raw
        self._where = f"{where}." if where else ""

    def whole(self, name: str, default: int, least: int = 1, most: int = 1 << 31) -> int:
        """A whole number from ``least`` to ``most``."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number above 0."""
        value = self._get(name, default)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or value <= 0:
            raise self.wrong(name, "a finite number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """One of the strings in ``known``."""
        value = self._get(name, default)
        if value not in known:
            raise self.wrong(name, f"one of {', '.join(known)}")
        return str(value)

    def part(self, name: str) -> Fields:
        """An object, empty where it is absent."""
        return Fields(self._get(name, {}), f"{self._where}{name}")

    def items(self, name: str) -> list[Any]:
        """A list, empty where it is absent."""
        value = self._get(name, [])
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def only(self, name: str, *allowed: object) -> None:
        """Refuse any value but those this engine computes; absent is allowed."""
        value = self.raw.get(name)
        if value is not None and value not in allowed:
            raise self.wrong(name, f"{' or '.join(map(_short, allowed))}, the rest is not built")

    def square(self, name: str, default: int) -> int:
        """The side of a square given as two numbers."""
        value = self._get(name, [default, default])
        good = isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]
        if not good or isinstance(value[0], bool) or not isinstance(value[0], int) or value[0] < 1:
            raise self.wrong(name, "two equal whole numbers")
        return int(value[0])

    def wrong(self, name: str, wanted: str) -> CheckpointError:
        """The error for a field that says something else."""
        return CheckpointError(
            f"{self._where}{name} is {_short(self.raw.get(name))}: wanted {wanted}"
        )

    def _get(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        return default if value is None else value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
