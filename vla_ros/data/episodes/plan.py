"""Which episodes an evaluation has, in which order, and what they are held to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vla_ros.core.errors import UserError
from vla_ros.core.names import known_or_nearest
from vla_ros.data.episodes.records import Job, Setup, Variant
from vla_ros.sim.env import ACTION_RATE_HZ, Task
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.libero.assets import find_assets, world_note, world_versions
from vla_ros.sim.libero.suites import find_package, tasks_of
from vla_ros.sim.so101 import world as so101
from vla_ros.sim.tasks import GOALS, TASKS, Family
from vla_ros.sim.versions import so101_world, tabletop_world

# Which initial states belong to training, to checks during training, and to the evaluation.
#
# An initial state is drawn from (task, index, seed), so ranges of seeds keep the sets apart: the
# evaluation owns the seeds below a million and nothing here ever uses one of them.


EVALUATION = range(1_000_000)
TRAINING = range(1_000_000, 2_000_000)
VALIDATION = range(2_000_000, 3_000_000)  # success while training: never trained on

_COLLECTION = 100_000  # demonstrations a collection may have
_COLLECTIONS = range(5)
_ROUND = 10_000  # episodes a round of on-policy correction may have
_ROUNDS = range(50)


def expert_seed(collection: int, number: int) -> int:
    """Seed of demonstration ``number`` of a collection (0 to 4); ValueError outside."""
    _inside("collection seed", collection, _COLLECTIONS)
    _inside("demonstration", number, range(_COLLECTION))
    return TRAINING.start + collection * _COLLECTION + number


def dagger_seed(round_number: int, number: int) -> int:
    """Seed of episode ``number`` of an on-policy round; ValueError outside."""
    _inside("round", round_number, _ROUNDS)
    _inside("episode", number, range(_ROUND))
    first = TRAINING.start + len(_COLLECTIONS) * _COLLECTION
    return first + round_number * _ROUND + number


def validation_seed(number: int) -> int:
    """Seed of held-out episode ``number``."""
    _inside("episode", number, range(len(VALIDATION)))
    return VALIDATION.start + number


def _inside(what: str, value: int, allowed: range) -> None:
    if value not in allowed:
        raise ValueError(f"{what} {value}: give {allowed.start} to {allowed.stop - 1}")


TABLETOP, LIBERO = "tabletop", "libero"
FAMILIES = tuple(family.value for family in Family)  # from easy to hard


class PlanError(UserError, ValueError):
    """An evaluation that cannot be: one line that says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``episodes`` of each of ``tasks`` for each of ``variants``.

    ``instruction`` replaces every task's own instruction where it is not empty.
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
        if self.setup.environment == LIBERO:
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
        there = [*groups, *(task.name for task in offered)]
        raise PlanError(f"no task or family {unknown[0]!r}{known_or_nearest(unknown[0], there)}")
    wanted = set(names)
    return tuple(task for task in offered if not wanted or called[task.name] & wanted)


def group_of(task: str, suite: str = "") -> str:
    """The family of a task of the tabletop, the suite of any other."""
    goal = GOALS.get(task)
    return goal.family.value if goal else suite


def age_limit_s(setup: Setup, variant: Variant, action_rate_hz: float = ACTION_RATE_HZ) -> float:
    """``max_age_s`` of the policy under ``variant``.

    What a variant delays on purpose, or executes of a chunk, must not be refused for its age:
    the limit grows by just that.
    """
    waiting = variant.delay_frames + (variant.replan_interval or setup.chunk) - 1
    return setup.max_age_s + waiting / action_rate_hz + variant.image_delay_ms / 1e3


# The simulations an evaluation can run in, known without building them.


@dataclass(frozen=True, slots=True)
class World:
    """``versions``: as an ``EnvSpec`` has them; ``note``: what a reader of its figures must know,
    or ""."""

    tasks: tuple[Task, ...]
    versions: str
    note: str = ""


def world_of(environment: str, suite: str = "") -> World:
    """The world of an environment. SimError: there is none, no such suite, or it is not
    installed."""
    EnvConfig(environment, suite=suite)
    if environment == TABLETOP:
        return World(TASKS, tabletop_world())
    if environment == so101.NAME:
        return World(so101.TASKS, so101_world())
    package = find_package()
    tasks = tuple(task.as_task(one_suite=bool(suite)) for task in tasks_of(suite, package))
    assets = find_assets(package)
    return World(tasks, world_versions(assets, suite), world_note(assets))


def config_of(setup: Setup) -> EnvConfig:
    """The config of a setup's environment."""
    return EnvConfig(
        setup.environment,
        setup.image_size,
        setup.wrist,
        setup.suite,
        setup.nudge_m,
        control_rate_hz=setup.control_rate_hz,
    )
