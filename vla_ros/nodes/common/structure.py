"""Whether serialized bytes can be a message of some type, before native code reads them.

Fast CDR (2.3.0) steps over padding without looking where the bytes end, so a message that is cut
short before a string is read far behind its buffer: a segmentation fault that no ``except`` sees.
What passes here ends inside the bytes that there are, whatever it says.

Layout: OMG DDS-XTypes 1.3, section 7.4, plain CDR of version 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

from rosidl_parser.definition import (
    AbstractSequence,
    AbstractString,
    Array,
    BasicType,
    NamespacedType,
)

from vla_ros.pixels import BadMessage

HEAD: Final = 4  # bytes of encapsulation; alignment counts from behind it
#: encapsulation -> byte order and the widest alignment
ENCAPSULATIONS: Final = {b"\0\0": (">", 8), b"\0\1": ("<", 8), b"\0\6": (">", 4), b"\0\7": ("<", 4)}
_SIZES = {
    "boolean": 1, "octet": 1, "char": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2,
    "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float": 4, "double": 8,
}  # fmt: skip


class Bytes:
    """A message's body and how far it has been walked."""

    __slots__ = ("at", "body", "end", "order", "widest")

    def __init__(self, raw: bytes) -> None:
        order, self.widest = encapsulation(raw)
        self.order: Any = "little" if order == "<" else "big"
        self.body = memoryview(raw)[HEAD:]
        self.at, self.end = 0, len(self.body)

    def skip(self, size: int, count: int) -> None:
        """``count`` > 0 values of ``size`` bytes."""
        width = min(size, self.widest)
        self.at = -(-self.at // width) * width + size * count
        if self.at > self.end:
            raise self._short(self.at)

    def whole(self) -> int:
        """A uint32."""
        begin = (self.at + 3) & ~3  # aligned; a call of skip() would cost half as much again
        end = self.at = begin + 4
        if end > self.end:
            raise self._short(end)
        return int.from_bytes(self.body[begin:end], self.order)

    def _short(self, wanted: int) -> BadMessage:
        return BadMessage(f"cut short: {self.end} bytes where {wanted} would be needed")


_Walk = Callable[[Bytes], None]


def encapsulation(raw: bytes) -> tuple[str, int]:
    """Byte order of ``struct`` and the widest alignment. Raises :class:`BadMessage`."""
    found = ENCAPSULATIONS.get(bytes(raw[:2]))
    if len(raw) < HEAD or found is None:
        raise BadMessage(f"encapsulation 0x{bytes(raw[:HEAD]).hex()} is not plain CDR")
    return found


def check(raw: bytes, message_type: Any) -> None:
    """Raises :class:`BadMessage` where the bytes end before the message does."""
    _walk_of(message_type)(Bytes(raw))


@cache
def _walk_of(message_type: Any) -> _Walk:
    return _all([_of(slot) for slot in message_type.SLOT_TYPES] or [_basic(1)])


def _of(slot: Any) -> _Walk:
    if isinstance(slot, BasicType):
        return _basic(_SIZES[slot.typename])
    if isinstance(slot, AbstractString):
        return _string
    if isinstance(slot, NamespacedType):
        return _walk_of(getattr(import_module(".".join(slot.namespaces)), slot.name))
    if isinstance(slot, Array):
        return _repeated(slot.value_type, lambda _: int(slot.size))
    if isinstance(slot, AbstractSequence):
        return _repeated(slot.value_type, Bytes.whole)
    raise TypeError(f"no message of ours has a {type(slot).__name__}")  # wide strings


def _all(walks: list[_Walk]) -> _Walk:
    def walk(found: Bytes) -> None:
        for one in walks:
            one(found)

    return walk


def _basic(size: int) -> _Walk:
    return lambda found: found.skip(size, 1)


def _string(found: Bytes) -> None:
    length = found.whole()
    if length:
        found.skip(1, length)


def _repeated(value_type: Any, count_of: Callable[[Bytes], int]) -> _Walk:
    size = _SIZES[value_type.typename] if isinstance(value_type, BasicType) else 0
    one = _of(value_type)

    def walk(found: Bytes) -> None:
        count = count_of(found)
        if size and count:
            found.skip(size, count)
        elif count > found.end - found.at:  # each takes a byte at least: no loop without end
            raise BadMessage(f"cut short: {found.end - found.at} bytes for {count} elements")
        elif not size:
            for _ in range(count):
                one(found)

    return walk
