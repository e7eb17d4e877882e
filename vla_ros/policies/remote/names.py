"""Names of cameras, state, task and actions on the wire: one table, for both ends.

openpi's servers know observations by the names of their training data. Tables of its own examples
are here by name; others are a YAML file with the same fields:

    images: {main: observation/image, wrist: observation/wrist_image}   # role of the camera: key
    state: {observation/joint_position: 7, observation/gripper_position: 1}  # key: values, in order
    prompt: prompt
    actions: actions
    layout: hwc               # or chw
    mirrored: false           # left and right are exchanged, as in LIBERO's data
    size: [224, 224]          # fitted into it with a black border before they travel; absent: as is
    action_scale: [0.05, 0.05, 0.05, 0.5, 0.5, 0.5]   # m and rad of one unit of an end effector
    gripper: 1..-1            # what is closed..open of an action's gripper; absent: 0..1
    action_space: joint_delta # what the actions are; absent: as the parameter action_space says
    action_units: [0.2rad, 0.2rad, 1..0]  # one a value, or one for all that move; absent: rad
    state_units: [rad, rad, 1..0]         # of each value of the state; absent: rad, m, as measured
    action_rate_hz: 20        # of the data that the actions were learned from; absent: unknown

An image's key that is a list leads into maps in maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.action_space import KINDS
from vla_ros.core.files import BadFile
from vla_ros.core.types import Floats, Image, Observation, PolicyInfo
from vla_ros.core.yaml_files import read_yaml
from vla_ros.engine.models.cameras import MAIN, WRIST
from vla_ros.policies.base import InvalidAction, PolicyRefused, Scale
from vla_ros.policies.remote.codec import MAX_BYTES, Malformed
from vla_ros.policies.remote.figures import (
    MAX_CAMERAS,
    MAX_HZ,
    MAX_STATE,
    Flag,
    Many,
    Range,
    Rule,
    Text,
    brief,
)
from vla_ros.policies.units import gripper_of, unit_of

Key = str | tuple[str, ...]
_MAX_SIDE = 8192  # pixels
_KEYS = Many(Text(), 3)  # one that leads into maps in maps
_UNITS = Range(-1e3, 1e3, real=True)


@dataclass(frozen=True, slots=True)
class NameTable:
    """Table of names (see the module). Raises PolicyRefused for what can be none."""

    images: Mapping[str, Key] = field(default_factory=lambda: {MAIN: "observation/image"})
    state: Mapping[str, int] = field(default_factory=dict)
    prompt: Key = "prompt"
    actions: str = "actions"
    layout: str = "hwc"
    mirrored: bool = False
    size: tuple[int, int] | None = None
    action_scale: Scale | None = None
    gripper: str = ""
    action_space: str = ""
    action_units: tuple[str, ...] = ()
    state_units: tuple[str, ...] = ()
    action_rate_hz: float = 0.0

    def __post_init__(self) -> None:
        if MAIN not in self.images:
            raise PolicyRefused(f"names: images has no {MAIN!r}, the camera that sets the time")
        _checked("images", Range(1, MAX_CAMERAS), len(self.images))
        for key, count in self.state.items():
            _checked(f"state.{key}", Range(1, MAX_STATE), count)
        _checked("state, all values of it,", Range(0, MAX_STATE), self.state_dim)
        for role in self.images:
            _checked("a role of images", Text(), role)
        _checked("actions", Text(), self.actions)
        _checked("gripper", Text(64), self.gripper)
        self._refuse_one_key_twice()
        if self.layout not in ("hwc", "chw"):
            raise PolicyRefused(f"names: layout is {brief(self.layout)}: give hwc or chw")
        _checked("mirrored", Flag(), self.mirrored)
        self._check_size()
        scale = self.action_scale
        if scale is not None and (
            len(scale) != 6 or not all(_checked("action_scale", Many(_UNITS, 6), scale))
        ):
            raise PolicyRefused(
                "names: action_scale is 6 numbers other than 0, m and rad of one unit"
            )
        if self.gripper:
            gripper_of(self.gripper, "names: gripper")
        if self.action_space and self.action_space not in KINDS:
            known = ", ".join(KINDS)
            raise PolicyRefused(f"names: action_space is {brief(self.action_space)}: give {known}")
        for name in ("action_units", "state_units"):
            for word in _checked(name, Many(Text(64), MAX_STATE), getattr(self, name)):
                unit_of(word)
        if self.action_units and (self.action_scale or self.gripper):
            raise PolicyRefused(
                "names: action_units says what action_scale and gripper say: leave these out"
            )
        if len(self.state_units) not in (0, 1, self.state_dim):
            raise PolicyRefused(
                f"names: state_units has {len(self.state_units)} units, the state {self.state_dim}"
                " values"
            )
        _checked("action_rate_hz", Range(0.0, MAX_HZ, real=True), self.action_rate_hz)

    def _check_size(self) -> None:
        size = self.size
        if size is None:
            return
        _checked("size", Many(Range(16, _MAX_SIDE), 2), size)
        if len(size) != 2 or len(self.images) * size[0] * size[1] * 3 > MAX_BYTES:
            raise PolicyRefused(
                f"names: size is {list(size)} of {len(self.images)} images: give a height and a"
                f" width whose images fit into a message, {MAX_BYTES >> 20} MiB"
            )

    def _refuse_one_key_twice(self) -> None:
        """Raise PolicyRefused where a key is another's, or leads through it."""
        paths = [_path(key) for key in (*self.images.values(), *self.state, self.prompt)]
        for path in paths:
            _checked("a key", _KEYS, path)
        if any(
            a[: len(b)] == b for i, a in enumerate(paths) for j, b in enumerate(paths) if i != j
        ):
            raise PolicyRefused("names: two of images, state and prompt have the same key")

    @property
    def state_dim(self) -> int:
        """Values of robot state that an observation must have."""
        return sum(self.state.values())

    @property
    def more_cameras(self) -> tuple[str, ...]:
        """The roles beside main and wrist."""
        return tuple(role for role in self.images if role not in (MAIN, WRIST))

    def to_wire(self, seen: Observation, task: str) -> dict[str, Any]:
        """An observation as a message. InvalidAction: a part of it is missing."""
        message: dict[str, Any] = {}
        for role, key in self.images.items():
            _put(message, key, self._sent(_image_of(seen, role)))
        if self.state:
            state = np.zeros(0) if seen.proprio is None else seen.proprio
            if len(state) != self.state_dim:
                raise InvalidAction(
                    f"the server takes {self.state_dim} values of state, the frame has {len(state)}"
                )
            at = 0
            for key, count in self.state.items():
                _put(message, key, state[at : at + count].astype(np.float32))
                at += count
        _put(message, self.prompt, task)
        return message

    def from_wire(
        self, message: Mapping[str, Any], stamp_ns: int, received: tuple[int, int]
    ) -> tuple[Observation, str]:
        """A message as an observation and its task. InvalidAction names what is wrong with it.

        ``received``: when, by the ROS clock and by the steady one.
        """
        images = {
            role: self._received(_get(message, key), key) for role, key in self.images.items()
        }
        parts = [_numbers(_get(message, key), key, count) for key, count in self.state.items()]
        task = _get(message, self.prompt)
        if not isinstance(task, str):
            raise InvalidAction(f"{_quoted(self.prompt)} is no text")
        observation = Observation(
            stamp_ns, *received,
            image=images.pop(MAIN),
            wrist_image=images.pop(WRIST, None),
            proprio=np.concatenate(parts) if parts else None,
            more_images=images,
        )  # fmt: skip
        return observation, task

    def _sent(self, image: Image) -> Image:
        if self.mirrored:
            image = _contiguous(image[:, ::-1])
        if self.size is not None and image.shape[:2] != self.size:
            image = _fitted(image, *self.size)
        return np.ascontiguousarray(image if self.layout == "hwc" else image.transpose(2, 0, 1))

    def _received(self, image: Any, key: Key) -> Image:
        if isinstance(image, np.ndarray) and image.ndim == 3 and self.layout == "chw":
            image = image.transpose(1, 2, 0)
        good = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3
        if not good or image.shape[2] != 3 or not all(0 < n <= _MAX_SIDE for n in image.shape):
            what = (
                f"{image.dtype} {list(image.shape)}"
                if isinstance(image, np.ndarray)
                else f"a {type(image).__name__}"
            )
            raise InvalidAction(
                f"{_quoted(key)} is {what}: an image is uint8 {self.layout}, 3 colors"
            )
        return _contiguous(image[:, ::-1] if self.mirrored else image)


def _contiguous(image: Image) -> Image:
    """An image [H, W, 3] without steps in its memory."""
    if image.flags.c_contiguous:
        return image
    copy = np.empty(image.shape, image.dtype)
    for color in range(3):  # several times as fast as NumPy's own copy: its inner loop is long
        copy[..., color] = image[..., color]
    return copy


def _checked(name: str, rule: Rule, value: Any) -> Any:
    """The value, by its rule. PolicyRefused."""
    try:
        return rule.of(f"names: {name}", value)
    except Malformed as error:
        raise PolicyRefused(str(error)) from error


def _image_of(seen: Observation, role: str) -> Image:
    of = {MAIN: seen.image, WRIST: seen.wrist_image, **seen.more_images}
    image = of.get(role)
    if image is None:
        raise InvalidAction(f"the server looks through camera {role!r}, the frame has none")
    return image


def _fitted(image: Image, height: int, width: int) -> Image:
    """An image as large as fits, in the middle of black, as openpi's clients send it."""
    from PIL import Image as Pillow

    ratio = max(image.shape[1] / width, image.shape[0] / height)
    small = max(1, int(image.shape[0] / ratio)), max(1, int(image.shape[1] / ratio))
    pixels = Pillow.fromarray(np.ascontiguousarray(image))
    fitted = np.zeros((height, width, 3), np.uint8)
    top, left = (height - small[0]) // 2, (width - small[1]) // 2
    fitted[top : top + small[0], left : left + small[1]] = np.asarray(
        pixels.resize((small[1], small[0]), Pillow.Resampling.BILINEAR)
    )
    return fitted


def _numbers(values: Any, key: Key, count: int) -> Floats:
    try:
        numbers = np.asarray(values, np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InvalidAction(f"{_quoted(key)} is no list of numbers") from error
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise InvalidAction(
            f"{_quoted(key)} has {len(numbers)} values, {count} finite ones are read"
        )
    return numbers


def _path(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _quoted(key: Key) -> str:
    return ".".join(map(repr, _path(key)))


def _put(message: dict[str, Any], key: Key, value: Any) -> None:
    *above, last = _path(key)
    for name in above:
        message = message.setdefault(name, {})
    message[last] = value


def _get(message: Mapping[str, Any], key: Key) -> Any:
    found: Any = message
    for name in _path(key):
        if not isinstance(found, Mapping) or name not in found:
            there = ", ".join(sorted(str(k)[:40] for k in message)[:20])
            raise InvalidAction(
                f"the observation has no {_quoted(key)}: it has {there or 'nothing'}"
            )
        found = found[name]
    return found


# Sources of tables: openpi's examples, a file, a checkpoint's needs.


#: Tables of openpi's examples, by their names there.
OPENPI = {
    "libero": NameTable(
        images={MAIN: "observation/image", WRIST: "observation/wrist_image"},
        state={"observation/state": 8},
        mirrored=True,
        size=(224, 224),
        action_scale=(0.05, 0.05, 0.05, 0.5, 0.5, 0.5),
        gripper="1..-1",
        action_rate_hz=20.0,
    ),
    "droid": NameTable(
        images={MAIN: "observation/exterior_image_1_left", WRIST: "observation/wrist_image_left"},
        state={"observation/joint_position": 7, "observation/gripper_position": 1},
        size=(224, 224),
        # Joint velocities in shares of 0.2 rad a period (droid robot_ik/robot_ik_solver.py,
        # max_joint_delta), added to the measured joints; 1 is closed, in the state too.
        action_space="joint_delta",
        action_units=(*["0.2rad"] * 7, "1..0"),
        state_units=(*["rad"] * 7, "1..0"),
        action_rate_hz=15.0,
    ),
    "aloha": NameTable(
        images={
            MAIN: ("images", "cam_high"),
            "low": ("images", "cam_low"),
            "left_wrist": ("images", "cam_left_wrist"),
            "right_wrist": ("images", "cam_right_wrist"),
        },
        state={"state": 14},
        layout="chw",
        size=(224, 224),
        action_rate_hz=50.0,
    ),
}


def names_of(word: str) -> NameTable:
    """A table by its name, or of a YAML file. PolicyRefused."""
    if word in OPENPI:
        return OPENPI[word]
    path = Path(word).expanduser()
    if not path.is_file():
        raise PolicyRefused(f"names is {word!r}: neither a file nor one of {', '.join(OPENPI)}")
    try:
        return names_from(read_yaml(path))
    except BadFile as error:
        raise PolicyRefused(f"names: {error}") from error
    except (OSError, TypeError, ValueError) as error:
        raise PolicyRefused(f"names: {path}: {' '.join(str(error).split())}") from error
    except PolicyRefused as error:
        raise PolicyRefused(f"{path}: {error}") from error


def names_from(raw: Any) -> NameTable:
    """A table of plain values, a file's or a message's. PolicyRefused, TypeError, ValueError."""
    known = [one.name for one in fields(NameTable)]
    if not isinstance(raw, Mapping) or not set(raw) <= set(known):
        raise PolicyRefused(f"names is a map with some of {', '.join(known)}")
    values: dict[str, Any] = {name: value for name, value in raw.items() if value is not None}
    for name in ("images", "state"):
        if not isinstance(values.get(name, {}), Mapping):
            raise PolicyRefused(f"names: {name} is no map")
    if "images" in values:
        values["images"] = {str(role): _key(key) for role, key in values["images"].items()}
    if "state" in values:
        values["state"] = {str(key): count for key, count in values["state"].items()}
    for name in ("size", "action_scale"):
        if name in values:
            values[name] = tuple(values[name]) or None
    for name in ("action_units", "state_units"):
        if not isinstance(values.get(name, ()), list | tuple):
            raise PolicyRefused(f"names: {name} is no list of units")
        if name in values:
            values[name] = tuple(values[name])
    if "prompt" in values:
        values["prompt"] = _key(values["prompt"])
    for name in ("actions", "layout", "gripper", "action_space"):
        if not isinstance(values.get(name, ""), str):
            raise PolicyRefused(f"names: {name} is no text")
    return NameTable(**values)


def _key(key: Any) -> Key:
    if isinstance(key, str) and key:
        return key
    if isinstance(key, list | tuple) and key and all(isinstance(k, str) and k for k in key):
        return tuple(key)
    raise PolicyRefused(f"names: {brief(key)} is no key: a text, or a list of them")


def names_for(info: PolicyInfo) -> NameTable:
    """Our server's table for the needs of a policy, named like openpi's LIBERO example."""
    roles = (*((MAIN, WRIST) if info.cameras == 2 else (MAIN,)), *info.camera_roles)
    keys = {role: f"observation/{role}_image" for role in roles} | {MAIN: "observation/image"}
    state = {"observation/state": info.state_dim} if info.state_dim else {}
    return NameTable(images={role: keys[role] for role in roles}, state=state)  # type: ignore[arg-type]
