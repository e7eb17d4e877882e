"""A bag as rows: every command with the images, the state and the sentence that belong to it.

Judged first, from the stamps alone; images are read from the disk as they are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vla_ros.core import CommandKind
from vla_ros.lerobot_data.numbers import COMMAND, UNSTAMPED, Numbers, numbers_of
from vla_ros.lerobot_data.pairing import DUE, Mark, Told, episodes, pair
from vla_ros.lerobot_data.rows import (
    ACTION,
    EVIDENCE_AGE,
    OBSERVATION_AGE,
    STATE,
    Column,
    Columns,
    Row,
)
from vla_ros.lerobot_data.streams import (
    ROLES,
    Images,
    States,
    cameras_of,
    newest,
    stamps_of,
    statuses_of,
    tasks_of,
)
from vla_ros.lerobot_data.wire import Array
from vla_ros.replay.bag import Bag, BagMessage, BagTopic
from vla_ros.replay.errors import BagError
from vla_ros.replay.parts import header_stamp
from vla_ros.replay.recorded import stamp_ns
from vla_ros.replay.topics import pick
from vla_ros.timing import SECOND

_STATES = ("joint_states", "end_effector_pose")
_RUNNING, _SUCCESS = 1, 2  # of EpisodeStatus


@dataclass(frozen=True, slots=True)
class BagOptions:
    """``remaps``: role -> topic. ``cameras``: name -> topic, beside those of the roles.
    ``instruction`` instead of the bag's own. ``fps`` 0: the bag's. See pairing for the rest."""

    remaps: Mapping[str, str] = field(default_factory=dict)
    cameras: Mapping[str, str] = field(default_factory=dict)
    instruction: str | None = None
    fps: int = 0
    pairing: str = DUE
    max_age_s: float = 1.0
    max_gap_s: float = 10.0
    only_success: bool = False


@dataclass(frozen=True, slots=True)
class _Command:
    told: Told
    epoch: int
    digest: int
    numbers: Numbers


@dataclass(frozen=True, slots=True)
class _Planned:
    """A row before its images are read: ``images`` are numbers of messages."""

    episode: int
    task: str
    images: Mapping[str, int]
    numbers: Mapping[str, Array]


class BagRows:
    """The rows of one bag. BagError: it has no images, no commands or no sentence, or stamps that
    cannot be followed. ``dropped``: commands that make no row, by the reason."""

    def __init__(self, bag: Bag, options: BagOptions) -> None:
        self._bag, self._options = bag, options
        self.dropped: Counter[str] = Counter()
        picked = pick(bag.topics, options.remaps, ROLES)
        self._cameras = cameras_of(bag, picked, options.cameras)
        if picked.name("policy/action") is None:
            raise BagError(
                f"{bag.path}: no actions: name their topic with -r policy/action=TOPIC; it has "
                + ", ".join(f"{t.name} ({t.kind})" for t in bag.topics[:12])
            )
        self._commands = self._read_commands(picked.topics["policy/action"])
        self._stamps = {name: stamps_of(bag, topic) for name, topic in self._cameras.items()}
        self._tasks, self._statuses = tasks_of(bag, picked), statuses_of(bag, picked)
        self._states = [
            States(bag, picked.topics[role]) for role in _STATES if picked.name(role) is not None
        ]
        self.fps = options.fps or self._rate()
        self._planned = self._plan()

    def __len__(self) -> int:
        return len(self._planned)

    @property
    def episodes(self) -> int:
        return 1 + self._planned[-1].episode if self._planned else 0

    def columns(self) -> Columns:
        """Of its first row."""
        first = next(self.rows())
        sizes = {name: image.shape[:2] for name, image in first.images.items()}
        state = [name for one in self._states for name in one.names]
        numbers = [Column(ACTION, self._commands[0].numbers.names)]
        numbers += [Column(STATE, tuple(state))] if state else []
        numbers += [Column(name, ("s",)) for name in (OBSERVATION_AGE, EVIDENCE_AGE)]
        return Columns(self.fps, {n: (h, w) for n, (h, w) in sizes.items()}, tuple(numbers))

    def rows(self) -> Iterator[Row]:
        """Every row with its images. BagError: an image is damaged."""
        readers = {
            name: Images(self._bag, topic, [row.images[name] for row in self._planned])
            for name, topic in self._cameras.items()
        }
        for row in self._planned:
            images = {name: readers[name].get(number) for name, number in row.images.items()}
            yield Row(row.episode, row.task, images, row.numbers)

    # ------------------------------------------------------------------ judging

    def _read_commands(self, topic: BagTopic) -> list[_Command]:
        found = []
        for message in self._bag.messages([topic.name]):
            content = self._bag.decode(message)
            numbers = numbers_of(topic.kind, content)
            if topic.kind == COMMAND and int(content.kind) != CommandKind.POLICY:
                self.dropped[f"{CommandKind(int(content.kind)).name}, which no policy said"] += 1
                continue
            if not np.isfinite(numbers.values).all():
                self.dropped["a number that is not finite"] += 1
                continue
            found.append(_command(self._bag, topic.kind, message, content, numbers))
        if not found:
            raise BagError(f"{self._bag.path}: {topic.name} has no command of a policy")
        names = found[0].numbers.names
        other = [one for one in found if one.numbers.names != names]
        if other:
            raise BagError(
                f"{self._bag.path}: {topic.name} has commands of {len(names)} numbers"
                f" ({' '.join(names)}) and of others ({' '.join(other[0].numbers.names)})"
            )
        return found

    def _rate(self) -> int:
        run = self._bag.run
        hz = float(run.parameters.get("policy", {}).get("control_rate_hz", 0.0)) if run else 0.0  # type: ignore[arg-type]
        if not hz:
            steps = np.diff([c.told.said_ns for c in self._commands])
            steps = steps[steps > 0]
            if not len(steps):
                raise BagError(f"{self._bag.path}: its rate cannot be told: give --fps")
            hz = float(SECOND / np.median(steps))
        return max(1, round(hz))

    def _plan(self) -> list[_Planned]:
        slop_s = 0.5 / self.fps
        kept: list[tuple[_Command, Mark, Mapping[str, int], Array]] = []
        for command in self._commands:
            mark, why = self._mark(command)
            if why:
                self.dropped[why] += 1
                continue
            told = command.told
            found = pair(told, self._stamps, self._options.pairing, self._options.max_age_s, slop_s)
            if found.lacking:
                self.dropped[found.lacking] += 1
                continue
            # The state of the moment that the picture shows: not later than its newest image.
            shown = max(self._stamps[n].stamp(i) for n, i in found.images.items())
            moment = shown if told.moment_ns(self._options.pairing) else 0
            states = [
                state for one in self._states if (state := one.by(moment, told.at_ns)) is not None
            ]
            if len(states) < len(self._states):
                self.dropped["no state before it"] += 1
                continue
            kept.append((command, mark, found.images, np.concatenate(states) if states else _NONE))
        if not kept:
            why = "; ".join(f"{n} {reason}" for reason, n in self.dropped.most_common(3))
            raise BagError(f"{self._bag.path}: no command makes a row: {why}")
        numbers = episodes([mark for _, mark, _, _ in kept], self._options.max_gap_s)
        return [
            _Planned(number, mark.task, images, self._numbers(command, images, state))
            for number, (command, mark, images, state) in zip(numbers, kept, strict=True)
        ]

    def _mark(self, command: _Command) -> tuple[Mark, str]:
        """What tells its episode, and why it belongs to none, or ""."""
        told = command.told
        status = newest(self._statuses, told.at_ns)
        if self._statuses and (status is None or status.state != _RUNNING):
            return Mark(told.said_ns), "outside of the simulation's episodes"
        number = status.episode if status else -1
        if self._options.only_success and not self._succeeded(number):
            return Mark(told.said_ns), "its episode did not succeed"
        task = self._options.instruction
        if task is None:
            task = self._tasks.sentence(command.digest, told.at_ns)
        if not task:
            return Mark(told.said_ns), "no instruction: give one with --instruction"
        return Mark(told.said_ns, command.epoch, number, task), ""

    def _succeeded(self, episode: int) -> bool:
        return any(s.episode == episode and s.state == _SUCCESS for s in self._statuses)

    def _numbers(
        self, command: _Command, images: Mapping[str, int], state: Array
    ) -> dict[str, Array]:
        told = command.told
        oldest = min(self._stamps[name].stamp(i) for name, i in images.items())
        evidence = told.observed_ns or oldest
        found = {
            ACTION: command.numbers.values,
            OBSERVATION_AGE: np.array([(told.said_ns - oldest) / SECOND]),
            EVIDENCE_AGE: np.array([(told.said_ns - evidence) / SECOND]),
        }
        if self._states:
            found[STATE] = state
        return {name: values.astype(np.float32) for name, values in found.items()}


_NONE: Array = np.empty(0)


def _command(bag: Bag, kind: str, message: BagMessage, content: Any, numbers: Numbers) -> _Command:
    at_ns = message.stamp_ns
    if kind != COMMAND:
        stamp = 0 if kind in UNSTAMPED else header_stamp(bag, message)
        return _Command(Told(stamp or at_ns, at_ns), -1, 0, numbers)
    said_ns = stamp_ns(content.header.stamp)
    staleness_s = getattr(content, "staleness_s", None)  # age over the due time
    told = Told(
        said_ns,
        at_ns,
        stamp_ns(content.observation_stamp),
        stamp_ns(content.latest_observation_stamp),
        0 if staleness_s is None else said_ns - round(float(staleness_s) * SECOND),
        stamp_ns(content.receive_stamp),
    )
    return _Command(told, int(content.epoch), int(content.instruction_hash), numbers)
