"""Success beside other evaluations, task by task: base against perturbed, new against before.

Apart from the tables of one evaluation since these figures come from others' `summary.json`. Tasks
are matched by their number: libero_object_swap/3 is libero_object/3 perturbed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.core.errors import UserError
from vla_ros.core.files import read_json
from vla_ros.data.episodes.records import Job, Record, Setup
from vla_ros.data.episodes.rows import Successes, VariantRow, least_gain, mcnemar, rows_of
from vla_ros.data.episodes.store import read_records, read_run

SUMMARY = "summary.json"
#: must be the same in both: who acted, and how it was counted
_SAME = ("environment", "policy", "checkpoint_sha256", "mode", "seed")


@dataclass(frozen=True, slots=True)
class ComparedEvaluation:
    """The first variant of an evaluation: ``tasks`` by their number in the suite."""

    name: str
    tasks: Mapping[str, Successes]
    all: Successes


def number_of(task: str) -> str:
    """A task's number in its suite; the name of one without."""
    return task.rpartition("/")[2]


def own(row: VariantRow, name: str) -> ComparedEvaluation:
    """The first variant of this evaluation, to stand beside others."""
    return ComparedEvaluation(
        name, {number_of(task): outcome for task, outcome in row.tasks.items()}, row.all
    )


def read_beside(folder: Path, setup: Setup) -> ComparedEvaluation:
    """The evaluation in ``folder``. UserError: none that is finished, or one that cannot be
    compared."""
    path = folder / SUMMARY
    try:
        found: dict[str, Any] = read_json(path)
        tasks = {number_of(name): _outcome(one) for name, one in found["by_task"].items()}
        whole = _outcome(found)
    except FileNotFoundError:
        raise UserError(
            f"--beside {folder}: there is no {SUMMARY}; let that evaluation end first"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"--beside {folder}: {SUMMARY} is no evaluation's: {error}") from error
    for name in _SAME:
        wanted = getattr(setup, name)
        if found.get(name) != getattr(wanted, "value", wanted):
            there = found.get(name) or "none"
            raise UserError(f"--beside {folder}: another {name}, {there}: no comparison")
    there = str(found.get("world") or "unknown")
    if _simulation(there) != _simulation(setup.world):
        raise UserError(f"--beside {folder}: another world, {there}; this is {setup.world}")
    return ComparedEvaluation(str(found.get("suite") or found["environment"]), tasks, whole)


# A checkpoint against the one before it: the same episodes, one by one.


#: what may not differ between the two, beside the episodes themselves
_WORLD = ("environment", "suite", "mode", "image_size", "max_steps", "nudge_m",
          "control_rate_hz", "world")  # fmt: skip
_SURE = 0.05
_Z = 1.645  # of least_gain


@dataclass(frozen=True, slots=True)
class EarlierEvaluation:
    """An evaluation of the checkpoint before; ``records`` of its first variant."""

    setup: Setup
    records: Sequence[Record]
    beside: ComparedEvaluation


@dataclass(frozen=True, slots=True)
class PairedVerdict:
    """``won``: episodes that this one solved and the one before did not, ``lost`` the other way
    round, of ``pairs`` that both played; ``p`` is McNemar's."""

    won: int
    lost: int
    pairs: int

    @property
    def p(self) -> float:
        return mcnemar(self.won, self.lost)

    @property
    def worse(self) -> bool:
        """It solved fewer, be it by chance."""
        return self.lost > self.won

    @property
    def least(self) -> float:
        """How much more often it succeeds than the one before, at least (95 %); below 0: less."""
        return least_gain(self.won, self.lost, self.pairs) if self.pairs else -1.0

    def doubt(self, margin: float) -> str:
        """Why it may not take the place of the one before, which it may solve fewer episodes than
        by the share ``margin`` at most, with 95 % confidence; "": it may."""
        if self.worse:
            return "it solved fewer"
        if self.least >= -margin:
            return ""
        enough = math.ceil(_Z**2 * (1 / margin - 1))
        more = (
            f"play at least {enough} of the same episodes"
            if self.pairs < enough
            else "play more of the same episodes"
        )
        return (
            f"{self.pairs} episodes leave room for {-100 * self.least:.1f} % fewer, and --margin"
            f" allows {100 * margin:g} %: {more}"
        )

    def __str__(self) -> str:
        if self.won == self.lost:
            word = "as good"
        else:
            word = ("worse" if self.worse else "better") + (
                "" if self.p < _SURE else ", which may be chance"
            )
        return (
            f"{self.won} won and {self.lost} lost of the same {self.pairs} episodes, McNemar"
            f" p {self.p:.2g}: {word}"
        )


def read_before(folder: Path, setup: Setup, jobs: Iterable[Job]) -> EarlierEvaluation:
    """The evaluation in ``folder``. UserError: none, one of another world, or one without an
    episode of ``jobs``, which are to be played."""
    there, variants = read_run(folder)
    for name in _WORLD:
        if getattr(there, name) != getattr(setup, name):
            raise UserError(
                f"--against {folder}: another {name}, {getattr(there, name)}: no comparison"
            )
    rows = rows_of(variants.values(), read_records(folder), setup.suite or setup.environment)
    if not rows:
        raise UserError(f"--against {folder}: no episode was played there")
    label = rows[0].variant.label
    records = [record for record in read_records(folder) if record.job.variant == label]
    if not {_episode(r.job) for r in records} & set(map(_episode, jobs)):
        raise UserError(
            f"--against {folder}: not one episode is the same: give its --tasks and --seed"
        )
    name = f"before ({there.checkpoint_sha256[:8] or there.policy})"
    return EarlierEvaluation(there, records, own(rows[0], name))


def judged(before: EarlierEvaluation, records: Sequence[Record]) -> PairedVerdict:
    """``records`` of this evaluation's first variant."""
    solved = {_episode(record.job): record.success for record in before.records}
    own = {_episode(record.job): record.success for record in records}
    pairs = [(own[key], solved[key]) for key in own.keys() & solved.keys()]
    won, lost = (sum(pair == which for pair in pairs) for which in ((True, False), (False, True)))
    return PairedVerdict(won, lost, len(pairs))


def _episode(job: Job) -> tuple[str, int, int, str]:
    return job.task, job.initial_state, job.seed, job.instruction


def _simulation(world: str) -> list[str]:
    """Versions that two suites must share; LIBERO-PRO's files are a suite's own."""
    return [part for part in world.split(", ") if not part.startswith("LIBERO-PRO ")]


def _outcome(figures: Mapping[str, Any]) -> Successes:
    outcome = Successes(int(figures["successes"]), int(figures["episodes"]))
    if not 0 <= outcome.successes <= outcome.episodes or not outcome.episodes:
        raise ValueError(f"{outcome.successes} successes of {outcome.episodes} episodes")
    return outcome


def lines(
    found: Sequence[ComparedEvaluation],
) -> Iterator[tuple[str, tuple[Successes | None, ...]]]:
    """Every task with its outcome in each evaluation, None where it has none; at last all."""
    for task in dict.fromkeys(task for one in found for task in one.tasks):
        yield task, tuple(one.tasks.get(task) for one in found)
    yield "all", tuple(one.all for one in found)
