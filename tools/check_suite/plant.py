"""Planted faults: a recording of a robot whose convention is another than the checkpoint's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.adaptation import ActionAdaptation, ImageAdaptation, ValueAdaptation
from vla_ros.core.types import Floats, Image
from vla_ros.data.check.recording import Recording

Plant = Callable[[Recording], Recording]


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault. ``wanted``: names that are right; empty: nothing on the list repairs it, and
    nothing is to be named. ``needs``: "state" or "wrist" of the policy. ``stateless``: names that
    are right, too, of a policy without a state."""

    name: str
    wanted: tuple[str, ...]
    plant: Plant
    needs: str = ""
    stateless: tuple[str, ...] = ()


def _images(recording: Recording, change: Callable[[str, Image], Image]) -> Recording:
    images: Mapping[int, Mapping[str, Image]] = {
        row: {role: np.ascontiguousarray(change(role, one)) for role, one in roles.items()}
        for row, roles in recording.images.items()
    }
    return replace(recording, images=images)


def of_image(steps: ImageAdaptation, role: str = "main") -> Plant:
    """A camera whose images these steps repair."""
    return lambda r: _images(r, lambda name, one: steps.undo(one) if name == role else one)


def imaged(change: Callable[[Image], Image]) -> Plant:
    """Other images of the main camera."""
    return lambda r: _images(r, lambda role, one: change(one) if role == "main" else one)


def _state(factor: Mapping[int, float], offset: Mapping[int, float] | None = None) -> Plant:
    """The robot's state is the data's, linearly changed."""

    def plant(recording: Recording) -> Recording:
        assert recording.state is not None
        state = recording.state.copy()
        for i, value in factor.items():
            state[:, i] *= value
        for i, value in (offset or {}).items():
            state[:, i] += value
        return replace(recording, state=state)

    return plant


def _order(order: tuple[int, ...]) -> Plant:
    def plant(recording: Recording) -> Recording:
        assert recording.state is not None
        return replace(recording, state=recording.state[:, list(order)])

    return plant


def _actions(change: Callable[[Floats], Floats]) -> Plant:
    return lambda r: replace(r, actions=change(r.actions))


def _action(factor: tuple[float, ...] = (), offset: tuple[float, ...] = (), turn: str = "none",
            order: tuple[int, ...] = ()) -> Plant:  # fmt: skip
    made = ActionAdaptation(ValueAdaptation(order, factor, offset), turn)
    return _actions(lambda actions: made.apply(actions, END_EFFECTOR_DELTA))


def shifted(what: str, lag: int) -> Plant:
    """Images, state or actions of ``lag`` rows before, episode by episode. Of images few rows are
    kept: they are late where the state and the actions are of ``lag`` rows later."""

    def plant(recording: Recording) -> Recording:
        def source(row: int) -> int:
            rows = np.flatnonzero(recording.episodes == recording.episodes[row])
            return int(np.clip(row + (lag if what == "image" else -lag), rows[0], rows[-1]))

        at = [source(row) for row in range(len(recording.actions))]
        state = None if recording.state is None else recording.state[at]
        if what == "image":
            return replace(recording, state=state, actions=recording.actions[at])
        if what == "state":
            return replace(recording, state=state)
        return replace(recording, actions=recording.actions[at])

    return plant


def _ones(at: int, value: float) -> tuple[float, ...]:
    return tuple(value if i == at else 1.0 for i in range(7))


_LAST = (0.0,) * 6


def faults() -> Iterator[Fault]:
    """All of them."""
    yield Fault("BGR", ("main: bgr",), of_image(ImageAdaptation(colors="bgr")))
    yield Fault("180 degrees", ("main: 180",), of_image(ImageAdaptation(rotate=180)))
    yield Fault("mirrored", ("main: mirror",), of_image(ImageAdaptation(mirror=True)))
    flip = ImageAdaptation(rotate=180, mirror=True)
    yield Fault("upside down by a mirror", ("main: flip",), of_image(flip))
    yield Fault("turned by 90", ("main: 90",), of_image(ImageAdaptation(rotate=90)))
    yield Fault("turned by 270", ("main: 270",), of_image(ImageAdaptation(rotate=270)))
    dark = ("main: dark", "main: darker")
    yield Fault("dark, gamma 2", dark, of_image(ImageAdaptation(gamma=0.5)))
    yield Fault("dark, gamma 2.6", dark, of_image(ImageAdaptation(gamma=1 / 2.6)))
    bright = ("main: bright", "main: brighter")
    yield Fault("bright, gamma 0.4", bright, of_image(ImageAdaptation(gamma=2.5)))
    for i, axis in enumerate("xyz"):
        yield Fault(f"state: sign of {axis}", (f"state {axis}: sign",), _state({i: -1.0}), "state")
    yield Fault("state: x and y exchanged", ("state x<->y",), _order((1, 0, *range(2, 8))), "state")
    yield Fault("state: y and z exchanged", ("state y<->z",), _order((0, 2, 1, *range(3, 8))),
                "state")  # fmt: skip
    yield Fault("state: 6 cm too high", ("state z: offset",), _state({}, {2: 0.06}), "state")
    yield Fault("state: 9 cm aside", ("state y: offset",), _state({}, {1: -0.09}), "state")
    yield Fault("state: rx by a turn", ("state rx: offset",), _state({}, {3: -math.tau}), "state")
    yield Fault("state: in mm", ("state: mm",), _state(dict.fromkeys(range(8), 1e3)), "state")
    yield Fault("state: fingers reversed", ("state gripper: reversed",), _fingers, "state")
    yield Fault("gripper 1..0", ("action gripper: 1..0",), _action(_ones(6, -1.0), (*_LAST, 1.0)))
    yield Fault("gripper -1..1", ("action gripper: -1..1",), _action(_ones(6, 2.0), (*_LAST, -1.0)))
    yield Fault("gripper 1..-1", ("action gripper: 1..-1",), _action(_ones(6, -2.0), (*_LAST, 1.0)))
    for i, axis in enumerate(("x", "y", "z")):
        yield Fault(f"action: sign of {axis}", (f"action {axis}: sign",), _action(_ones(i, -1.0)))
    yield Fault("action: sign of rz", ("action rz: sign",), _action(_ones(5, -1.0)))
    yield Fault(
        "action: x and y exchanged", ("action x<->y",), _action(order=(1, 0, 2, 3, 4, 5, 6))
    )
    yield Fault(
        "action: x and z exchanged", ("action x<->z",), _action(order=(2, 1, 0, 3, 4, 5, 6))
    )
    for turn in ("z90", "z180", "z270", "x180", "y180", "x90"):
        yield Fault(f"frame turned {turn}", (f"action: turned {turn}",), _action(turn=turn))
    for factor in (2.0, 0.5, 20.0, 0.05, 180 / math.pi):
        six = (*(factor,) * 6, 1.0)
        yield Fault(f"actions x{factor:.3g}", (f"action: x{factor:.4g}",), _action(six))
    yield Fault("frame of the tool", ("action: frame tool",), _tool, "state")
    for lag in (3, 5, 8):
        near = tuple(f"image {n:+d}" for n in range(lag - 2, lag + 3) if n)
        early = tuple(f"actions {-n:+d}" for n in range(lag - 1, lag + 2))
        yield Fault(f"image {lag} frames late", near, shifted("image", lag), stateless=early)
        near = tuple(f"actions {n:+d}" for n in range(lag - 1, lag + 2) if n)
        yield Fault(f"actions {lag} frames late", near, shifted("actions", lag))
    yield Fault("state 5 frames late", tuple(f"state {n:+d}" for n in (3, 4, 5, 6)),
                shifted("state", 5), "state")  # fmt: skip
    # What nothing on the list repairs: naming anything is wrong.
    yield Fault("other objects named", (), _other_instruction)
    yield Fault("state all zero", (), _state(dict.fromkeys(range(8), 0.0)), "state")
    yield Fault("grey images", (), imaged(grey))
    yield Fault("image of noise", (), imaged(noise))
    yield Fault("half of the image covered", (), imaged(covered))
    yield Fault("actions of another episode", (), mixed)


def _fingers(recording: Recording) -> Recording:
    """Opened for closed, by the fingers' true ends, which no row need show."""
    assert recording.state is not None
    state = recording.state.copy()
    state[:, 6], state[:, 7] = 0.04 - state[:, 6], -0.04 - state[:, 7]
    return replace(recording, state=state)


def _tool(recording: Recording) -> Recording:
    from vla_ros.data.check.hypotheses import _framed

    assert recording.state is not None
    change = _framed(False)
    return replace(recording, actions=change(recording.actions[:, None], recording.state)[:, 0])


_OTHER = {"red": "blue", "blue": "green", "green": "yellow", "yellow": "red"}


def _other_instruction(recording: Recording) -> Recording:
    tasks = tuple(
        " ".join(_OTHER.get(word, word) for word in task.split()) for task in recording.tasks
    )
    return replace(recording, tasks=tasks)


def grey(image: Image) -> Image:
    """Without colors."""
    one = image.mean(2, keepdims=True).round().astype(np.uint8)
    return np.repeat(one, 3, axis=2)


def noise(image: Image) -> Image:
    """Nothing but noise."""
    return np.random.default_rng(0).integers(0, 256, image.shape, dtype=np.uint8)


def covered(image: Image) -> Image:
    """Two thirds of it are dark."""
    out = image.copy()
    out[:, image.shape[1] // 3 :] = 20
    return out


def mixed(recording: Recording) -> Recording:
    """Actions of another time."""
    return replace(recording, actions=np.roll(recording.actions, len(recording.actions) // 2, 0))
