"""Episodes of the SO-101's expert as recordings, and the faults of an arm of joints, in the node's
units: rad, and a gripper 0 closed to 1 open."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from check_suite.plant import (
    Fault,
    Plant,
    covered,
    grey,
    imaged,
    mixed,
    noise,
    of_image,
    shifted,
)
from vla_ros.core.adaptation import ImageAdaptation, ValueAdaptation
from vla_ros.core.types import Floats
from vla_ros.data.check.recording import Recording, record
from vla_ros.data.lerobot.dataset import ACTION, STATE, DatasetRow
from vla_ros.policies import PolicySpec
from vla_ros.sim.env import AGENTVIEW, WRIST
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.so101 import world
from vla_ros.sim.so101.expert import So101Expert

SIZE, FPS, TASK = 256, 20.0, "lift_cube"
_MOST, _REST = 60, 8  # steps of an episode, and those behind a success
_SWAY = 0.03  # rad, of an unsteady hand


def spec(found: PolicySpec) -> PolicySpec:
    """A policy of this arm's data."""
    return replace(
        found, action_space=world.ACTIONS, joint_names=tuple(world.JOINTS),
        state_units=world.STATE_UNITS, action_units=world.ACTION_UNITS,
    )  # fmt: skip


def make(folder: Path, episodes: int, disturbed: bool) -> Path:
    """File of the episodes, which is written where it is not there."""
    file = folder / f"so101-{episodes}{'-disturbed' if disturbed else ''}.npz"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    environment = EnvConfig("so101", SIZE, True)()
    (text,) = [one.instruction for one in environment.spec.tasks if one.name == TASK]
    expert, rng = So101Expert(text), np.random.default_rng(11)
    columns: tuple[list[object], ...] = ([], [], [], [], [])
    for number in range(episodes):
        seen, sway = environment.reset(TASK, number, seed=number), np.zeros(6)
        for _ in range(_MOST):
            action = expert.act(seen.poses)
            if disturbed:
                sway = 0.8 * sway + 0.6 * rng.normal(0.0, _SWAY, 6) * [1, 1, 1, 1, 1, 0]
                action = action + sway
                action[:5] = np.clip(action[:5], *np.array(world.ARM_RANGE).T)
            images = seen.images[AGENTVIEW], seen.images[WRIST]
            for column, one in zip(columns, (number, *images, seen.joint_positions, action),
                                   strict=True):  # fmt: skip
                column.append(np.array(one))
            step = environment.step(action)
            seen = step.observation
            if step.done:
                break
        print(f"episode {number}: {len(columns[0])} rows", flush=True)
    environment.close()
    names = ("episode", "main", "wrist", "state", "actions")
    np.savez(file, task=text, **{n: np.stack(c) for n, c in zip(names, columns, strict=True)})  # type: ignore[arg-type]
    return file


def load(file: Path, frames: int) -> Recording:
    """A recording of ``frames`` chosen frames of the episodes in a file."""
    with np.load(file) as found:
        arrays = {key: found[key] for key in found.files}

    def rows() -> Iterator[DatasetRow]:
        for i, number in enumerate(arrays["episode"]):
            images = {"main": arrays["main"][i], "wrist": arrays["wrist"][i]}
            numbers = {ACTION: arrays["actions"][i], STATE: arrays["state"][i]}
            yield DatasetRow(int(number), str(arrays["task"]), images, numbers)

    cameras, count = {"main": "main", "wrist": "wrist"}, len(arrays["episode"])
    return record("so101", FPS, rows(), count, frames, world.JOINTS, world.JOINTS, cameras, 8)


def _values(change: ValueAdaptation, of_state: bool, of_actions: bool) -> Plant:
    """The robot counts its joints otherwise than the data, in its state, its commands, or both."""

    def plant(recording: Recording) -> Recording:
        assert recording.state is not None
        state = change.apply(recording.state) if of_state else recording.state
        actions = change.apply(recording.actions) if of_actions else recording.actions
        return replace(recording, state=state, actions=actions)

    return plant


def _one(i: int, factor: float = 1.0, offset: float = 0.0) -> ValueAdaptation:
    return ValueAdaptation(
        (), tuple(factor if n == i else 1.0 for n in range(6)),
        tuple(offset if n == i else 0.0 for n in range(6)),
    )  # fmt: skip


def _swapped(i: int, j: int) -> ValueAdaptation:
    order = list(range(6))
    order[i], order[j] = j, i
    return ValueAdaptation(tuple(order))


def _exchanged(recording: Recording) -> Recording:
    images = {r: {"main": i["wrist"], "wrist": i["main"]} for r, i in recording.images.items()}
    return replace(recording, images=images)


def _still(recording: Recording) -> Recording:
    assert recording.state is not None
    return replace(recording, state=np.zeros_like(recording.state))


def _displacements(recording: Recording) -> Recording:
    assert recording.state is not None
    actions = recording.actions.copy()
    actions[:, :5] -= recording.state[:, :5]
    return replace(recording, actions=actions)


def _gripper(change: Callable[[Floats], Floats]) -> Plant:
    def plant(recording: Recording) -> Recording:
        actions = recording.actions.copy()
        actions[:, 5] = change(actions[:, 5])
        return replace(recording, actions=actions)

    return plant


def faults() -> Iterator[Fault]:
    """All of them."""
    names = world.JOINTS
    for role in ("main", "wrist"):
        for key, steps in (
            ("bgr", ImageAdaptation(colors="bgr")),
            ("180", ImageAdaptation(rotate=180)),
            ("mirror", ImageAdaptation(mirror=True)),
            ("flip", ImageAdaptation(rotate=180, mirror=True)),
            ("90", ImageAdaptation(rotate=90)),
        ):
            yield Fault(f"{role}: {key}", (f"{role}: {key}",), of_image(steps, role))
    yield Fault("cameras exchanged", ("main<->wrist",), _exchanged)
    dark, bright = ImageAdaptation(gamma=1 / 2.6), ImageAdaptation(gamma=2.6)
    yield Fault("dark, gamma 2.6", ("main: dark", "main: darker"), of_image(dark))
    yield Fault("bright, gamma 0.4", ("main: bright", "main: brighter"), of_image(bright))
    for i, name in enumerate(names[:5]):
        sign, off = _one(i, -1.0), _one(i, 1.0, math.radians(17))
        yield Fault(f"state: sign of {name}", (f"state {name}: sign",), _values(sign, True, False))
        yield Fault(f"state: {name} 17 degrees off", (f"state {name}: offset",),
                    _values(off, True, False))  # fmt: skip
        yield Fault(f"joint: sign of {name}", (f"joint {name}: sign",), _values(sign, True, True))
        yield Fault(f"joint: {name} 17 degrees off", (f"joint {name}: offset",),
                    _values(off, True, True))  # fmt: skip
        yield Fault(f"action: sign of {name}", (f"action {name}: sign",),
                    _values(sign, False, True))  # fmt: skip
    for i, j in ((0, 4), (1, 2), (2, 3)):
        swap = _swapped(i, j)
        words = f"{names[i]}<->{names[j]}"
        yield Fault(f"state: {words}", (f"state {words}",), _values(swap, True, False))
        yield Fault(f"joints: {words}", (f"joints {words}",), _values(swap, True, True))
        yield Fault(f"action: {words}", (f"action {words}",), _values(swap, False, True))
    turn = _one(4, 1.0, math.tau)
    yield Fault(f"state: {names[4]} a turn off", (f"state {names[4]}: offset",),
                _values(turn, True, False))  # fmt: skip
    degrees = ValueAdaptation((), (180 / math.pi,) * 5 + (1.0,))
    yield Fault("state: degrees", ("state: degrees",),
                _values(ValueAdaptation((), (180 / math.pi,)), True, False))  # fmt: skip
    yield Fault("action: degrees", ("action: x57.3",), _values(degrees, False, True))
    yield Fault("displacements", ("action: joint_delta",), _displacements)
    yield Fault("gripper 1..0", (f"action {names[5]}: 1..0",), _gripper(lambda v: 1.0 - v))
    yield Fault("gripper -1..1", (f"action {names[5]}: -1..1",), _gripper(lambda v: 2.0 * v - 1.0))
    yield Fault("gripper 1..-1", (f"action {names[5]}: 1..-1",), _gripper(lambda v: 1.0 - 2.0 * v))
    for lag in (5, 8):
        near = tuple(f"image {n:+d}" for n in range(lag - 2, lag + 3))
        yield Fault(f"image {lag} frames late", near, shifted("image", lag))
        near = tuple(f"actions {n:+d}" for n in range(lag - 1, lag + 2))
        yield Fault(f"actions {lag} frames late", near, shifted("actions", lag))
    # What nothing on the list repairs: naming anything is wrong.
    yield Fault("state all zero", (), _still)
    yield Fault("grey images", (), imaged(grey))
    yield Fault("image of noise", (), imaged(noise))
    yield Fault("most of the image covered", (), imaged(covered))
    yield Fault("actions of another episode", (), mixed)
