"""A bag as rows: every action with the images, the state and the instruction that belong to it.

Of a policy's action the commands that made it (:mod:`vla_ros.data.actions`) are one row: what the
robot executed. Of a person's commands those of one action period are. Rows are judged first, from
the stamps alone; images are read from the disk as they are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.clock import SECOND
from vla_ros.core.pixels import sizes_of
from vla_ros.core.types import CommandKind
from vla_ros.data.actions import ActionPeriod, Rates, displaced, executed, periods
from vla_ros.data.bag_frames import TopicRoles, header_stamp, pick
from vla_ros.data.bags import Bag, BagError, BagMessage, BagTopic
from vla_ros.data.lerobot.dataset import (
    ACTION,
    ACTION_OBSERVATION_AGE,
    ANSWERED,
    COMMANDS,
    DELAY,
    INTERVENTION,
    OBSERVATION_AGE,
    POLICY_ACTION,
    STATE,
    Columns,
    DatasetColumn,
    DatasetRow,
)
from vla_ros.data.lerobot.pairing import (
    DUE,
    Mark,
    RecordedCommand,
    dropped_lines,
    episodes,
    gaps,
    pair,
)
from vla_ros.data.lerobot.streams import (
    COMMAND,
    ROLES,
    UNSTAMPED,
    Images,
    Instructions,
    Numbers,
    RecordedChunks,
    States,
    cameras_of,
    newest,
    numbers_of,
    stamps_of,
    statuses_of,
)
from vla_ros.data.lerobot.wire import Array
from vla_ros.data.replay import Chunk, phase_of, rates_of, stamp_ns

_STATES = ("joint_states", "end_effector_pose")
_RUNNING, _SUCCESS = 1, 2  # of EpisodeStatus
PERIODS = 2.5  # of rows, and a longer pause begins another episode: one missing row is closed up


@dataclass(frozen=True, slots=True)
class BagOptions:
    """``remaps``: role -> topic. ``cameras``: name -> topic, beside those of the roles.
    ``instruction`` instead of the bag's own. ``fps`` 0: the bag's; ``max_gap_s`` 0: two periods of
    its rows. ``sizes``: name of a camera, or "" for all -> the height and width that its images are
    brought to, else what the run's policy had. The others are those of :func:`pair` and
    :func:`episodes`."""

    remaps: Mapping[str, str] = field(default_factory=dict)
    cameras: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    instruction: str | None = None
    fps: int = 0
    pairing: str = DUE
    max_age_s: float = 1.0
    max_gap_s: float = 0.0
    only_success: bool = False


@dataclass(frozen=True, slots=True)
class _Command:
    times: RecordedCommand
    epoch: int
    digest: int
    numbers: Numbers
    person: bool | None = None  # a person acted; None: unknown
    index: int = 0  # in the chunk that it is of
    phase: float = 0.0  # part of its action that commands before it have made
    displaced: tuple[bool, ...] = ()  # which of its numbers are displacements
    stretch: int = 0  # one more after everything that ends an action before its time


@dataclass(frozen=True, slots=True)
class _Action:
    """What a row is of: ``first`` is the command that begins it, ``values`` [D] are what its
    commands [n, D] came to."""

    first: _Command
    values: Array
    commands: Array


@dataclass(frozen=True, slots=True)
class _Planned:
    """A row before its images are read: ``images`` are numbers of messages."""

    episode: int
    task: str
    images: Mapping[str, int]
    numbers: Mapping[str, Array]


class BagRows:
    """The rows of one bag. BagError: it has no images, no commands or no instruction, or stamps
    that cannot be followed. ``rates`` of its run. ``dropped``: commands that make no row, by the
    reason."""

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
        sizes = options.sizes or _sizes_of(bag)
        self._sizes = {name: sizes.get(name) or sizes.get("", (0, 0)) for name in self._cameras}
        self._commands = self._read_commands(picked.topics["policy/action"])
        self._stamps = {name: stamps_of(bag, topic) for name, topic in self._cameras.items()}
        self._statuses = statuses_of(bag, picked)
        self._instructions = Instructions(bag, picked, self._statuses)
        self._states = [
            States(bag, picked.topics[role]) for role in _STATES if picked.name(role) is not None
        ]
        self.rates = self._read_rates(picked)
        self._chunks: RecordedChunks | None = None  # of actions that are rows
        if picked.name("policy/action_chunk") is not None and self.rates.share <= 1.0:
            self._chunks = RecordedChunks(bag, picked, self._commands[0].numbers.names) or None
        self.fps = options.fps or max(1, round(self.rates.row_hz))
        self._actions = _actions(self._commands, self.rates)
        self._most = max(self.rates.commands, *(len(one.commands) for one in self._actions), 1)
        self._planned = self._plan()

    @property
    def notes(self) -> list[str]:
        """Remarks for the user, one line each: LeRobot counts whole rows a second."""
        row_hz, path = self.rates.row_hz, self._bag.path
        found = [
            f"{path}: images of {name} are brought to {size[0]}x{size[1]} (height x width) by the"
            " nearest pixel"
            for name, size in self._sizes.items()
            if any(size)
        ]
        found += [f"{path}: {state.doubt}" for state in self._states if state.doubt]
        if self._gaps:
            found.append(
                f"{path}: {len(self._gaps)} gaps begin another episode, the longest of"
                f" {max(self._gaps):.2f} s; --max-gap S closes them up"
            )
        if abs(row_hz - self.fps) > 0.01 * row_hz:
            found.append(
                f"{path}: its rows are of {row_hz:g} Hz and are named {self.fps} fps, so a"
                f" second lasts {row_hz / self.fps:.2f} s there"
            )
        return found

    def __len__(self) -> int:
        return len(self._planned)

    @property
    def episodes(self) -> int:
        return 1 + self._planned[-1].episode if self._planned else 0

    def columns(self) -> Columns:
        """The columns of its first row."""
        first = next(self.rows())
        sizes = {name: image.shape[:2] for name, image in first.images.items()}
        state = [name for one in self._states for name in one.names]
        numbers = [DatasetColumn(ACTION, self._commands[0].numbers.names)]
        if self._most > 1:
            numbers.append(DatasetColumn(COMMANDS, numbers[0].names, rows=self._most))
        numbers += [DatasetColumn(STATE, tuple(state))] if state else []
        numbers += [
            DatasetColumn(name, ("s",)) for name in (OBSERVATION_AGE, ACTION_OBSERVATION_AGE)
        ]
        if self._chunks is not None:
            numbers += [
                DatasetColumn(POLICY_ACTION, numbers[0].names),
                DatasetColumn(DELAY, ("s",)),
            ]
            numbers.append(DatasetColumn(ANSWERED, (), "bool"))
        if self._commands[0].person is not None:
            numbers.append(DatasetColumn(INTERVENTION, (), "bool"))
        return Columns(self.fps, {n: (h, w) for n, (h, w) in sizes.items()}, tuple(numbers))

    def rows(self) -> Iterator[DatasetRow]:
        """Every row with its images. BagError: an image is damaged."""
        readers = {
            name: Images(
                self._bag, topic, [row.images[name] for row in self._planned], self._sizes[name]
            )
            for name, topic in self._cameras.items()
        }
        for row in self._planned:
            images = {name: readers[name].get(number) for name, number in row.images.items()}
            yield DatasetRow(row.episode, row.task, images, row.numbers)

    def _read_commands(self, topic: BagTopic) -> list[_Command]:
        found: list[_Command] = []
        stretch = 0
        for message in self._bag.messages([topic.name]):
            content = self._bag.decode(message)
            numbers = numbers_of(topic.kind, content)
            kind = CommandKind(int(content.kind)) if topic.kind == COMMAND else CommandKind.POLICY
            if not kind.moves:
                # A person's displacement comes once, with nothing new until the next one.
                stretch += kind is CommandKind.STOP or not (found and found[-1].person)
                self.dropped[f"{kind.name}, which is no policy's"] += 1
                continue
            if not np.isfinite(numbers.values).all():
                stretch += 1
                self.dropped["a number that is not finite"] += 1
                continue
            command = _command(self._bag, topic.kind, message, content, numbers)
            found.append(replace(command, stretch=stretch))
        found = _joined(found)
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

    def _read_rates(self, picked: TopicRoles) -> Rates:
        rates = rates_of(self._bag, picked, [c.times.published_ns for c in self._commands])
        if rates is None and not self._options.fps:
            raise BagError(f"{self._bag.path}: its rate is unknown: give --fps")
        return rates or Rates(self._options.fps, self._options.fps)

    def _plan(self) -> list[_Planned]:
        slop_s = 0.5 / self.fps
        kept: list[tuple[_Action, Mark, Mapping[str, int], Array]] = []
        for action in self._actions:
            times, count = action.first.times, len(action.commands)
            mark, why = self._mark(action.first)
            if why:
                self.dropped[why] += count
                continue
            found = pair(
                times, self._stamps, self._options.pairing, self._options.max_age_s, slop_s
            )
            if found.lacking:
                self.dropped[found.lacking] += count
                continue
            # The state of the moment that the image shows: not later than its newest image.
            shown = max(self._stamps[n].stamp(i) for n, i in found.images.items())
            moment = shown if times.moment_ns(self._options.pairing) else 0
            states = [
                state for one in self._states if (state := one.by(moment, times.at_ns)) is not None
            ]
            if len(states) < len(self._states):
                self.dropped["no state before it"] += count
                continue
            state = np.concatenate(states) if states else _NONE
            if not np.isfinite(state).all():
                self.dropped["a state that is not finite"] += count
                continue
            kept.append((action, mark, found.images, state))
        if not kept:
            why = "; ".join(f"{n} {reason}" for reason, n in self.dropped.most_common(3))
            raise BagError(f"{self._bag.path}: no command makes a row: {why}")
        marks = [mark for _, mark, _, _ in kept]
        gap_s = self._options.max_gap_s or PERIODS / self.fps
        self._gaps = gaps(marks, gap_s)
        numbers = episodes(marks, gap_s)
        return [
            _Planned(number, mark.task, images, self._numbers(action, images, state))
            for number, (action, mark, images, state) in zip(numbers, kept, strict=True)
        ]

    def _mark(self, command: _Command) -> tuple[Mark, str]:
        """The mark of its episode, and why it belongs to none, or ""."""
        times = command.times
        status = newest(self._statuses, times.at_ns)
        if self._statuses and (status is None or status.state != _RUNNING):
            return Mark(times.published_ns), "outside of the simulation's episodes"
        number = status.episode if status else -1
        if self._options.only_success and not self._succeeded(number):
            return Mark(times.published_ns), "its episode did not succeed"
        task = self._options.instruction
        if task is None:
            task = self._instructions.of(command.digest, times.at_ns)
        if not task:
            return Mark(times.published_ns), "no instruction: give one with --instruction"
        return Mark(times.published_ns, command.epoch, number, task), ""

    def _succeeded(self, episode: int) -> bool:
        return any(s.episode == episode and s.state == _SUCCESS for s in self._statuses)

    def _numbers(
        self, action: _Action, images: Mapping[str, int], state: Array
    ) -> dict[str, Array]:
        times = action.first.times
        oldest = min(self._stamps[name].stamp(i) for name, i in images.items())
        observed = times.observed_ns or oldest
        found = {
            ACTION: action.values,
            OBSERVATION_AGE: np.array([(times.published_ns - oldest) / SECOND]),
            ACTION_OBSERVATION_AGE: np.array([(times.published_ns - observed) / SECOND]),
        }
        if self._most > 1:
            last = self._most - len(action.commands)
            found[COMMANDS] = np.pad(action.commands, ((0, last), (0, 0)), "edge")
        if self._states:
            found[STATE] = state
        if self._chunks is not None:
            answer = self._answer(action.first, self._chunks)
            # LeRobot's statistics take no NaN: without an answer what was executed stands there.
            given, took = answer or (action.values, 0)
            found |= {POLICY_ACTION: given, DELAY: np.array([took / SECOND])}
        out = {name: values.astype(np.float32) for name, values in found.items()}
        if self._chunks is not None:
            out[ANSWERED] = np.array([answer is not None])
        if action.first.person is not None:
            out[INTERVENTION] = np.array([action.first.person])
        return out

    def _answer(self, command: _Command, chunks: RecordedChunks) -> tuple[Array, int] | None:
        """The policy's action for the moment of a command, and how long it took to make, in ns: of
        the command's own chunk; else of the newest for its instruction, if it is not too old."""
        times = command.times
        made = chunks.made_from(times.observed_ns)
        if made is not None and not command.person and command.index < len(made.rows):
            nearest = min(command.index + round(command.phase), len(made.rows) - 1)
            return np.array(made.rows[nearest]), _took(made)
        newest = chunks.newest(times.published_ns)
        if newest is None or newest.digest != command.digest:
            return None
        if times.published_ns - newest.observed_ns > self._options.max_age_s * SECOND:
            return None
        return np.array(newest.rows[newest.due(times.published_ns)]), _took(newest)


def _took(chunk: Chunk) -> int:
    return chunk.published_ns - chunk.observed_ns


def _sizes_of(bag: Bag) -> dict[str, tuple[int, int]]:
    """The heights and widths that a run's policy saw its cameras in."""
    words = bag.run.parameters.get("policy", {}).get("image_resize") if bag.run else None
    given = list(map(str, words)) if isinstance(words, list) else []
    cameras = [word.partition("=")[0] for word in given]
    try:
        return sizes_of(given, cameras)
    except ValueError as error:
        raise BagError(f"{bag.path}: image_resize of its run has {error}") from None


_NONE: Array = np.empty(0)


def _command(bag: Bag, kind: str, message: BagMessage, content: Any, numbers: Numbers) -> _Command:
    at_ns = message.stamp_ns
    if kind != COMMAND:
        stamp = 0 if kind in UNSTAMPED else header_stamp(bag, message)
        return _Command(RecordedCommand(stamp or at_ns, at_ns), -1, 0, numbers)
    published_ns = stamp_ns(content.header.stamp)
    person = int(content.kind) == CommandKind.TAKEOVER  # they looked at the newest image, or nearly
    observed = content.latest_observation_stamp if person else content.observation_stamp
    times = RecordedCommand(
        published_ns,
        at_ns,
        stamp_ns(observed),
        stamp_ns(content.latest_observation_stamp),
        0
        if person
        else published_ns - round(float(content.staleness_s) * SECOND),  # when it was due
        stamp_ns(content.receive_stamp),
    )
    digest, index = int(content.instruction_hash), int(content.chunk_index)
    sums, phase = displaced(content.action_space, content.units), phase_of(content)
    if len(sums) != len(numbers.names):
        raise BagError(f"{bag.path}: a command has {len(numbers.names)} names, {len(sums)} units")
    return _Command(times, int(content.epoch), digest, numbers, person, index, phase, sums)


def _actions(commands: Sequence[_Command], rates: Rates) -> list[_Action]:
    """What was executed, action by action; a command each where it makes one, or several."""
    found: list[_Action] = []
    if rates.share >= 1.0:
        return [_Action(c, c.numbers.values, c.numbers.values[None]) for c in commands]
    for _, one in groupby(commands, lambda c: (c.stretch, c.epoch, c.person)):
        motion = list(one)
        if motion[0].person:
            parts = _by_time(motion, rates)
        else:
            marks = [((c.times.observed_ns, c.index), c.phase) for c in motion]
            parts = periods(marks, rates.share)
        for number, period in enumerate(parts):
            mine = [motion[i] for i in period.commands]
            rows = np.stack([c.numbers.values for c in mine])
            values = executed(rows, mine[0].displaced)
            if number and period.before:
                moved = np.where(mine[0].displaced, rows[0], 0.0) * period.before
                found[-1] = replace(found[-1], values=found[-1].values + moved)
                values = values - moved
            found.append(_Action(mine[0], values, rows))
    return found


def _by_time(motion: Sequence[_Command], rates: Rates) -> list[ActionPeriod]:
    """The action periods of a person's commands, counted from where the person began: they are of
    no chunk."""
    begin_ns = motion[0].times.published_ns

    def number(at: int) -> int:
        since_s = (motion[at].times.published_ns - begin_ns) / SECOND
        return int((since_s + 0.5 / rates.control_hz) * rates.action_hz)

    return [ActionPeriod(tuple(one)) for _, one in groupby(range(len(motion)), number)]


def _joined(commands: Sequence[_Command]) -> list[_Command]:
    """Commands whose epochs do not count those that begin as a person gives the robot back: the
    episode goes on."""
    out: list[_Command] = []
    back = 0  # epochs that began so
    before: _Command | None = None
    for command in commands:
        if before is not None and before.person and command.epoch == before.epoch + 1:
            back += 1
        before = command
        out.append(replace(command, epoch=command.epoch - back))
    return out


class Bags:
    """Open bags, judged one by one. A context manager. BagError: one of them is no good, or they
    do not have the same columns. ``dropped``: commands that make no row, by the reason."""

    def __init__(self, paths: Sequence[Path], options: BagOptions) -> None:
        self._open = ExitStack()
        self.dropped: Counter[str] = Counter()
        self._notes: list[str] = []
        self._bags: list[BagRows] = []
        try:
            for path in paths:
                bag = self._open.enter_context(Bag(path))
                rows = BagRows(bag, options)
                self._bags.append(rows)
                self.dropped += rows.dropped
                self._notes += [*bag.notes, *rows.notes]
            self._columns = self._common(paths)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Bags:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._open.close()

    def __len__(self) -> int:
        return sum(map(len, self._bags))

    @property
    def episodes(self) -> int:
        return sum(bag.episodes for bag in self._bags)

    def columns(self) -> Columns:
        """The columns that all of them have."""
        return self._columns

    def notes(self) -> list[str]:
        """Remarks for the user, one line each."""
        return [*self._notes, *dropped_lines(self.dropped)]

    def rows(self) -> Iterator[DatasetRow]:
        """A bag after the other, their episodes counted through."""
        before = 0
        for bag in self._bags:
            for row in bag.rows():
                yield replace(row, episode=row.episode + before)
            before += bag.episodes

    def _common(self, paths: Sequence[Path]) -> Columns:
        found = [bag.columns() for bag in self._bags]
        for path, columns in zip(paths, found, strict=True):
            if columns != found[0]:
                raise BagError(
                    f"{path} does not fit {paths[0]}: {_words(columns)}, there {_words(found[0])};"
                    " --fps makes their rates one"
                )
        return found[0]


def _words(columns: Columns) -> str:
    cameras = [f"{name} {w}x{h}" for name, (h, w) in columns.cameras.items()]
    numbers = [f"{one.name} [{len(one.names)}]" for one in columns.numbers]
    return ", ".join([f"{columns.fps} fps", *cameras, *numbers])
