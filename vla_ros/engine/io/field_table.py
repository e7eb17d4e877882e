"""The fields of a checkpoint's JSON: a reader that checks each, and the table of a whole file.

A :class:`FieldTable` says once what a config's file has: it is parsed and written by it, and fields
that nobody knows are refused by it. What no row can say, the family reads by hand, and gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, is_dataclass
from dataclasses import fields as dataclass_fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeVar

from vla_ros.engine.errors import CheckpointError

D = TypeVar("D")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def short(value: object) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """An object's fields; ``where`` is put before their names. null counts as absent."""

    def __init__(self, raw: Any, where: str = "") -> None:
        if not isinstance(raw, Mapping):
            raise CheckpointError(f"{where or 'this'} is {short(raw)}: wanted an object")
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
            wanted = " or ".join(map(short, allowed))
            raise self.wrong(name, f"{wanted}, this engine computes nothing else")

    def record(self, kind: type[D], **rules: tuple[Any, ...]) -> D:
        """A dataclass: every field checked for its type, and its own default where it is absent.

        ``rules``: the least and the most of a whole number, or the strings that are known.
        """
        known = {it.name: it for it in dataclass_fields(kind)}  # type: ignore[arg-type]
        if unknown := sorted(set(self.raw) - set(known)):
            raise CheckpointError(f"{self.where} has unknown keys {', '.join(unknown)}")
        needed = [name for name, it in known.items() if it.default is MISSING]
        if lost := [name for name in needed if name not in self.raw]:
            raise CheckpointError(f"{self.where} lacks {', '.join(lost)}")
        values: dict[str, Any] = {}
        for name, it in known.items():
            values[name] = self.value(name, str(it.type), it.default, rules.get(name, ()))
        return kind(**values)

    def value(self, name: str, kind: str, default: Any, rule: tuple[Any, ...] = ()) -> Any:
        """A value of the type that a dataclass has for it."""
        if kind == "str":
            return self.choice(name, default, rule) if rule else self.text(name, default)
        if kind == "int":
            return self.whole(name, 0 if default is MISSING else default, *rule)
        if kind in ("float", "bool"):
            return (self.number if kind == "float" else self.flag)(name, default)
        return self.triple(name, self.raw.get(name, default))

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
            raise CheckpointError(f"{self._where}{name} is {short(values)}: wanted three numbers")
        red, green, blue = map(float, values)
        return red, green, blue

    def color(self, name: str, values: Any) -> tuple[int, int, int] | None:
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
            f"{self._where}{name} is {short(self.raw.get(name))}: wanted {wanted}"
        )

    def _get(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        return default if value is None else value


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Field:
    """A field that is read and written: the attribute of the config that it becomes (an "a.b" is
    ``b`` of its ``a``), and what it is where the file leaves it out; by itself the attribute's own
    default. It is read as the attribute's type asks for, or the default's, by the ``rule`` of
    :meth:`Fields.record`; or by the method ``by`` of :class:`Fields`. ``sparse``: not written where
    it is the default."""

    to: str
    default: Any = ...
    rule: tuple[Any, ...] = ()
    by: str = ""
    sparse: bool = False

    def read(self, fields: Fields, key: str, known: Mapping[str, tuple[str, Any]]) -> Any:
        """The checked value of ``key``; ``known`` has the attributes' types and defaults."""
        kind, default = known.get(self.to, ("", MISSING))
        default = default if self.default is ... else self.default
        if default is not MISSING and fields.raw.get(key) is None:
            return default
        if self.by:
            return getattr(fields, self.by)(key, default)
        kind = kind.partition(" |")[0] or type(default).__name__
        return fields.value(key, kind, default, self.rule)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A field of which one value is computed here, which is written too."""

    value: Any


@dataclass(frozen=True, slots=True)
class Written:
    """A field that is written from an attribute, and read by hand or not at all."""

    by: str


@dataclass(frozen=True, slots=True)
class FieldTable:
    """The fields of a file, or of an object in it, in the order in which they are written.

    ``rows``: key to how it is read and written, a text for a plain :class:`Field`, None for what a
    family reads by hand and gives to :meth:`write`, a table for an object. ``used``: what is read
    by hand and written by others alone. ``idle``: names, separated by blanks, that no output
    depends on, to the reason; ``beside``: those of them that are written, for others' programs.
    ``only``: names to the values that are computed, None (null) always among them; any other is
    refused, as is a field that is nowhere here, unless the table is not ``strict``. ``instead``:
    who else may run what is refused, a part of the message.
    """

    rows: Mapping[str, Row]
    idle: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    used: str = ""
    instead: str = ""
    beside: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = True

    def reasons(self) -> dict[str, str]:
        """Each idle field and why."""
        return {name: why for names, why in self.idle.items() for name in names.split()}

    def known(self) -> set[str]:
        """Every field that there is."""
        return {*self.rows, *self.used.split(), *self.reasons(), *self.only}

    def _computed(self) -> dict[str, tuple[object, ...]]:
        """Names to the values that are computed."""
        fixed = {name: (row.value,) for name, row in self.rows.items() if isinstance(row, Fixed)}
        return {**self.only, **fixed}

    def check(self, raw: Mapping[str, Any], where: str = "") -> None:
        """Raise CheckpointError, the fields by name, where something is asked for that is not
        computed, or that nobody here ever heard of."""
        for name, allowed in self._computed().items():
            value = raw.get(name)
            if value is not None and not any(_same(value, one) for one in allowed):
                wanted = " or ".join(map(short, allowed)) or "null"
                raise CheckpointError(
                    f"{where}{name} is {short(value)}: wanted {wanted},"
                    f" this engine computes nothing else{self.instead}"
                )
        if strange := sorted(raw.keys() - self.known()):
            listed = ", ".join(f"{where}{name} ({short(raw[name])})" for name in strange[:5])
            more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
            raise CheckpointError(
                f"unknown fields {listed}{more}: they may change what the policy says, and this"
                " engine does not know how; take them out if you know that they do not"
                f"{self.instead}"
            )
        for name, row in self.rows.items():
            if isinstance(row, FieldTable) and row.strict:
                row.check(Fields(raw, where.rstrip(".")).part(name).raw, f"{where}{name}.")

    def parse(self, fields: Fields, known: Any = None) -> dict[str, Any]:
        """Attributes to their checked values. ``known``: the dataclass, whose own defaults hold, or
        one of them, whose values do. CheckpointError."""
        if is_dataclass(known):
            of_type, all_of = isinstance(known, type), dataclass_fields(known)
            values = [it.default if of_type else getattr(known, it.name) for it in all_of]
            known = {i.name: (str(i.type), v) for i, v in zip(all_of, values, strict=True)}
        found: dict[str, Any] = {}
        for key, allowed in self._computed().items():
            fields.only(key, *allowed)
        for key, row in self.rows.items():
            if isinstance(row, FieldTable):
                found |= row.parse(fields.part(key), known)
            elif isinstance(row, Field | str):
                row = Field(row) if isinstance(row, str) else row
                found[row.to] = row.read(fields, key, known or {})
        return found

    def write(self, config: Any, given: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        """The file's object of ``config``, with what is ``given`` by key, for a part its own."""
        out = dict(self.beside)
        for key, row in self.rows.items():
            if isinstance(row, FieldTable):
                out[key] = row.write(config, given.get(key, {}))
            elif key in given:
                out[key] = given[key]
            elif isinstance(row, Fixed):
                out[key] = row.value
            elif isinstance(row, Written):
                out[key] = attrgetter(row.by)(config)
            elif row is not None:
                row = Field(row) if isinstance(row, str) else row
                value = attrgetter(row.to)(config)
                if not row.sparse or value != row.default:
                    out[key] = [value] * 2 if row.by == "square" else value
        return out


Row = Field | Fixed | Written | FieldTable | str | None


def plain(names: str) -> dict[str, Row]:
    """Plain rows: keys, separated by blanks, with the attribute where it has another name."""
    pairs = (one.partition("=") for one in names.split())
    return {key: attribute or key for key, _, attribute in pairs}


def by_hand(names: str) -> dict[str, Row]:
    """Rows of what a family reads by hand, and gives to be written."""
    return dict.fromkeys(names.split())


def _same(value: object, allowed: object) -> bool:
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
