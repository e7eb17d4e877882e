"""Hypotheses: what may be wrong between a robot and a checkpoint, each with its repair.

A repair changes what the policy is given (:class:`Inputs`), how its answer is taken
(:class:`Answer`), or both; and it is said by parameters of the policy node, or by what to do where
no parameter can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.adaptation import (
    TURNS,
    ActionAdaptation,
    Adaptation,
    ImageAdaptation,
    ValueAdaptation,
)
from vla_ros.core.types import Floats
from vla_ros.data.check.recording import LAGS, Recording

#: of predicted actions [F, C, D] and the state [F, S] what they are by the hypothesis
Change = Callable[[Floats, Floats | None], Floats]
_AXES = ("x", "y", "z", "rx", "ry", "rz")
_TURN = math.tau
_LABEL_LAGS = (-3, -2, -1, 1, 2, 3, 4, 5, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Change of an observation. ``adaptation``: of its images and state. ``image_lag`` and
    ``state_lag``: rows later from which they are taken. ``cameras``: role -> the role that shows
    what it should."""

    adaptation: Adaptation = Adaptation()
    image_lag: int = 0
    state_lag: int = 0
    cameras: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Text that is the same for the same change."""
        words = self.adaptation.parameters()
        return f"{words}{self.image_lag},{self.state_lag},{sorted(self.cameras.items())}"


@dataclass(frozen=True, slots=True)
class Answer:
    """Change of how an answer is compared. ``change`` of the predicted actions; ``lag``: rows later
    that it is for; ``rate``: actions of the data in one of the policy's."""

    change: Change | None = None
    lag: int = 0
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One thing that may be wrong. ``key``: its name, stable. ``text``: a line. ``parameters`` of
    the policy node that repair it; ``advice`` where they alone do not. ``about``: image, joint,
    state, action or time. ``refine``: of a number that was guessed, the one with another."""

    key: str
    text: str
    about: str
    inputs: Inputs | None = None
    answer: Answer | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""
    refine: tuple[float, Callable[[float], Hypothesis]] | None = None


NONE = Hypothesis("none", "as it is", "")


def all_of(
    recording: Recording, space: ActionSpace, chunk: int, middle: Sequence[float]
) -> list[Hypothesis]:
    """Every hypothesis for these data, the cheap and common first. ``middle`` of each value of the
    state in the checkpoint's data; empty: unknown."""
    return [
        *_of_actions(recording, space),
        *_of_time(recording, space, chunk),
        *_of_images(recording),
        *_of_joints(recording, space, middle),
        *_of_state(recording, middle),
        *_of_lags(recording),
    ]


# Images


def _of_images(recording: Recording) -> Iterator[Hypothesis]:
    roles = recording.roles
    for role in roles:
        for key, text, steps in _IMAGE_STEPS:
            yield _image(role, key, text, steps)
        shape = recording.images[recording.chosen[0]][role].shape
        if shape[0] != shape[1]:
            for fit in ("squash", "letterbox", "crop"):
                yield _image(role, fit, f"the data's images are {fit} to a square",
                             ImageAdaptation(fit=fit))  # fmt: skip
    if len(roles) > 1:
        for other in roles[1:]:
            yield Hypothesis(
                f"main<->{other}",
                f"cameras main and {other} are exchanged",
                "image",
                Inputs(cameras={"main": other, other: "main"}),
                advice=f"exchange cameras.main.topic and cameras.{other}.topic",
            )


_IMAGE_STEPS = (
    ("bgr", "red and blue are exchanged", ImageAdaptation(colors="bgr")),
    ("180", "the image is upside down", ImageAdaptation(rotate=180)),
    ("mirror", "left and right are exchanged", ImageAdaptation(mirror=True)),
    ("flip", "above and below are exchanged", ImageAdaptation(rotate=180, mirror=True)),
    ("90", "the image is turned by 90 degrees", ImageAdaptation(rotate=90)),
    ("270", "the image is turned by 270 degrees", ImageAdaptation(rotate=270)),
    ("dark", "the image is too dark", ImageAdaptation(gamma=0.5)),
    ("darker", "the image is far too dark", ImageAdaptation(gamma=1 / 3)),
    ("bright", "the image is too bright", ImageAdaptation(gamma=2.0)),
    ("brighter", "the image is far too bright", ImageAdaptation(gamma=3.0)),
    ("crop", "the data show less around the middle", ImageAdaptation(crop=0.8)),
)


def _image(role: str, key: str, text: str, steps: ImageAdaptation) -> Hypothesis:
    made = Adaptation({role: steps})
    return Hypothesis(
        f"{role}: {key}", f"camera {role}: {text}", "image", Inputs(made),
        parameters=made.parameters(),
    )  # fmt: skip


# Joints: how the robot counts them, in its state and in its commands alike.


def _of_joints(
    recording: Recording, space: ActionSpace, middle: Sequence[float]
) -> Iterator[Hypothesis]:
    state = recording.state
    if not space.kind.joints or state is None or state.shape[1] != space.width:
        return
    count, names = space.width, space.names
    spread = np.std(state, axis=0)
    lives = [i for i in space.motion if spread[i] > 1e-6]
    for i in lives:
        sign = _numbers(np.where(np.arange(count) == i, -1.0, 1.0))
        text = f"joint {names[i]} of the robot counts the other way"
        yield _joint(f"joint {names[i]}: sign", text, space, ValueAdaptation((), sign))
    for i in lives if space.absolute else ():
        for guess in _guesses(recording, middle, i):
            yield _joint_offset(i, space, guess)
    for i, j in _pairs(space):
        if i in lives and j in lives:
            order = list(range(count))
            order[i], order[j] = j, i
            text = f"joints {names[i]} and {names[j]} of the robot are exchanged"
            values = ValueAdaptation(tuple(order))
            yield _joint(f"joints {names[i]}<->{names[j]}", text, space, values)


def _joint_offset(i: int, space: ActionSpace, value: float) -> Hypothesis:
    offset = _numbers(np.where(np.arange(space.width) == i, value, 0.0))
    made = _joint(
        f"joint {space.names[i]}: offset",
        f"joint {space.names[i]} of the robot is off by {-value:.3g}"
        f" ({math.degrees(-value):.0f} degrees)",
        space, ValueAdaptation((), (), offset),
    )  # fmt: skip
    return replace(made, refine=(value, lambda other: _joint_offset(i, space, other)))


def _joint(key: str, text: str, space: ActionSpace, values: ValueAdaptation) -> Hypothesis:
    """``values``: from the robot's joints to the data's; its actions go the way back."""
    order = tuple(int(i) for i in np.argsort(values.order)) if values.order else ()
    back = ValueAdaptation(order, values.factor, tuple(0.0 - one for one in values.offset))
    there, made = Adaptation(state=values), ActionAdaptation(back)
    return Hypothesis(
        key, text, "joint", Inputs(there), Answer(lambda actions, _: made.apply(actions, space)),
        parameters=there.parameters() | Adaptation(action=made).parameters(),
    )  # fmt: skip


# State


def _of_state(recording: Recording, middle: Sequence[float]) -> Iterator[Hypothesis]:
    if recording.state is None:
        return
    count, names = recording.state.shape[1], recording.state_names
    spread = np.std(recording.state, axis=0)
    lives = [i for i in range(count) if spread[i] > 1e-6]
    ones = np.ones(count)
    if lives:
        for factor, text in ((math.pi / 180, "degrees"), (180 / math.pi, "radians for degrees")):
            yield _state(f"state: {text}", f"the state is in {text}", factor=ones * factor)
        for factor, text in ((1e-3, "mm"), (1e3, "m for mm")):
            yield _state(f"state: {text}", f"the state is in {text}", factor=ones * factor)
    yield from _quaternions(recording)
    for i in lives:
        sign = np.where(np.arange(count) == i, -1.0, 1.0)
        yield _state(f"state {names[i]}: sign", f"{names[i]} of the state counts the other way",
                     factor=sign)  # fmt: skip
        low, high = recording.state[:, i].min(), recording.state[:, i].max()
        if abs(low + high) > 0.1 * (high - low):
            offset = np.where(np.arange(count) == i, low + high, 0.0)
            yield _state(f"state {names[i]}: reversed",
                         f"{names[i]} of the state is open for closed", sign, offset)  # fmt: skip
    yield from _fingers(recording)
    for i in lives:
        for j in lives:
            if i < j and _alike(spread[i], spread[j]):
                order = list(range(count))
                order[i], order[j] = j, i
                yield _state(f"state {names[i]}<->{names[j]}",
                             f"{names[i]} and {names[j]} of the state are exchanged",
                             order=order)  # fmt: skip
    for i in lives:
        for guess in _guesses(recording, middle, i):
            yield _offset(i, count, names[i], guess)


def _alike(one: float, other: float) -> bool:
    return max(one, other) < 20.0 * min(one, other)


def _guesses(recording: Recording, middle: Sequence[float], i: int) -> list[float]:
    """What may be added to value ``i`` of the state, the least first."""
    assert recording.state is not None
    values = recording.state[:, i]
    spread = max(float(values.std()), 1e-3)
    guesses = {g * spread for g in (-1.8, -1.2, -0.6, 0.6, 1.2, 1.8)}
    if len(middle) == recording.state.shape[1]:
        guesses.add(float(middle[i] - values.mean()))
    if np.abs(values).max() > 0.5:
        guesses |= {-_TURN, _TURN, -_TURN / 2, _TURN / 2}
    return sorted(guesses, key=abs)


def _offset(i: int, count: int, name: str, value: float) -> Hypothesis:
    made = _state(
        f"state {name}: offset", f"{name} of the state is off by {-value:.3g}",
        offset=np.where(np.arange(count) == i, value, 0.0),
    )  # fmt: skip
    return Hypothesis(
        made.key, made.text, made.about, made.inputs, None, made.parameters, "",
        (value, lambda other: _offset(i, count, name, other)),
    )  # fmt: skip


def _fingers(recording: Recording) -> Iterator[Hypothesis]:
    """Two last values that are a gripper's: opposite, or the same."""
    assert recording.state is not None
    count = recording.state.shape[1]
    one, other = recording.state[:, -2], recording.state[:, -1]
    if count < 3 or min(one.std(), other.std()) < 1e-6:
        return
    if not (np.abs(one + other).max() < 0.2 * np.ptp(one) + 2e-3 or np.allclose(one, other)):
        return
    sign, offset = np.ones(count), np.zeros(count)
    for i in (-2, -1):
        column = recording.state[:, i]
        sign[i], offset[i] = -1.0, column.min() + column.max()
    yield _state("state gripper: reversed", "the fingers of the state are open for closed",
                 sign, offset)  # fmt: skip
    swapped = [*range(count - 2), count - 1, count - 2]
    yield _state("state gripper: fingers exchanged", "the fingers of the state are exchanged",
                 order=swapped)  # fmt: skip


def _quaternions(recording: Recording) -> Iterator[Hypothesis]:
    """Four values in a row that are of length 1."""
    assert recording.state is not None
    count = recording.state.shape[1]
    for at in range(count - 3):
        four = recording.state[:, at : at + 4]
        if np.abs(np.linalg.norm(four, axis=1) - 1.0).max() > 1e-3:
            continue
        first = list(range(count))
        first[at : at + 4] = [at + 3, at, at + 1, at + 2]
        last = list(range(count))
        last[at : at + 4] = [at + 1, at + 2, at + 3, at]
        yield _state("state quaternion: x y z w", "the data have w first", order=first)
        yield _state("state quaternion: w x y z", "the data have w last", order=last)
        sign = np.ones(count)
        sign[at : at + 4] = -1.0
        yield _state("state quaternion: sign", "the quaternion has the other sign", sign)


def _state(
    key: str,
    text: str,
    factor: Floats | None = None,
    offset: Floats | None = None,
    order: Sequence[int] = (),
) -> Hypothesis:
    values = ValueAdaptation(tuple(order), _numbers(factor), _numbers(offset))
    made = Adaptation(state=values)
    return Hypothesis(key, text, "state", Inputs(made), parameters=made.parameters())


def _numbers(values: Floats | None) -> tuple[float, ...]:
    return () if values is None else tuple(float(x) for x in values)


# Time


def _of_lags(recording: Recording) -> Iterator[Hypothesis]:
    period_ms = 1e3 / recording.fps
    for what in ("image", "state") if recording.state is not None else ("image",):
        for lag in (n for n in LAGS if n):
            late, ms = "late" if lag > 0 else "early", abs(lag) * period_ms
            yield Hypothesis(
                f"{what} {lag:+d}",
                f"the {what} is {abs(lag)} frames ({ms:.0f} ms) {late}",
                "time",
                Inputs(image_lag=lag) if what == "image" else Inputs(state_lag=lag),
                advice=f"the {what}'s stamps are {ms:.0f} ms too {'new' if lag > 0 else 'old'}:"
                " correct them at their source",
            )


def _of_time(recording: Recording, space: ActionSpace, chunk: int) -> Iterator[Hypothesis]:
    period_ms = 1e3 / recording.fps
    for lag in _LABEL_LAGS:
        late = "later" if lag > 0 else "earlier"
        yield Hypothesis(
            f"actions {lag:+d}",
            f"the recorded actions are {abs(lag)} frames ({abs(lag) * period_ms:.0f} ms) {late}"
            " than the policy's",
            "time",
            answer=Answer(lag=lag),
            advice="pair the data anew: observations and commands of the same moment",
        )
    for rate in (2.0, 0.5) if chunk > 1 else ():
        hz = recording.fps / rate
        yield Hypothesis(
            f"rate x{rate:g}",
            f"the policy's data had {hz:g} Hz, these have {recording.fps:g}",
            "time",
            answer=Answer(rate=rate),
            parameters={"action_rate_hz": hz},
        )


# Actions


def _of_actions(recording: Recording, space: ActionSpace) -> Iterator[Hypothesis]:
    count, motion = space.width, list(space.motion)
    for i in space.grippers:
        yield from _of_gripper(recording, space, i)
    if space.kind is ActionKind.END_EFFECTOR_DELTA:
        for turn in TURNS[1:]:
            made = ActionAdaptation(turn=turn)
            text = f"the robot's frame is turned by {turn[1:]} degrees about {turn[0]}"
            yield _action(f"action: turned {turn}", text, made, space)
    for i in motion:
        sign = np.where(np.arange(count) == i, -1.0, 1.0)
        text = f"{space.names[i]} of the actions has the other sign"
        yield _linear(f"action {space.names[i]}: sign", text, space, sign)
    for i, j in _pairs(space):
        order = list(range(count))
        order[i], order[j] = j, i
        made = ActionAdaptation(ValueAdaptation(tuple(order)))
        one, other = space.names[i], space.names[j]
        text = f"{one} and {other} of the actions are exchanged"
        yield _action(f"action {one}<->{other}", text, made, space)
    moved = np.array([1.0 if i in motion else 0.0 for i in range(count)])
    for factor, text in _SCALES:
        yield _linear(
            f"action: x{factor:.4g}", f"the robot's actions are {text} the policy's", space,
            np.where(moved > 0, factor, 1.0),
        )  # fmt: skip
    yield from _of_kind(recording, space)


_SCALES = (
    (2.0, "twice"),
    (0.5, "half of"),
    (20.0, "20 times"),
    (0.05, "1/20 of"),
    (180 / math.pi, "in degrees, and in radians are"),
    (math.pi / 180, "in radians, and in degrees are"),
)


def _pairs(space: ActionSpace) -> Iterator[tuple[int, int]]:
    """Numbers that may be exchanged: two of a position or a rotation, or two joints."""
    size = len(space.motion) if space.kind.joints else 3
    for start in range(0, len(space.motion), size):
        group = space.motion[start : start + size]
        yield from ((i, j) for i in group for j in group if i < j)


def _of_gripper(recording: Recording, space: ActionSpace, i: int) -> Iterator[Hypothesis]:
    """The ends of a gripper: those that were recorded, both ways round."""
    values = recording.actions[:, i]
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    ends = [(1.0, 0.0)]
    if low < -0.05:
        ends = [(-1.0, 1.0), (1.0, -1.0)]
    elif high > 1.5:
        ends = [(low, high), (high, low)]
    name = space.names[i]
    for closed, opened in ends:
        factor = np.where(np.arange(space.width) == i, opened - closed, 1.0)
        offset = np.where(np.arange(space.width) == i, closed, 0.0)
        text = f"{name} of the recorded actions is {closed:g} closed and {opened:g} open"
        made = _linear(f"action {name}: {closed:g}..{opened:g}", text, space, factor, offset)
        advice = "of a robot that is 0 closed and 1 open set nothing: only the data have it so"
        yield made if (closed, opened) == (1.0, 0.0) else replace(made, advice=advice)


def _of_kind(recording: Recording, space: ActionSpace) -> Iterator[Hypothesis]:
    """Displacements for targets, and the frame of the tool for the base's; where the state shows
    what they are against."""
    state, motion = recording.state, list(space.motion)
    if state is None:
        return
    if space.kind.joints and state.shape[1] == space.width:

        def moved(actions: Floats, state: Floats | None) -> Floats:
            assert state is not None
            out, start = actions.copy(), state[:, None, motion]
            if space.kind is ActionKind.JOINT_POSITION:
                out[..., motion] = np.diff(out[..., motion], axis=1, prepend=start)
            else:
                out[..., motion] = start + np.cumsum(out[..., motion], axis=1)
            return out

        other = "joint_delta" if space.kind.absolute else "joint_position"
        yield Hypothesis(
            f"action: {other}", f"the robot's actions are {other}", "action",
            answer=Answer(moved), parameters={"action_space": other},
        )  # fmt: skip
    if space.kind is ActionKind.END_EFFECTOR_DELTA and state.shape[1] >= 6:
        if np.linalg.norm(state[:, 3:6], axis=1).max() < 0.3 or space.width != 7:
            return
        for key, inverse in (("tool", False), ("base", True)):
            yield Hypothesis(
                f"action: frame {key}",
                f"the data's displacements are in the frame of the {key}",
                "action",
                answer=Answer(_framed(inverse)),
                advice="set frame_id to that frame: outputs twist carries it",
            )


def _framed(inverse: bool) -> Change:
    def change(actions: Floats, state: Floats | None) -> Floats:
        assert state is not None
        out = actions.copy()
        for frame, values in enumerate(state):
            turn = _matrix(values[3:6])
            turn = turn.T if inverse else turn
            for three in (slice(0, 3), slice(3, 6)):
                out[frame, :, three] = out[frame, :, three] @ turn.T
        return out

    return change


def _matrix(vector: Floats) -> Floats:
    """Float64 [3, 3] of an axis-angle (Rodrigues)."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-9:
        return np.eye(3)
    x, y, z = vector / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    out: Floats = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)
    return out


def _linear(
    key: str, text: str, space: ActionSpace, factor: Floats, offset: Floats | None = None
) -> Hypothesis:
    values = ValueAdaptation((), _numbers(factor), _numbers(offset))
    return _action(key, text, ActionAdaptation(values), space)


def _action(key: str, text: str, made: ActionAdaptation, space: ActionSpace) -> Hypothesis:
    return Hypothesis(
        key, text, "action",
        answer=Answer(lambda actions, _: made.apply(actions, space)),
        parameters=Adaptation(action=made).parameters(),
    )  # fmt: skip
