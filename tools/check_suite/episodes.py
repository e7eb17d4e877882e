"""Episodes of the tabletop's expert as recordings, in initial states that no policy was trained on.

Labels are the expert's own actions, or, ``disturbed``, what a hand that is not steady did instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vla_ros.data.check.recording import Recording, record
from vla_ros.data.episodes.play import robot_state
from vla_ros.data.lerobot.dataset import ACTION, STATE, DatasetRow
from vla_ros.sim.env import AGENTVIEW, WRIST
from vla_ros.sim.expert import Expert
from vla_ros.sim.factory import EnvConfig
from vla_ros_lab.train.units import scales, to_environment

SIZE, STATE_DIM, FPS = 256, 8, 20.0
_NAMES = ("x", "y", "z", "rx", "ry", "rz", "gripper")
_STATE = ("x", "y", "z", "rx", "ry", "rz", "finger_1", "finger_2")
_MOST = 160  # steps of an episode
_SWAY = 0.35  # of an unsteady hand, in units of the largest step of an axis
_LEAST = 4  # initial state


def make(folder: Path, per_family: int, disturbed: bool) -> Path:
    """File of the episodes, which is written where it is not there."""
    file = folder / f"episodes-{per_family}{'-disturbed' if disturbed else ''}.npz"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    columns: dict[str, list[object]] = {}
    for number, one in enumerate(_episodes(per_family, disturbed)):
        print(f"episode {number}: {one['task']}, {len(one['actions'])} rows", flush=True)
        for name, value in one.items():
            columns.setdefault(name, []).append(value)
    lengths = [len(one) for one in columns["actions"]]  # type: ignore[arg-type]
    arrays = {n: np.concatenate(columns[n]) for n in ("main", "wrist", "state", "actions")}  # type: ignore[arg-type]
    np.savez(file, lengths=lengths, tasks=np.array(columns["task"]), **arrays)
    return file


def _episodes(per_family: int, disturbed: bool) -> Iterator[dict[str, object]]:
    environment = EnvConfig("tabletop", SIZE, True)()
    scale = scales(environment.spec)
    rng = np.random.default_rng(11)
    families: dict[str, list[object]] = {}
    for task in environment.spec.tasks:
        families.setdefault(task.name.split("_")[0], []).append(task)
    for tasks in families.values():
        for number in range(per_family):
            task = tasks[int(rng.integers(len(tasks)))]
            seen = environment.reset(task.name, _LEAST + number, seed=number)  # type: ignore[attr-defined]
            expert = Expert(task.instruction)  # type: ignore[attr-defined]
            rows: list[tuple[object, ...]] = []
            sway = np.zeros(6)
            for _ in range(_MOST):
                action = expert.act(seen.poses)
                if disturbed:
                    sway = 0.8 * sway + 0.6 * rng.normal(0.0, _SWAY, 6) * scale * [1, 1, 1, 0, 0, 0]
                    action[:6] = np.clip(action[:6] + sway, -scale, scale)
                state = robot_state(seen, STATE_DIM)
                rows.append((seen.images[AGENTVIEW], seen.images[WRIST], state, action))
                step = environment.step(to_environment(action, scale))
                seen = step.observation
                if step.done:
                    break
            main, wrist, state, actions = (np.stack(c) for c in zip(*rows, strict=True))
            yield {"task": task.instruction, "main": main, "wrist": wrist, "state": state,  # type: ignore[attr-defined]
                   "actions": actions}  # fmt: skip
    environment.close()


def load(file: Path, frames: int, state: bool, wrist: bool, name: str = "tabletop") -> Recording:
    """A recording of ``frames`` chosen frames of the episodes in a file."""
    with np.load(file) as found:
        arrays = {key: found[key] for key in found.files}
    episode = np.repeat(np.arange(len(arrays["lengths"])), arrays["lengths"])

    def rows() -> Iterator[DatasetRow]:
        for i, number in enumerate(episode):
            images = {"main": arrays["main"][i]} | ({"wrist": arrays["wrist"][i]} if wrist else {})
            numbers = {ACTION: arrays["actions"][i]} | (
                {STATE: arrays["state"][i]} if state else {}
            )
            yield DatasetRow(int(number), str(arrays["tasks"][number]), images, numbers)

    cameras = {"main": "main", "wrist": "wrist"}
    return record(
        name, FPS, rows(), len(episode), frames, _NAMES, _STATE if state else (), cameras, 8
    )
