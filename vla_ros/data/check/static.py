"""What can be seen without asking the policy: widths, ranges, rates, cameras, instructions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.errors import UserError
from vla_ros.core.types import Floats, PolicyInfo
from vla_ros.data.check.recording import Recording
from vla_ros.data.check.texts import beside

WRONG, LOOK = "wrong", "look"
_TIMES = 8.0  # so much further than the data, or less, is another unit
_MANY_ROWS, _MANY_EPISODES = 1000, 10  # in which an end of the statistics is to be reached
_RATES = 0.2  # rates that differ by so much are two


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen. ``level``: wrong, or look. ``line``: what it is, and what to do.
    ``parameters`` of the policy node that repair it."""

    level: str
    line: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def refuse_width(recording: Recording, space: ActionSpace) -> None:
    """Raise UserError where the recorded actions are no actions of the policy's."""
    if (count := recording.actions.shape[1]) != space.width:
        raise UserError(
            f"{recording.name} has actions of {count} numbers ({', '.join(recording.names)}), the"
            f" checkpoint {space.width} ({', '.join(space.names)}): record the commands that"
            " it is to give, or name their topic with -r policy/action=TOPIC"
        )


def findings(
    recording: Recording,
    info: PolicyInfo,
    ends: Sequence[Floats] = (),
    trained: frozenset[str] = frozenset(),
) -> list[Finding]:
    """All findings. ``ends``: the least and the greatest action of the checkpoint's data, float64
    [D] each, in the unit of the recorded ones; empty: unknown. ``trained``: the instructions of
    these data; empty: unknown."""
    return [
        *_cameras(recording, info),
        *_images(recording),
        *_actions(recording, info.action_space),
        *(_statistics(recording, info.action_space, ends) if len(ends) == 2 else ()),
        *_state(recording, info.state_middle),
        *_time(recording, info),
        *_instructions(recording, trained),
    ]


def _cameras(recording: Recording, info: PolicyInfo) -> Iterator[Finding]:
    needed = ["main", *(["wrist"] if info.cameras == 2 else []), *info.camera_roles]
    if missing := [role for role in needed if role not in recording.roles]:
        raise UserError(
            f"the checkpoint looks through {', '.join(needed)}, and {recording.name} has"
            f" {', '.join(recording.roles)}: name them with --camera {missing[0]}=NAME"
        )
    if unused := [role for role in recording.roles if role not in needed]:
        yield Finding(LOOK, f"the checkpoint does not look at {', '.join(unused)}")


def _images(recording: Recording) -> Iterator[Finding]:
    for role in recording.roles:
        shown = [recording.images[row][role] for row in recording.chosen]
        if all((one == one[..., :1]).all() for one in shown):
            yield Finding(
                WRONG,
                f"camera {role} is grey: its driver's encoding or compression loses the colors",
            )
        if len(shown) > 2 and all(np.array_equal(one, shown[0]) for one in shown):
            yield Finding(WRONG, f"camera {role} shows one image in all rows: it is frozen")
        if np.mean([one.mean() for one in shown]) < 20:
            yield Finding(LOOK, f"camera {role} is nearly black")


def _actions(recording: Recording, space: ActionSpace) -> Iterator[Finding]:
    if not space.kind.joints and tuple(recording.names) != space.names:
        same = {*recording.names} == {*space.names}
        if same:
            yield Finding(
                WRONG, f"the actions are in the order {', '.join(recording.names)},"
                f" the checkpoint's are {', '.join(space.names)}",
            )  # fmt: skip
    for i in space.grippers:
        low, high = _reach(recording.actions[:, i])
        name = recording.names[i]
        if low < -0.2:
            yield Finding(WRONG, f"{name} goes from {low:.3g} to {high:.3g}, not from 0 (closed) to"
                          " 1 (open)")  # fmt: skip
        elif high > 1.5:
            yield Finding(WRONG, f"{name} reaches {high:.3g}, not 1 (open)")
        elif high - low < 1e-3:
            yield Finding(LOOK, f"{name} never moves: its side cannot be judged")
    motion = list(space.motion)
    still = [recording.names[i] for i in motion if np.nanstd(recording.actions[:, i]) == 0.0]
    if still:
        yield Finding(LOOK, f"{', '.join(still)} of the actions never move: nothing about them can"
                      " be judged")  # fmt: skip
    if not space.absolute:
        moved = recording.actions[:, motion]
        away = np.abs(np.nanmean(moved, 0)) > 5.0 * np.nanstd(moved, 0) + 1e-6
        if away.any():
            names = ", ".join(recording.names[motion[i]] for i in np.flatnonzero(away))
            yield Finding(LOOK, f"{names} of the actions hardly change: are they targets, where the"
                          " checkpoint gives displacements?")  # fmt: skip


def _statistics(
    recording: Recording, space: ActionSpace, ends: Sequence[Floats]
) -> Iterator[Finding]:
    low, high = ends
    names = recording.names
    shares: dict[str, list[float]] = {}
    for i in space.motion:
        if low[i] > high[i]:
            yield Finding(WRONG, f"the checkpoint's statistics of {names[i]} go from {low[i]:.3g}"
                          f" to {high[i]:.3g}: its ends are exchanged")  # fmt: skip
            continue
        there = float(max(abs(low[i]), abs(high[i])))
        least, most = _reach(recording.actions[:, i])
        here = max(abs(least), abs(most))
        if high[i] == low[i]:
            if here > 1e-6:
                yield Finding(LOOK, f"{names[i]} never moved in the checkpoint's data, and does"
                              " here")  # fmt: skip
        elif here > _TIMES * there > 0:
            yield Finding(WRONG, f"{names[i]} reaches {here:.3g} here and {there:.3g} in the"
                          f" checkpoint's data{_unit(here / there, space.units[i])}")  # fmt: skip
        elif there > 0:
            shares.setdefault(space.units[i], []).append(here / there)
            yield from _unreached(recording, i, float(low[i]), float(high[i]))
    for unit, found in shares.items():
        if 0 < max(found) < 1.0 / _TIMES:  # all of them: one alone may just not be needed
            less = 1.0 / max(found)
            yield Finding(LOOK, f"no value in {unit} reaches 1/{int(less)} of what it does in the"
                          f" checkpoint's data{_unit(less, unit)}")  # fmt: skip


def _unreached(recording: Recording, i: int, low: float, high: float) -> Iterator[Finding]:
    """An end of the statistics that no value comes near, where there are enough to expect it: it
    may be of other data, or of other units."""
    values = recording.actions[:, i][np.isfinite(recording.actions[:, i])]
    if len(values) < _MANY_ROWS or len(np.unique(recording.episodes)) < _MANY_EPISODES:
        return
    least, most, half = float(values.min()), float(values.max()), 0.5 * (high - low)
    for here, end, far in ((most, high, most < high - half), (least, low, least > low + half)):
        if far:
            yield Finding(LOOK, f"{recording.names[i]} goes to {here:.3g} here, the checkpoint's"
                          f" statistics to {end:.3g}: none of {len(values)} values comes near, are"
                          " they of these data?")  # fmt: skip


def _unit(ratio: float, unit: str = "rad") -> str:
    """What a ratio of two reaches of the same value may come from."""
    if unit == "rad" and 10.0 < ratio < 120.0:
        return ": degrees beside radians?"
    return ": mm beside m?" if unit == "m" and ratio > 300.0 else ": another unit?"


def _state(recording: Recording, middle: Sequence[float]) -> Iterator[Finding]:
    if recording.state is None:
        return
    names, state = recording.state_names, recording.state
    if not state.any():
        yield Finding(WRONG, "the robot's state is zero in all rows: its source says nothing")
        return
    still = [n for n, std in zip(names, state.std(0), strict=True) if std == 0.0]
    if still:
        yield Finding(LOOK, f"{', '.join(still)} of the state never move")
    for i, there in enumerate(middle if len(middle) == state.shape[1] else ()):
        here = float(np.median(state[:, i]))
        turns = (here - there) / math.tau
        if abs(turns - round(turns)) < 0.1 and round(turns):
            yield Finding(WRONG, f"{names[i]} of the state is {round(turns)} whole turns from the"
                          " checkpoint's data", {})  # fmt: skip
        elif abs(there) > 0.0 and _TIMES**2 * abs(there) < abs(here):
            yield Finding(LOOK, f"{names[i]} of the state is {here:.3g} here and about {there:.3g}"
                          f" in the checkpoint's data{_unit(abs(here / there))}")  # fmt: skip


def _time(recording: Recording, info: PolicyInfo) -> Iterator[Finding]:
    if not info.action_rate_hz:
        yield Finding(LOOK, f"nothing says the rate of the checkpoint's data; these have"
                      f" {recording.fps:g} Hz", {"action_rate_hz": recording.fps})  # fmt: skip
    elif abs(recording.fps / info.action_rate_hz - 1.0) > _RATES:
        yield Finding(WRONG, f"the recorded actions have {recording.fps:g} Hz, the checkpoint's"
                      f" data {info.action_rate_hz:g}")  # fmt: skip


def _instructions(recording: Recording, trained: frozenset[str]) -> Iterator[Finding]:
    texts = {recording.tasks[row] for row in recording.chosen}
    if "" in texts:
        yield Finding(WRONG, "rows have no instruction: give one with --instruction")
    odd = sorted(t for t in texts if t and (t != t.strip() or "_" in t or t.isupper()))
    if odd:
        yield Finding(LOOK, f"the instruction {odd[0]!r} is none that data sets have: write it as"
                      " a person says it")  # fmt: skip
    strange = {t: line for t in sorted(texts - {"", *odd}) if (line := beside(t, trained))}
    for text, line in list(strange.items())[:3]:
        yield Finding(LOOK, f"the instruction {text!r}: {line}")


def _reach(values: Floats) -> tuple[float, float]:
    """Nearly the least and the greatest of the values."""
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0, 0.0
    low, high = np.quantile(known, (0.01, 0.99))
    return float(low), float(high)
