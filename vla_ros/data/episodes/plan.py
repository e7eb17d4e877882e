"""Which episodes an evaluation has, in which order, and what they are held to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vla_ros.errors import UserError
from vla_ros.evaluation.records import Job, Setup, Variant
from vla_ros.sim.env import Task
from vla_ros.sim.goals import Family
from vla_ros.sim.tasks import GOALS
from vla_ros.train.data.seeds import EVALUATION

TABLETOP = "tabletop"
FAMILIES = tuple(family.value for family in Family)  # from easy to hard


class PlanError(UserError, ValueError):
    """An evaluation that cannot be: one line that says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``episodes`` of each of ``tasks`` for each of ``variants``.

    ``instruction`` is said instead of every task's own sentence where it is not empty.
    """

    setup: Setup
    variants: tuple[Variant, ...]
    tasks: tuple[Task, ...]
    episodes: int
    instruction: str = ""

    def __post_init__(self) -> None:
        labels = [variant.label for variant in self.variants]
        if twice := sorted({label for label in labels if labels.count(label) > 1}):
            raise PlanError(f"two variants are called {', '.join(twice)}")
        if not self.variants or not self.tasks:
            raise PlanError("an evaluation needs a variant and a task")
        if self.episodes < 1:
            raise PlanError(f"{self.episodes} episodes: give 1 or more")
        last = max(job.seed for job in self._of(self.variants[0]))
        if self.setup.seed not in EVALUATION or last not in EVALUATION:
            most = EVALUATION.stop - 1
            raise PlanError(f"seeds {self.setup.seed} to {last}: an evaluation's are 0 to {most}")

    def jobs(self) -> list[Job]:
        """All episodes, ordered by variant. A part of them has every task as often as any, unless
        another task means another world to build: then they are ordered by task."""
        found: list[Job] = []
        for variant in self.variants:
            found += self._of(variant, len(found))
        return found

    def _of(self, variant: Variant, first: int = 0) -> Iterator[Job]:
        turns = [(episode, task) for episode in range(self.episodes) for task in self.tasks]
        if self.setup.environment != TABLETOP:
            turns = [(episode, task) for task in self.tasks for episode in range(self.episodes)]
        for number, (episode, task) in enumerate(turns, first):
            yield Job(
                variant=variant.label,
                task=task.name,
                initial_state=episode % task.initial_states,
                seed=self.setup.seed + episode // task.initial_states,
                instruction=self.instruction,
                number=number,
            )


def select_tasks(tasks: Iterable[Task], names: Sequence[str]) -> tuple[Task, ...]:
    """The tasks called or belonging to a family called so; all without names, in their order."""
    offered = tuple(tasks)
    called = {task.name: {task.name, *task.aliases, group_of(task.name)} for task in offered}
    known = set().union(*called.values())
    if unknown := [name for name in names if name not in known]:
        groups = sorted({group_of(task.name) for task in offered} - {""})
        there = ", ".join([*groups, *(task.name for task in offered)])
        raise PlanError(f"no task or family {', '.join(unknown)}; there are: {there}")
    wanted = set(names)
    return tuple(task for task in offered if not wanted or called[task.name] & wanted)


def group_of(task: str, suite: str = "") -> str:
    """The family of a task of the tabletop, the suite of any other."""
    goal = GOALS.get(task)
    return goal.family.value if goal else suite


def age_limit_s(setup: Setup, variant: Variant, control_rate_hz: float = 20.0) -> float:
    """``max_age_s`` of the policy under ``variant``.

    What a variant delays on purpose, or executes of a chunk, must not be refused for its age:
    the limit grows by just that.
    """
    waiting = variant.delay_frames + (variant.replan_interval or setup.chunk) - 1
    return setup.max_age_s + waiting / control_rate_hz + variant.image_delay_ms / 1e3
