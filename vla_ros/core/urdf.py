"""A robot's description (URDF), read without trusting who wrote it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from xml.etree import ElementTree

MAX_LENGTH = 5_000_000
#: Tags of a description; the most known, a humanoid's hands and all, has 10,000. The page reads one
#: between two commands of its buttons, so it must take no more than a second.
MAX_TAGS = 200_000
MOST = {"link": 2_000, "joint": 2_000, "visual": 4_000}


@dataclass(frozen=True, slots=True)
class DescribedJoint:
    """A joint that moves. ``velocity``: its limit in rad/s or m/s, 0 where the description has
    none. ``ends``: its least and greatest position in rad or m, () where it has none. ``follows``:
    the joint that it mimics, "" none."""

    continuous: bool
    velocity: float
    ends: tuple[float, ...] = ()
    follows: str = ""


def read_tree(urdf: str) -> ElementTree.Element:
    """The XML tree of a description. ValueError: it is too long, no XML, has more of something than
    any robot, or defines entities, a few of which fill a memory."""
    if len(urdf) > MAX_LENGTH:
        raise ValueError(f"a robot description of {len(urdf)} characters is too long")
    if "<!DOCTYPE" in urdf or "<!ENTITY" in urdf:
        raise ValueError("a robot description has no DOCTYPE and no ENTITY")
    if (tags := urdf.count("<")) > MAX_TAGS:
        raise ValueError(f"a robot description of {tags:,} tags, and at most {MAX_TAGS:,} are read")
    try:
        tree = ElementTree.fromstring(urdf)
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"the robot description is not XML: {error}") from None
    counts = Counter(element.tag for element in tree.iter())
    for name, most in MOST.items():
        if counts[name] > most:
            raise ValueError(
                f"a robot description of {counts[name]:,} {name}s, and at most {most:,} are read"
            )
    return tree


def read_joints(urdf: str) -> dict[str, DescribedJoint]:
    """The joints that move, by name. Raises ValueError as of :func:`read_tree`."""
    found = {}
    for joint in read_tree(urdf).findall("joint"):
        kind, limit = joint.get("type", "fixed"), joint.find("limit")
        if kind in ("continuous", "revolute", "prismatic"):
            velocity = _speed("0" if limit is None else limit.get("velocity", "0"))
            mimic = joint.find("mimic")
            found[joint.get("name", "")] = DescribedJoint(
                kind == "continuous",
                velocity,
                () if limit is None or kind == "continuous" else _ends(limit),
                "" if mimic is None else mimic.get("joint", ""),
            )
    return found


def _ends(limit: ElementTree.Element) -> tuple[float, ...]:
    """Least and greatest position; () where they are none. A missing one is 0, as URDF has it."""
    try:
        low, high = (float(limit.get(name, "0")) for name in ("lower", "upper"))
    except ValueError:
        return ()
    return (low, high) if math.isfinite(low) and math.isfinite(high) and low < high else ()


def _speed(text: str) -> float:
    """A speed; 0 for what is none."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) and number > 0.0 else 0.0
