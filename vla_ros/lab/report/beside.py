"""Success beside other evaluations of the same policy, task by task: base against perturbed.

Apart from the tables of one evaluation since these figures come from others' `summary.json`. Tasks
are matched by their place: libero_object_swap/3 is libero_object/3 perturbed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.core.errors import UserError
from vla_ros.data.episodes.records import Setup
from vla_ros.lab.report.rows import Outcome, Row

SUMMARY = "summary.json"
#: must be the same in both: who acted, and how it was counted
_SAME = ("environment", "policy", "checkpoint_sha256", "mode", "seed")


@dataclass(frozen=True, slots=True)
class Beside:
    """The first variant of an evaluation: ``tasks`` by their place in the suite."""

    name: str
    tasks: Mapping[str, Outcome]
    all: Outcome


def place(task: str) -> str:
    """A task's number in its suite; the name of one without."""
    return task.rpartition("/")[2]


def own(row: Row, name: str) -> Beside:
    """This evaluation's, like the others'."""
    return Beside(name, {place(task): outcome for task, outcome in row.tasks.items()}, row.all)


def read_beside(folder: Path, setup: Setup) -> Beside:
    """What ``folder`` holds. UserError: no finished evaluation, or one that cannot be compared."""
    path = folder / SUMMARY
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        tasks = {place(name): _outcome(one) for name, one in found["by_task"].items()}
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
    if _simulation(str(found.get("world", ""))) != _simulation(setup.world):
        raise UserError(
            f"--beside {folder}: another world, {found.get('world') or 'unknown'}; this is"
            f" {setup.world}"
        )
    return Beside(str(found.get("suite") or found["environment"]), tasks, whole)


def _simulation(world: str) -> list[str]:
    """Versions that two suites must share; LIBERO-PRO's files are a suite's own."""
    return [part for part in world.split(", ") if not part.startswith("LIBERO-PRO ")]


def _outcome(figures: Mapping[str, Any]) -> Outcome:
    outcome = Outcome(int(figures["successes"]), int(figures["episodes"]))
    if not 0 <= outcome.successes <= outcome.episodes or not outcome.episodes:
        raise ValueError(f"{outcome.successes} successes of {outcome.episodes} episodes")
    return outcome


def lines(found: Sequence[Beside]) -> Iterator[tuple[str, tuple[Outcome | None, ...]]]:
    """Every task with its outcome in each evaluation, None where it has none; at last all."""
    for task in dict.fromkeys(task for one in found for task in one.tasks):
        yield task, tuple(one.tasks.get(task) for one in found)
    yield "all", tuple(one.all for one in found)
