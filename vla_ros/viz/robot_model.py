"""A robot's description (URDF) as frames and shapes, and where its links are at given joints.

Boxes, cylinders and spheres are shown as they are; of a robot of meshes the bones between its
links remain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np

from vla_ros.core.rotation import matrix
from vla_ros.core.types import Floats
from vla_ros.core.urdf import read_tree

_GREY = (170, 175, 180)


@dataclass(frozen=True, slots=True)
class Shape:
    """``kind`` box (``size`` x y z), cylinder (radius, length) or sphere (radius), in m; ``at``
    float64 [4, 4] in its link's frame; ``color`` 0 to 255."""

    kind: str
    size: tuple[float, ...]
    at: Floats
    color: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Joint:
    """``at``: float64 [4, 4], of the child in its parent's frame where the joint is at 0."""

    name: str
    kind: str
    parent: str
    child: str
    at: Floats
    axis: Floats
    mimics: tuple[str, float, float] | None = None  # joint, multiplier, offset


@dataclass(frozen=True, slots=True)
class Robot:
    """Links with their shapes, and the joints between, each after the one above it."""

    shapes: Mapping[str, tuple[Shape, ...]]
    joints: tuple[Joint, ...]
    root: str

    def places(self, positions: Mapping[str, float]) -> dict[str, Floats]:
        """Every link in the root's frame, float64 [4, 4]. A joint that is not named, or whose
        value is no number, is at 0."""
        found = {self.root: np.eye(4)}
        for joint in self.joints:
            found[joint.child] = found[joint.parent] @ joint.at @ _motion(joint, positions)
        return found

    def bones(self, places: Mapping[str, Floats]) -> Floats:
        """From each link's origin to its child's: float64 [n, 2, 3]."""
        ends = [(places[j.parent][:3, 3], places[j.child][:3, 3]) for j in self.joints]
        return np.array(ends, np.float64).reshape(-1, 2, 3)


def read(urdf: str) -> Robot:
    """Raises ValueError for text that is no tree of links."""
    tree = read_tree(urdf)
    shapes = {_name(link): tuple(_shapes(link)) for link in tree.findall("link")}
    joints = [_joint(node) for node in tree.findall("joint")]
    roots = set(shapes) - {joint.child for joint in joints}
    if len(roots) != 1:
        raise ValueError(f"a robot description with {len(roots)} roots is no tree")
    root = roots.pop()
    below: dict[str, list[Joint]] = {}
    hung: set[str] = set()
    for joint in joints:
        if joint.child in hung:
            raise ValueError(f"link {joint.child} hangs on two joints")
        hung.add(joint.child)
        below.setdefault(joint.parent, []).append(joint)
    ordered = below.pop(root, [])
    for joint in ordered:  # which grows by the joints below each
        ordered += below.pop(joint.child, [])
    if below:
        raise ValueError(f"joint {next(iter(below.values()))[0].name} hangs on nothing")
    return Robot(shapes, tuple(ordered), root)


def place_of(position: tuple[float, float, float], xyzw: tuple[float, ...]) -> Floats:
    """Float64 [4, 4] of a position and a quaternion, x y z w."""
    out = np.eye(4)
    out[:3, :3] = matrix(xyzw)
    out[:3, 3] = position
    return out


def wxyz_of(rotation: Floats) -> tuple[float, float, float, float]:
    """The quaternion of float64 [3, 3], w first and never below 0 (Shepperd's method)."""
    r = rotation
    squares = np.array(
        [
            1 + r[0, 0] + r[1, 1] + r[2, 2],
            1 + r[0, 0] - r[1, 1] - r[2, 2],
            1 - r[0, 0] + r[1, 1] - r[2, 2],
            1 - r[0, 0] - r[1, 1] + r[2, 2],
        ]
    )
    wx, wy, wz = r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]
    xy, xz, yz = r[0, 1] + r[1, 0], r[0, 2] + r[2, 0], r[1, 2] + r[2, 1]
    largest = int(squares.argmax())
    rows = ((None, wx, wy, wz), (wx, None, xy, xz), (wy, xy, None, yz), (wz, xz, yz, None))
    root = math.sqrt(squares[largest])
    q = np.array([root / 2 if v is None else v / (2 * root) for v in rows[largest]])
    w, x, y, z = (q if q[0] >= 0 else -q).tolist()
    return w, x, y, z


def _motion(joint: Joint, positions: Mapping[str, float]) -> Floats:
    name, multiplier, offset = joint.mimics or (joint.name, 1.0, 0.0)
    value = multiplier * positions.get(name, 0.0) + offset
    out = np.eye(4)
    if joint.kind not in ("revolute", "continuous", "prismatic") or not math.isfinite(value):
        return out
    if joint.kind == "prismatic":
        out[:3, 3] = joint.axis * value
        return out
    x, y, z = joint.axis * math.sin(value / 2)
    return place_of((0.0, 0.0, 0.0), (x, y, z, math.cos(value / 2)))


def _name(node: ElementTree.Element) -> str:
    return node.get("name", "")


def _joint(node: ElementTree.Element) -> Joint:
    parent, child = node.find("parent"), node.find("child")
    if parent is None or child is None:
        raise ValueError(f"joint {_name(node)} has no parent or no child")
    axis = _numbers(node.find("axis"), "xyz", (1.0, 0.0, 0.0))
    mimic = node.find("mimic")
    mimics = None
    if mimic is not None:
        factor, offset = (float(mimic.get(k, d)) for k, d in (("multiplier", "1"), ("offset", "0")))
        mimics = (mimic.get("joint", ""), factor, offset)
    return Joint(
        _name(node),
        node.get("type", "fixed"),
        parent.get("link", ""),
        child.get("link", ""),
        _origin(node.find("origin")),
        axis / (np.linalg.norm(axis) or 1.0),
        mimics,
    )


def _shapes(link: ElementTree.Element) -> Iterator[Shape]:
    for visual in link.findall("visual"):
        shape = visual.find("geometry/*")
        size = _size(shape) if shape is not None else None
        if shape is not None and size:
            at = _origin(visual.find("origin"))
            yield Shape(shape.tag, size, at, _color(visual.find("material/color")))


def _size(shape: ElementTree.Element) -> tuple[float, ...] | None:
    if shape.tag == "box":
        return tuple(_numbers(shape, "size", (0.0, 0.0, 0.0)).tolist())
    if shape.tag == "cylinder":
        return float(shape.get("radius", "0")), float(shape.get("length", "0"))
    return (float(shape.get("radius", "0")),) if shape.tag == "sphere" else None


def _color(node: ElementTree.Element | None) -> tuple[int, int, int]:
    if node is None:
        return _GREY
    r, g, b = (round(255 * v) for v in _numbers(node, "rgba", (0.7, 0.7, 0.7, 1.0))[:3])
    return r, g, b


def _origin(node: ElementTree.Element | None) -> Floats:
    nothing = (0.0, 0.0, 0.0)
    roll, pitch, yaw = _numbers(node, "rpy", nothing) / 2
    cr, sr, cp, sp = math.cos(roll), math.sin(roll), math.cos(pitch), math.sin(pitch)
    cy, sy = math.cos(yaw), math.sin(yaw)
    xyzw = (
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
        cr * cp * cy + sr * sp * sy,
    )
    x, y, z = _numbers(node, "xyz", nothing)
    return place_of((float(x), float(y), float(z)), xyzw)


def _numbers(node: ElementTree.Element | None, key: str, default: tuple[float, ...]) -> Floats:
    text = node.get(key) if node is not None else None
    values = np.array(text.split() if text else default, np.float64)
    if values.shape != (len(default),) or not np.isfinite(values).all():
        raise ValueError(f"{key}={text!r} in a robot description: {len(default)} numbers needed")
    return values
