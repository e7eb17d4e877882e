"""What a window is shown: the little that a viewer must know of a message, in no viewer's words.

A path is a topic's name with what of it is meant, ``policy/action/numbers``; things in three
dimensions stand under ``world``. Lengths are metres, durations seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from vla_ros.core import Floats, Image
from vla_ros.view.robot import Shape


@dataclass(frozen=True, slots=True)
class Picture:
    """``image``: uint8 [height, width, 3], RGB."""

    path: str
    image: Image


@dataclass(frozen=True, slots=True)
class Numbers:
    """One value a name. NaN: nothing was measured, and a line ends here."""

    path: str
    names: tuple[str, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class State:
    """What something is from now on; ``colour`` as #rrggbb."""

    path: str
    word: str
    colour: str


@dataclass(frozen=True, slots=True)
class Text:
    """One line of a log. ``level`` is rcl_interfaces/Log's: 20 information, 30
    warning, 40 error."""

    path: str
    text: str
    level: int = 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thing is: ``at`` float64 [4, 4] in the world's frame."""

    path: str
    at: Floats


@dataclass(frozen=True, slots=True)
class Solid:
    """What a thing looks like, from the beginning to the end; its path moves by a Place above."""

    path: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Lines:
    """Pieces of lines, float64 [n, 2, 3], each with a head at its end where it is an ``arrow``.
    None of them: what was shown before is gone."""

    path: str
    ends: Floats
    colour: tuple[int, int, int]
    arrow: bool = False


Fact: TypeAlias = Picture | Numbers | State | Text | Place | Solid | Lines
