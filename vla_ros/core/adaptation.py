"""An adaptation: what makes a robot's observations and commands those of a checkpoint's data.

A policy that was trained on other conventions than the robot's moves it and does not do the task: a
camera is upside down, a joint counts the other way. An adaptation says the difference, is applied
once, around the policy (:mod:`vla_ros.policies.adapting`), and is what `vla-ros check` finds. Pure
functions; what can be undone has an inverse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.types import Floats, Image

COLORS = ("rgb", "bgr")
QUARTERS = (0, 90, 180, 270)
FITS = ("as_is", "squash", "letterbox", "crop")
TURNS = ("none", *(f"{axis}{angle}" for axis in "xyz" for angle in QUARTERS[1:]))


@dataclass(frozen=True, slots=True)
class ImageAdaptation:
    """Steps from a camera's image to the one of the training data, in the order of the fields.

    ``colors``: bgr where the data have blue first (or the camera says rgb and is not). ``gamma``:
    exponent of each value as 0..1; below 1 is brighter. ``rotate``: degrees counter-clockwise.
    ``mirror``: left and right exchanged. ``crop``: share of each side that is kept, around the
    middle. ``fit``: how the image becomes a square before the policy's own steps: not at all, by
    squashing it, with black bars (letterbox), or by its middle (crop). Raises ValueError.
    """

    colors: str = "rgb"
    gamma: float = 1.0
    rotate: int = 0
    mirror: bool = False
    crop: float = 1.0
    fit: str = "as_is"

    def __post_init__(self) -> None:
        for name, allowed in (("colors", COLORS), ("rotate", QUARTERS), ("fit", FITS)):
            if getattr(self, name) not in allowed:
                words = ", ".join(map(str, allowed))
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be one of {words}")
        if not 0.1 <= self.gamma <= 10.0:
            raise ValueError(f"gamma is {self.gamma:g}, must be 0.1 to 10")
        if not 0.1 <= self.crop <= 1.0:
            raise ValueError(f"crop is {self.crop:g}, must be 0.1 to 1")

    def apply(self, image: Image) -> Image:
        """The image [height, width, 3] as the policy is to see it."""
        if self == _AS_IT_IS:
            return image
        out = image[..., ::-1] if self.colors == "bgr" else image
        out = _brightened(out, self.gamma)
        out = np.rot90(out, self.rotate // 90)
        out = out[:, ::-1] if self.mirror else out
        out = _middle(out, self.crop)
        return np.ascontiguousarray(_square(out, self.fit))

    def undo(self, image: Image) -> Image:
        """The camera's image of the policy's. ValueError: crop and fit lose what was around."""
        if self.crop != 1.0 or self.fit != "as_is":
            raise ValueError("what crop and fit took away cannot be brought back")
        out = image[:, ::-1] if self.mirror else image
        out = np.rot90(out, -(self.rotate // 90))
        out = _brightened(out, 1.0 / self.gamma)
        return np.ascontiguousarray(out[..., ::-1] if self.colors == "bgr" else out)

    def then(self, other: ImageAdaptation) -> ImageAdaptation:
        """Both, one after the other, as one. ValueError: no single one does the same."""
        if _AS_IT_IS in (self, other):
            return other if self == _AS_IT_IS else self
        if self.fit != "as_is" and (other.crop != 1.0 or other.rotate % 180):
            raise ValueError("an image that was made a square is neither cut nor turned by others")
        turned = -other.rotate if self.mirror else other.rotate
        return ImageAdaptation(
            "bgr" if (self.colors == "bgr") != (other.colors == "bgr") else "rgb",
            self.gamma * other.gamma,
            (self.rotate + turned) % 360,
            self.mirror != other.mirror,
            self.crop * other.crop,
            other.fit if self.fit == "as_is" else self.fit,
        )


_AS_IT_IS: Final = ImageAdaptation()


def _brightened(image: Image, gamma: float) -> Image:
    if gamma == 1.0:
        return image
    table = np.rint(255.0 * (np.arange(256) / 255.0) ** gamma).astype(np.uint8)
    out: Image = table[image]
    return out


def _middle(image: Image, share: float) -> Image:
    """The middle of an image, ``share`` of each side."""
    high, wide = (max(1, round(side * share)) for side in image.shape[:2])
    top, left = (image.shape[0] - high) // 2, (image.shape[1] - wide) // 2
    return image[top : top + high, left : left + wide]


def _square(image: Image, fit: str) -> Image:
    high, wide = image.shape[:2]
    if fit == "as_is" or high == wide:
        return image
    least, most = min(high, wide), max(high, wide)
    if fit == "crop":
        top, left = (high - least) // 2, (wide - least) // 2
        return image[top : top + least, left : left + least]
    if fit == "letterbox":
        out = np.zeros((most, most, 3), np.uint8)
        top, left = (most - high) // 2, (most - wide) // 2
        out[top : top + high, left : left + wide] = image
        return out
    from PIL import Image as Pillow

    whole = Pillow.fromarray(np.ascontiguousarray(image))
    return np.asarray(whole.resize((least, least), Pillow.Resampling.BILINEAR))


@dataclass(frozen=True, slots=True)
class ValueAdaptation:
    """A linear map of values: number i of the result is ``factor[i]`` times number ``order[i]`` of
    what is given, plus ``offset[i]``.

    Empty ``order``: as given; empty ``factor`` and ``offset``: 1 and 0. A single factor or offset
    stands for all. Raises ValueError.
    """

    order: tuple[int, ...] = ()
    factor: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if any(i < 0 for i in self.order):
            raise ValueError(f"order is {list(self.order)}: its numbers count values from 0")
        if not all(math.isfinite(x) and x != 0.0 for x in self.factor):
            raise ValueError(f"factor is {list(self.factor)}: finite numbers other than 0")
        if not all(math.isfinite(x) for x in self.offset):
            raise ValueError(f"offset is {list(self.offset)}: finite numbers")

    def check(self, given: int, taken: int, what: str) -> None:
        """Raise ValueError where it cannot make ``taken`` values of ``given`` ones; 0: unknown."""
        if self.order and taken and len(self.order) != taken:
            raise ValueError(f"{what}_order has {len(self.order)} values, {taken} are needed")
        if self.order and given and max(self.order) >= given:
            raise ValueError(f"{what}_order takes number {max(self.order)} of {given} values")
        for name in ("factor", "offset"):
            count = len(getattr(self, name))
            if taken and count not in (0, 1, taken):
                raise ValueError(f"{what}_{name} has {count} values: give {taken}, or one for all")

    def apply(self, values: Floats) -> Floats:
        """Values [..., D] of values [..., G]."""
        out = np.asarray(values, np.float64)
        if self.order:
            out = out[..., list(self.order)]
        if self.factor:
            out = out * np.array(self.factor)
        if self.offset:
            out = out + np.array(self.offset)
        return out

    def then(self, other: ValueAdaptation) -> ValueAdaptation:
        """Both, one after the other, as one: :meth:`apply` of it is that of both."""
        if not (self.order or self.factor or self.offset):
            return other
        if not (other.order or other.factor or other.offset):
            return self
        mine = max(len(self.order), len(self.factor), len(self.offset))
        theirs = max(len(other.order), len(other.factor), len(other.offset))
        between = max(mine, theirs, *(i + 1 for i in other.order)) if not self.order else mine
        picked = other.order or tuple(range(between))
        first = [(_at(self.factor, i, 1.0), _at(self.offset, i, 0.0)) for i in picked]
        order = tuple(self.order[i] for i in picked) if self.order else other.order
        seconds = [
            (_at(other.factor, i, 1.0), _at(other.offset, i, 0.0)) for i in range(len(picked))
        ]
        factor = tuple(a * c for (a, _), (c, _) in zip(first, seconds, strict=True))
        offset = tuple(b * c + d for (_, b), (c, d) in zip(first, seconds, strict=True))
        return ValueAdaptation(
            order,
            factor if any(one != 1.0 for one in factor) else (),
            offset if any(one != 0.0 for one in offset) else (),
        )

    def undo(self, values: Floats) -> Floats:
        """What :meth:`apply` made ``values`` of. ValueError: its order leaves some out."""
        out = np.asarray(values, np.float64)
        if self.offset:
            out = out - np.array(self.offset)
        if self.factor:
            out = out / np.array(self.factor)
        if not self.order:
            return out
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError(f"order {list(self.order)} leaves values out: it cannot be undone")
        return out[..., list(np.argsort(self.order))]


def _at(values: Sequence[float], i: int, default: float) -> float:
    """Number ``i`` of values, of which one stands for all, and none for the default."""
    return default if not values else values[0 if len(values) == 1 else i]


def rotation_of(turn: str) -> Floats:
    """Float64 [3, 3] of a turn about an axis by quarters, "z90": x becomes y."""
    if turn == "none":
        return np.eye(3)
    axis, quarters = "xyz".index(turn[0]), int(turn[1:]) // 90
    cosine, sine = ((1, 0), (0, 1), (-1, 0), (0, -1))[quarters]
    out = np.zeros((3, 3))
    first, second = (axis + 1) % 3, (axis + 2) % 3
    out[axis, axis] = 1.0
    out[first, first], out[first, second] = cosine, -sine
    out[second, first], out[second, second] = sine, cosine
    return out


@dataclass(frozen=True, slots=True)
class ActionAdaptation:
    """From a policy's actions to the robot's: a linear map of each number, and then, of end
    effectors' displacements, ``turn``: the robot's frame is turned against the data's. Raises
    ValueError."""

    values: ValueAdaptation = ValueAdaptation()
    turn: str = "none"

    def __post_init__(self) -> None:
        if self.turn not in TURNS:
            raise ValueError(f"action_turn is {self.turn!r}, must be one of {', '.join(TURNS)}")
        order = self.values.order
        if sorted(order) != list(range(len(order))):
            raise ValueError(f"action_order is {list(order)}: it must name every value once")

    def check(self, space: ActionSpace) -> None:
        """Raise ValueError where it is none for actions of this space."""
        self.values.check(space.width, space.width, "action")
        if self.turn != "none" and space.kind is not ActionKind.END_EFFECTOR_DELTA:
            raise ValueError("action_turn is for displacements of an end effector")

    def apply(self, actions: Floats, space: ActionSpace) -> Floats:
        """The robot's actions [..., D] of the policy's."""
        return _turned(self.values.apply(actions), space, rotation_of(self.turn))

    def then(self, other: ActionAdaptation) -> ActionAdaptation:
        """Both, one after the other, as one. ValueError: no single one does the same."""
        if self.turn == "none":
            return ActionAdaptation(self.values.then(other.values), other.turn)
        if other.values != ValueAdaptation():
            raise ValueError("values of a frame that was turned are not changed by others")
        if other.turn == "none":
            return self
        if self.turn[0] != other.turn[0]:
            raise ValueError("turns about two axes are not one")
        angle = (int(self.turn[1:]) + int(other.turn[1:])) % 360
        return ActionAdaptation(self.values, f"{self.turn[0]}{angle}" if angle else "none")

    def undo(self, actions: Floats, space: ActionSpace) -> Floats:
        """The policy's actions [..., D] of the robot's."""
        return self.values.undo(_turned(actions, space, rotation_of(self.turn).T))


def _turned(actions: Floats, space: ActionSpace, by: Floats) -> Floats:
    """Displacements in a turned frame: positions and axis-angles alike."""
    if (by == np.eye(3)).all():
        return actions
    out = np.array(actions, np.float64)
    motion = space.motion
    for start in range(0, len(motion), 3):
        three = list(motion[start : start + 3])
        out[..., three] = out[..., three] @ by.T
    return out


@dataclass(frozen=True, slots=True)
class Adaptation:
    """An adaptation. ``images``: by the camera's role, main, wrist, or another; ``state``: from the
    robot's state to the checkpoint's; ``action``: from the policy's actions to the robot's."""

    images: Mapping[str, ImageAdaptation] = field(default_factory=dict)
    state: ValueAdaptation = ValueAdaptation()
    action: ActionAdaptation = ActionAdaptation()

    def __bool__(self) -> bool:
        return bool(self.parameters())

    def image(self, role: str, image: Image) -> Image:
        """A camera's image as the policy is to see it."""
        steps = self.images.get(role)
        return image if steps is None else steps.apply(image)

    def then(self, other: Adaptation) -> Adaptation:
        """Both as one, of observations and of actions first this one. ValueError."""
        return Adaptation(
            _images_then(self, other), self.state.then(other.state), self.action.then(other.action)
        )

    def around(self, inner: Adaptation) -> Adaptation:
        """Both as one where ``inner`` is nearer to the policy: observations come through this one
        first, actions last. ValueError."""
        return Adaptation(
            _images_then(self, inner), self.state.then(inner.state), inner.action.then(self.action)
        )

    def parameters(self) -> dict[str, Any]:
        """The policy node's parameters that say it, by their names; what is as it is left out."""
        found: dict[str, Any] = {}
        for role, steps in self.images.items():
            for one in fields(steps):
                if (value := getattr(steps, one.name)) != one.default:
                    found[f"cameras.{role}.{one.name}"] = value
        for what, values in (("state", self.state), ("action", self.action.values)):
            for one in fields(values):
                if value := getattr(values, one.name):
                    found[f"{what}_{one.name}"] = list(value)
        if self.action.turn != "none":
            found["action_turn"] = self.action.turn
        return found

    def words(self) -> tuple[str, ...]:
        """The same as ``name=value``, as flags have it (:func:`adaptation_of_words`)."""
        return tuple(f"{name}={_word(value)}" for name, value in self.parameters().items())


def _images_then(one: Adaptation, other: Adaptation) -> dict[str, ImageAdaptation]:
    roles = [*one.images, *(role for role in other.images if role not in one.images)]
    both = ((one.images.get(r, _AS_IT_IS), other.images.get(r, _AS_IT_IS)) for r in roles)
    return {role: a.then(b) for role, (a, b) in zip(roles, both, strict=True)}


#: Values of the parameters that mean "as it is", by the names behind cameras.ROLE.
IMAGE_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {one.name: one.default for one in fields(ImageAdaptation)}
)


def adaptation_of(values: Mapping[str, Any], roles: Sequence[str]) -> Adaptation:
    """The adaptation of the policy node's parameters; missing ones are as it is. ValueError."""
    images = {}
    for role in roles:
        own = {n: values.get(f"cameras.{role}.{n}", d) for n, d in IMAGE_DEFAULTS.items()}
        try:
            steps = ImageAdaptation(**own)
        except ValueError as error:
            raise ValueError(f"cameras.{role}.{error}") from None
        if steps != _AS_IT_IS:
            images[role] = steps
    return Adaptation(images, _values(values, "state"), _action(values))


def _action(values: Mapping[str, Any]) -> ActionAdaptation:
    return ActionAdaptation(_values(values, "action"), values.get("action_turn", "none"))


def _values(values: Mapping[str, Any], what: str) -> ValueAdaptation:
    order = tuple(values.get(f"{what}_order", ()))
    factor = tuple(values.get(f"{what}_factor", ()))
    offset = tuple(values.get(f"{what}_offset", ()))
    try:
        return ValueAdaptation(
            () if order == (-1,) else order,
            () if factor == (1.0,) else factor,
            () if offset == (0.0,) else offset,
        )
    except ValueError as error:
        raise ValueError(f"{what}_{error}") from None


def changed(before: Adaptation, after: Adaptation) -> dict[str, Any]:
    """The policy node's parameters that are to be set anew, with their values: of one that is as it
    is from now on the value that says so."""
    had, has = before.parameters(), after.parameters()
    gone = {name: _neutral(name) for name in had if name not in has}
    return {name: value for name, value in {**gone, **has}.items() if had.get(name) != value}


def _neutral(name: str) -> Any:
    if name.startswith("cameras."):
        return IMAGE_DEFAULTS[name.rpartition(".")[2]]
    return {"action_turn": "none"}.get(name, _NEUTRAL.get(name.rpartition("_")[2]))


#: Lists that say nothing, by the ends of their names: ROS has no empty ones.
_NEUTRAL: Final[Mapping[str, Any]] = MappingProxyType(
    {"order": [-1], "factor": [1.0], "offset": [0.0]}
)


# In words, for flags and records


#: Parameters that are lists, and what is in them.
_LISTS: Final[Mapping[str, type]] = MappingProxyType(
    {
        f"{what}_{one.name}": int if one.name == "order" else float
        for what in ("state", "action")
        for one in fields(ValueAdaptation)
    }
)


def adaptation_of_words(words: Sequence[str]) -> Adaptation:
    """The adaptation of words such as ``cameras.main.rotate=180`` or ``action_factor=1,-1``, whose
    names are those of the parameters. ValueError."""
    values: dict[str, Any] = {}
    roles = ["main", "wrist"]
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        if not equals or not text or name in values:
            raise ValueError(f"{word!r}: write name=value, each name once")
        try:
            values[name] = _value(name, text)
        except ValueError as error:
            raise ValueError(f"{word!r}: {error}") from None
        roles += [name.split(".")[1]] if name.startswith("cameras.") else []
    return adaptation_of(values, tuple(dict.fromkeys(roles)))


def _value(name: str, text: str) -> Any:
    """A parameter's value of its text. ValueError."""
    camera, _, step = name.rpartition(".")
    if name == "action_turn":
        return text
    if (kind := _LISTS.get(name)) is not None:
        return [kind(one) for one in text.strip("[]").split(",")]
    if not camera.startswith("cameras.") or step not in IMAGE_DEFAULTS:
        known = [f"cameras.ROLE.{one}" for one in IMAGE_DEFAULTS]
        raise ValueError(f"no {name}: there are {', '.join([*known, *_LISTS, 'action_turn'])}")
    default = IMAGE_DEFAULTS[step]
    if not isinstance(default, bool):
        return type(default)(text)
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
