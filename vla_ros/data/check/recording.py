"""Recorded frames that a policy is asked about: of bags and LeRobotDatasets, in memory.

All rows' numbers are kept, and the images of the chosen rows and of those around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vla_ros.core.errors import UserError
from vla_ros.core.types import Floats, Image, Pose
from vla_ros.data.lerobot.dataset import ACTION, STATE, DatasetRow, short
from vla_ros.runtime.control.observation import LAYOUTS

LAGS = (-2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 10)  # rows around a chosen one whose images are kept
MOST_ROWS = 20_000
_POSE = ("x", "y", "z", "qx", "qy", "qz", "qw")
_WRIST = ("wrist", "hand", "gripper", "eye_in")


@dataclass(frozen=True, slots=True)
class Recording:
    """Rows of one robot, one an action, in the order of time.

    ``actions`` float64 [N, D] and their ``names``, in the robot's convention; ``state`` float64
    [N, S] and ``state_names``, None: none was recorded. ``episodes`` int [N] and ``tasks`` [N] are
    each row's. ``images``: row -> camera's role -> image, of the rows around ``chosen``. ``fps``:
    rows a second.
    """

    name: str
    fps: float
    episodes: Floats
    tasks: tuple[str, ...]
    actions: Floats
    names: tuple[str, ...]
    state: Floats | None
    state_names: tuple[str, ...]
    images: Mapping[int, Mapping[str, Image]]
    chosen: tuple[int, ...]

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the cameras."""
        return tuple(self.images[self.chosen[0]])

    def row(self, row: int, lag: int) -> int:
        """The row ``lag`` later in the same episode, or the nearest one whose images are kept."""
        near = [n for n in LAGS if self._same(row, row + n)]
        return row + min(near, key=lambda n: (abs(n - lag), abs(n)))

    def labels(self, row: int, lag: int, count: int) -> Floats:
        """The recorded actions [count, D] from ``lag`` rows later on; NaN where the episode is
        over."""
        out = np.full((count, self.actions.shape[1]), np.nan)
        for i in range(count):
            if self._same(row, row + lag + i):
                out[i] = self.actions[row + lag + i]
        return out

    def _same(self, row: int, other: int) -> bool:
        return 0 <= other < len(self.episodes) and self.episodes[other] == self.episodes[row]

    def seen_by(self, roles: Sequence[str]) -> Recording:
        """The recording with the images of these cameras alone."""
        images = {
            row: {role: one for role, one in shown.items() if role in roles}
            for row, shown in self.images.items()
        }
        return replace(self, images=images)

    def only(self, count: int) -> Recording:
        """The recording with ``count`` of its chosen rows, spread evenly."""
        if count >= len(self.chosen):
            return self
        at = np.linspace(0, len(self.chosen) - 1, count).round().astype(int)
        return replace(self, chosen=tuple(self.chosen[i] for i in at))


def record(
    name: str,
    fps: float,
    rows: Iterable[DatasetRow],
    total: int,
    frames: int,
    names: Sequence[str],
    state_names: Sequence[str],
    cameras: Mapping[str, str],
    horizon: int,
) -> Recording:
    """A recording of the ``total`` first rows, with ``frames`` that a policy can be asked about.

    ``cameras``: a row's camera -> the role. UserError: no row can be asked about.
    """
    total = min(total, MOST_ROWS)
    candidates = np.unique(np.linspace(0, total - 1, min(3 * frames, total)).round().astype(int))
    kept = {int(c) + lag for c in candidates for lag in LAGS}
    episodes, tasks, actions, states = [], [], [], []
    images: dict[int, dict[str, Image]] = {}
    for number, row in enumerate(rows):
        if number >= total:
            break
        episodes.append(row.episode)
        tasks.append(row.task)
        actions.append(np.asarray(row.numbers[ACTION], np.float64))
        if STATE in row.numbers:
            states.append(np.asarray(row.numbers[STATE], np.float64))
        if number in kept:
            images[number] = {
                cameras[n]: image
                for one, image in row.images.items()
                if (n := short(one)) in cameras
            }
    made = Recording(
        name, fps, np.array(episodes), tuple(tasks), np.array(actions), tuple(names),
        np.array(states) if states else None, tuple(state_names), images, (),
    )  # fmt: skip
    chosen = _chosen(made, [int(c) for c in candidates if c < len(episodes)], frames, horizon)
    if not chosen:
        raise UserError(
            f"{name}: none of its {len(episodes)} rows can be asked about: an episode must have"
            f" {2 + horizon} rows, and the robot must move in them"
        )
    used = {row + lag for row in chosen for lag in LAGS}
    return replace(made, chosen=chosen, images={n: one for n, one in images.items() if n in used})


def _chosen(
    recording: Recording, candidates: Sequence[int], frames: int, horizon: int
) -> tuple[int, ...]:
    """Rows with a past and a future in which the robot moves, evenly over the candidates."""
    moving = _moving(recording)
    fit = [
        row
        for row in candidates
        if recording._same(row, row - 2)
        and recording._same(row, row + horizon - 1)
        and moving[row : row + horizon].any()
    ]
    at = np.unique(np.linspace(0, len(fit) - 1, min(frames, len(fit))).round().astype(int))
    return tuple(fit[i] for i in at)


def _moving(recording: Recording) -> Floats:
    """Whether the actions of each row are other than the usual one of the robot at rest."""
    away = np.abs(recording.actions - np.nanmedian(recording.actions, axis=0))
    scale = np.nanstd(recording.actions, axis=0) + 1e-9
    out: Floats = np.nanmax(away / scale, axis=1) > 0.1
    return out


# The state as the checkpoint has it, and cameras by their roles.


def state_of(recording: Recording, layout: str, joint_names: Sequence[str], size: int) -> Recording:
    """The recording with its state in the layout of the policy node's ``state_layout`` and
    ``joint_names``. UserError: it lacks a value.

    ``size``: values that the checkpoint takes. A state of so many values without names given is
    taken as it is, and one with a pose and fingers as libero_oft.
    """
    if not size:
        return replace(recording, state=None, state_names=())
    names, values = recording.state_names, recording.state
    if values is None:
        raise UserError(
            f"the checkpoint needs {size} values of robot state, and {recording.name} has none"
        )
    posed = set(_POSE) <= set(names)
    if layout == "joints" and not joint_names and len(names) != size and posed:
        others = [n for n in names if n not in _POSE]
        fingers = [n for n in others if "finger" in n] or others[-2:]
        if size == LAYOUTS["libero_oft"].size and len(fingers) in (1, 2):
            layout, joint_names = "libero_oft", fingers
    wanted = [*joint_names] or [n for n in names if n not in _POSE or not posed]
    if missing := [n for n in wanted if n not in names]:
        raise UserError(
            f"{recording.name} has no state of {', '.join(missing)}: it has {', '.join(names)}"
        )
    joints = values[:, [names.index(n) for n in wanted]]
    if layout == "joints":
        found, called = joints, tuple(wanted)
    else:
        if not posed:
            raise UserError(
                f"state_layout {layout} needs end_effector_pose, which {recording.name} lacks"
            )
        poses = values[:, [names.index(n) for n in _POSE]]
        make = LAYOUTS[layout].make
        made = [
            make({"end_effector_pose": Pose(tuple(p[:3]), tuple(p[3:])), "joint_states": j})
            for p, j in zip(_continued(poses), joints, strict=True)
        ]
        found = np.array(made)
        called = ("x", "y", "z", "rx", "ry", "rz", *wanted, *wanted)[: found.shape[1]]
    if found.shape[1] != size:
        raise UserError(
            f"the checkpoint needs {size} values of robot state, and {recording.name} gives"
            f" {found.shape[1]} ({', '.join(called)}): name them with joint_names in --robot"
        )
    return replace(recording, state=found, state_names=called)


def _continued(poses: Floats) -> Floats:
    """Poses [N, 7] whose quaternions have w >= 0 at first and then no jump of sign."""
    out = poses.copy()
    for i in range(len(out)):
        before = out[i - 1, 3:] if i else np.array([0.0, 0.0, 0.0, 1.0])
        if out[i, 3:] @ before < 0:
            out[i, 3:] *= -1.0
    return out


def roles_of(
    cameras: Sequence[str], given: Mapping[str, str], main: Sequence[str] = ()
) -> dict[str, str]:
    """Role of each recorded camera: as ``given`` (role -> camera), else main and wrist by their
    names; others keep theirs. ``main``: what the checkpoint calls its cameras, which may be what
    the data set calls them. UserError: a camera that is not there."""
    if missing := [name for name in given.values() if name not in cameras]:
        raise UserError(f"there is no camera {missing[0]!r}: there are {', '.join(cameras)}")
    found = {camera: role for role, camera in given.items()}
    left = [name for name in cameras if name not in found]
    wrists = [name for name in left if any(word in name.lower() for word in _WRIST)]
    if wrists and "wrist" not in found.values() and len(left) > 1:
        found[wrists[0]] = "wrist"
        left.remove(wrists[0])
    if left and "main" not in found.values():
        first = next((n for n in left if n == "main" or n in main), left[0])
        found[first] = "main"
        left.remove(first)
    return found | {name: name for name in left}
