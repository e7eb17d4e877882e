"""The fields of a JSON object, each checked for its kind.

    fields = Fields(raw, "text_config")
    layers = fields.whole("num_hidden_layers", 32)

Raises CheckpointError that names the field, what it says and what it should be; the caller puts
the file's name in front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vla_ros.engine.errors import CheckpointError


class Fields:
    """An object's fields; ``where`` is put before their names. null counts as absent."""

    def __init__(self, raw: Any, where: str = "") -> None:
        if not isinstance(raw, Mapping):
            raise CheckpointError(f"{where or 'this'} is {_short(raw)}: wanted an object")
        self.raw: Mapping[str, Any] = raw
        self.where, self._where = where, f"{where}." if where else ""

    def whole(self, name: str, default: int, least: int = 1, most: int = 1 << 31) -> int:
        """A whole number from ``least`` to ``most``."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number above 0."""
        value = self._get(name, default)
        if not _finite(value) or value <= 0:
            raise self.wrong(name, "a finite number above 0")
        return float(value)

    def real(self, name: str, default: float) -> float:
        """A finite number."""
        value = self._get(name, default)
        if not _finite(value):
            raise self.wrong(name, "a finite number")
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

    def part(self, name: str) -> Fields:
        """An object's fields, none where it is absent."""
        return Fields(self._get(name, {}), f"{self._where}{name}")

    def items(self, name: str) -> list[Any]:
        """A list, empty where it is absent."""
        value = self._get(name, [])
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """One of the strings in ``known``."""
        value = self._get(name, default)
        if value not in known:
            raise self.wrong(name, f"one of {', '.join(known)}")
        return str(value)

    def only(self, name: str, *allowed: object) -> None:
        """Refuse any value but those this engine computes; absent is allowed."""
        value = self.raw.get(name)
        if value is not None and value not in allowed:
            wanted = " or ".join(map(_short, allowed))
            raise self.wrong(name, f"{wanted}, this engine computes nothing else")

    def square(self, name: str, default: int) -> int:
        """The side of a square given as two numbers."""
        value = self._get(name, [default, default])
        good = isinstance(value, list | tuple) and len(value) == 2 and value[0] == value[1]
        if not good or isinstance(value[0], bool) or not isinstance(value[0], int) or value[0] < 1:
            raise self.wrong(name, "two equal whole numbers")
        return int(value[0])

    def triple(self, name: str, values: Any) -> tuple[float, float, float]:
        """Three finite numbers, such as a mean per channel."""
        good = isinstance(values, list | tuple) and len(values) == 3
        if not good or not all(_finite(v) for v in values):
            raise CheckpointError(f"{self._where}{name} is {_short(values)}: wanted three numbers")
        red, green, blue = map(float, values)
        return red, green, blue

    def colour(self, name: str, values: Any) -> tuple[int, int, int] | None:
        """Red, green and blue from 0 to 255, or None."""
        if values is None:
            return None
        red, green, blue = self.triple(name, values)
        if not all(0 <= x <= 255 for x in (red, green, blue)):
            raise self.wrong(name, "three numbers from 0 to 255")
        return int(red), int(green), int(blue)

    def wrong(self, name: str, wanted: str) -> CheckpointError:
        """The error for a field that says something else."""
        return CheckpointError(
            f"{self._where}{name} is {_short(self.raw.get(name))}: wanted {wanted}"
        )

    def _get(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        return default if value is None else value


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
