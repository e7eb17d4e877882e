"""Between messages and nouns, for every node: stamps, images, percentiles."""

from __future__ import annotations

from typing import Any

from builtin_interfaces.msg import Time

from vla_ros.msg import Percentiles
from vla_ros.pixels import ENCODINGS, BadMessage, decompressed, image_of, quoted
from vla_ros.timing import SECOND, Distribution

__all__ = [
    "ENCODINGS",
    "BadMessage",
    "decompressed",
    "image_of",
    "quoted",
    "set_times",
    "stamp_of",
    "to_time",
]


def stamp_of(time: Time) -> int:
    """Nanoseconds of a stamp."""
    return int(time.sec) * SECOND + int(time.nanosec)


def to_time(stamp_ns: int) -> Time:
    """A stamp as a message; nanoseconds >= 0."""
    sec, nanosec = divmod(stamp_ns, SECOND)
    return Time(sec=sec, nanosec=nanosec)


def set_times(message: Any, name: str, of_ms: Distribution) -> None:
    """A distribution of durations into field ``name_s`` and, where a message still has it, the
    deprecated ``name``, in ms."""
    for field, share in ((f"{name}_s", 1e-3), (name, 1.0)):
        if not hasattr(message, field):
            continue
        values = {p: share * getattr(of_ms, p) for p in ("p50", "p95", "p99", "max")}
        setattr(message, field, Percentiles(count=of_ms.count, **values))
