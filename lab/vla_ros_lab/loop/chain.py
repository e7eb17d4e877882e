"""The generations of a checkpoint: what each was trained on, how it was judged, where it ran.

Everything is read from what the verbs write: ``training.json`` beside a checkpoint, the
``summary.json`` of an evaluation, and bags of `vla-ros record`, whose metadata name the checkpoint
that ran. They are joined by its SHA-256; names and paths of folders do not count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from vla_ros.core.clock import SECOND
from vla_ros.core.errors import UserError
from vla_ros.core.types import CommandKind, PolicyState
from vla_ros.data.bags import Bag
from vla_ros.data.episodes.records import Spread
from vla_ros.data.episodes.rows import Successes
from vla_ros.data.replay import stamp_ns
from vla_ros.data.run_info import FILE as RUN_FILE

TRAINING, SUMMARY = "training.json", "summary.json"
_COMMANDS, _STATUS, _EPISODES = "policy/action", "policy/status", "bridge/episode"
_SUCCESS, _FAILURE = 2, 3  # of EpisodeStatus.msg
_NOTHING_RAN_S = 5.0  # without a command


@dataclass(frozen=True, slots=True)
class Training:
    """The training of a checkpoint. ``parent``: SHA-256 of the one it went on from, "" unknown.
    ``corrections``: frames of ``frames`` in which a person had taken over. ``loss``: of episodes
    held out, None where none were."""

    folder: Path
    parent: str
    steps: int
    data: tuple[str, ...]
    frames: int = 0
    corrections: int = 0
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class ChainEvaluation:
    """An evaluation. ``age_ms``: median and 95 % of the observation's age when it acted, None in
    lock-step and where it never did. ``won``, ``lost`` against the checkpoint ``before``, where it
    was compared."""

    folder: Path
    where: str
    outcome: Successes
    age_ms: tuple[float, float] | None = None
    before: str = ""
    won: int = 0
    lost: int = 0
    p: float | None = None


@dataclass(frozen=True, slots=True)
class ChainBag:
    """A bag: what moved the robot while this checkpoint was loaded. ``run_s``: seconds of all
    commands, standing still included, by their stamps; ``policy_s`` and ``person_s``: those of a
    policy's and a person's; ``takeovers`` how often a person began, ``age_ms`` the ages of the
    policy's own commands. ``episodes`` are those of a simulation that ended, None elsewhere."""

    folder: Path
    begun: str
    run_s: float
    policy_s: float
    person_s: float
    takeovers: int
    age_ms: Spread
    episodes: Successes | None = None


@dataclass(slots=True)
class Generation:
    """One checkpoint by its ``sha256``; ``number`` counts the trainings behind it."""

    sha256: str
    number: int = 0
    name: str = ""
    training: Training | None = None
    judged: list[ChainEvaluation] = field(default_factory=list)
    ran: list[ChainBag] = field(default_factory=list)

    @property
    def parent(self) -> str:
        return self.training.parent if self.training else ""


@dataclass(frozen=True, slots=True)
class Chain:
    """``generations`` from the first to the last; ``left_out``: what could not be read, a line
    each."""

    generations: Sequence[Generation]
    left_out: Sequence[str] = ()


def read_chain(folders: Sequence[Path]) -> Chain:
    """Everything below ``folders``. UserError: nothing is there."""
    found: dict[str, Generation] = {}
    left_out: list[str] = []

    def of(sha256: str) -> Generation:
        return found.setdefault(sha256, Generation(sha256))

    for path in _files(folders):
        try:
            if path.name == TRAINING:
                _training(path, of)
            elif path.name == SUMMARY:
                _judged(path, of)
            elif (ran := read_bag(path.parent)) is not None:
                of(ran[0]).ran.append(ran[1])
        except (OSError, ValueError, KeyError, TypeError, UserError) as error:
            left_out.append(f"{path}: {' '.join(str(error).split())}")
    if not found:
        where = ", ".join(map(str, folders))
        raise UserError(
            f"nothing in {where}: give folders with what vla-ros train, eval and record wrote"
            + (f"; left out: {left_out[0]}" if left_out else "")
        )
    _count(found)
    ordered = sorted(found.values(), key=lambda one: (one.number, one.name))
    return Chain(ordered, left_out)


def read_bag(folder: Path) -> tuple[str, ChainBag] | None:
    """The SHA-256 of the checkpoint that ran, and its commands. None: no checkpoint is named in
    it. vla_ros.data.bags.BagError: it is damaged."""
    with Bag(folder) as bag:
        run = bag.run
        if run is None or not run.checkpoint_sha256 or run.reason:
            return None  # a flight record has seconds of a run again
        commands, statuses, episodes = (
            [topic.name for topic in bag.topics if topic.name.endswith(f"/{name}")]
            for name in (_COMMANDS, _STATUS, _EPISODES)
        )
        kinds: list[int] = []
        stamps: list[int] = []
        ages: list[float] = []
        outcomes: dict[int, int] = {}
        states: list[int] = []
        for message in bag.messages(commands + statuses + episodes):
            content = bag.decode(message)
            if message.topic in episodes:
                outcomes[int(content.episode)] = int(content.state)
                continue
            if message.topic in statuses:
                states.append(int(content.state))
                continue
            kinds.append(int(content.kind))
            stamps.append(message.stamp_ns)
            if kinds[-1] == CommandKind.POLICY:
                published, observed = map(
                    stamp_ns, (content.header.stamp, content.observation_stamp)
                )
                ages.append((published - observed) / 1e6)
    ended = [state for state in outcomes.values() if state in (_SUCCESS, _FAILURE)]
    seconds = _seconds(stamps)

    def seconds_of(wanted: CommandKind) -> float:
        return sum((s for s, kind in zip(seconds, kinds, strict=True) if kind == wanted), 0.0)

    taken = PolicyState.TAKEOVER
    return run.checkpoint_sha256, ChainBag(
        folder,
        run.created,
        sum(seconds),
        seconds_of(CommandKind.POLICY),
        seconds_of(CommandKind.TAKEOVER),
        sum(b == taken != a for a, b in zip([-1, *states], states, strict=False)),
        Spread.of(ages),
        Successes(ended.count(_SUCCESS), len(ended)) if ended else None,
    )


def _seconds(stamps: Sequence[int]) -> list[float]:
    """How long each command held, in s: until the next one, the last as long as most do. Behind a
    gap in which nothing ran it is as long as most."""
    gaps = [max(0, b - a) / SECOND for a, b in pairwise(stamps)]
    usual = sorted(gaps)[len(gaps) // 2] if gaps else 0.0
    return [gap if gap < _NOTHING_RAN_S else usual for gap in gaps] + [usual] * bool(stamps)


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    """The records below the folders, each once."""
    seen: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder")
        for at, below, names in os.walk(folder):
            below.sort()
            for name in (TRAINING, SUMMARY, RUN_FILE):
                path = (Path(at) / name).resolve()
                if name in names and path not in seen:
                    seen.add(path)
                    yield path


def _training(path: Path, of: Callable[[str], Generation]) -> None:
    from vla_ros.engine.load import sha256_on_disk  # torch: only where there is a checkpoint

    folder = path.parent
    if not (folder / "config.json").is_file():  # a draft head's, or LeRobot's, beside its policy
        folder = folder / "policy"
        if not (folder / "config.json").is_file():
            return
    content = json.loads(path.read_text())
    options = content["options"]
    data = options["data"]
    validation = content.get("validation") or {}
    one = of(sha256_on_disk(str(folder)))
    one.name = folder.resolve().parent.name if folder.name == "policy" else folder.name
    one.training = Training(
        folder,
        str(content.get("init_from_sha256", "")),
        int(content["step"]),
        tuple(Path(name).name for name in ([data] if isinstance(data, str) else data)),
        int(content.get("frames", 0)),
        int(content.get("corrections", 0)),
        validation.get("loss"),
    )


def _judged(path: Path, of: Callable[[str], Generation]) -> None:
    content = json.loads(path.read_text())
    sha256 = content.get("checkpoint_sha256")
    if not sha256 or not content.get("episodes"):
        return  # no checkpoint, or the summary of something else
    real = content["mode"] == "realtime"  # in lock-step the world waits, and ages mean nothing
    age = (content.get("observation_age_ms") or {}) if real else {}
    against = content.get("against") or {}
    one = of(sha256)
    one.name = one.name or str(content.get("checkpoint", ""))
    where = content["suite"] or content["environment"]
    one.judged.append(
        ChainEvaluation(
            path.parent,
            f"{where}, {content['mode']}",
            Successes(int(content["successes"]), int(content["episodes"])),
            (float(age["p50"]), float(age["p95"])) if age else None,
            str(against.get("checkpoint_sha256", "")),
            int(against.get("won", 0)),
            int(against.get("lost", 0)),
            against.get("p"),
        )
    )


def _count(found: dict[str, Generation]) -> None:
    """Number every generation by the trainings behind it, and add parents that left no record."""
    for one in list(found.values()):
        if one.parent and one.parent not in found:
            found[one.parent] = Generation(one.parent)
    for one in found.values():
        behind, older = 0, one
        seen = {one.sha256}
        while older.parent and older.parent not in seen:
            seen.add(older.parent)
            older, behind = found[older.parent], behind + 1
        one.number = behind
        one.name = one.name or _named_by(one.ran) or "unknown"


def _named_by(ran: Sequence[ChainBag]) -> str:
    return f"ran in {ran[0].folder.name}" if ran else ""
