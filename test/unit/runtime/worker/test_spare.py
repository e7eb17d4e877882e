"""When a spare worker is loaded, takes over, is given up: the pool's logic, time handed in."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from vla_ros.core.clock import SECOND
from vla_ros.core.types import PolicyInfo
from vla_ros.runtime.worker.spare import SpareWorker
from vla_ros.runtime.worker.wire import (
    LoadRefused,
    PolicyLoaded,
    SpareLost,
    SpareReady,
    WorkerLimits,
    WorkerReport,
)

INFO = PolicyInfo("zero")
SERVING = PolicyLoaded(INFO, 1, 10.0, 12.0)


@dataclass
class Fake:
    """A worker process that says what it is told to."""

    pid: int
    said: list[WorkerReport] | None = field(default_factory=list)
    killed: bool = False
    slow_to_die: bool = False
    begun: int = -1

    def begin(self, after: int) -> None:
        self.begun = after

    def read(self, steady_ns: int) -> list[WorkerReport] | None:
        said = self.said
        if said:
            self.said = []
        return said

    def kill(self) -> None:
        self.killed = True

    def ended(self) -> bool:
        return (self.killed and not self.slow_to_die) or self.said is None

    def exit_reason(self) -> str:
        return "killed by SIGKILL"


class Pool:
    def __init__(self, **limits: object) -> None:
        self.made: list[Fake] = []
        self.told: list[object] = []
        self.no_room = ""
        self.now = 0
        limits = {"spare": True, "load_timeout_s": 10.0} | limits
        self.spare: SpareWorker[Fake] = SpareWorker(
            self.start,
            lambda serving: self.no_room,
            WorkerLimits(**limits),  # type: ignore[arg-type]
            self.told.append,
        )

    def start(self, serving: PolicyLoaded) -> Fake:
        self.made.append(Fake(100 + len(self.made)))
        return self.made[-1]

    def turn(self, seconds: float = 0.05, serving: PolicyLoaded | None = SERVING) -> None:
        self.now += round(seconds * SECOND)
        self.spare.turn(self.now, serving)

    def load(self) -> Fake:
        """One that stands by."""
        self.turn()
        fake = self.made[-1]
        fake.said = [PolicyLoaded(INFO, fake.pid, 99.0, 99.0)]
        self.turn(2.0)
        assert self.told[-1] == SpareReady(fake.pid, 2.0)
        return fake


def test_one_is_loaded_once_a_worker_serves_and_no_second_one() -> None:
    pool = Pool()
    pool.turn(serving=None)
    assert not pool.made
    pool.load()
    for _ in range(5):
        pool.turn()
    assert len(pool.made) == 1 and len(pool.told) == 1


def test_none_is_loaded_where_none_is_wanted() -> None:
    pool = Pool(spare=False)
    pool.turn()
    assert not pool.made and pool.spare.take(5) is None and not pool.told


def test_it_takes_over_with_the_times_of_the_lost_one_and_another_is_loaded() -> None:
    pool = Pool()
    fake = pool.load()
    taken = pool.spare.take(17)
    assert taken == (fake, PolicyLoaded(INFO, fake.pid, 10.0, 12.0))
    assert fake.begun == 17 and not fake.killed
    assert pool.spare.take(18) is None, "it is taken once"
    pool.turn(serving=taken[1])
    assert len(pool.made) == 2


def test_one_that_still_loads_does_not_take_over_and_gives_its_memory_back() -> None:
    pool = Pool()
    pool.turn()
    pool.made[0].slow_to_die = True
    assert pool.spare.take(1) is None
    assert pool.made[0].killed and pool.made[0].begun == -1
    assert not pool.spare.gone()
    pool.turn()
    assert len(pool.made) == 1, "no other before it is gone"
    pool.made[0].slow_to_die = False
    pool.turn()
    assert pool.spare.gone() and len(pool.made) == 2


def test_one_that_ended_a_moment_ago_does_not_take_over() -> None:
    pool = Pool()
    pool.load().said = None
    assert pool.spare.take(1) is None


def test_no_room_is_said_once_and_looked_at_again_beside_another_worker() -> None:
    pool = Pool()
    pool.no_room = "2 of 3 GiB"
    for _ in range(10):
        pool.turn()
    assert pool.told == [SpareLost("2 of 3 GiB", final=True)] and not pool.made
    pool.no_room = ""
    pool.turn(60.0)
    assert not pool.made
    assert pool.spare.take(1) is None  # the worker was lost
    pool.turn()
    assert len(pool.made) == 1


@pytest.mark.parametrize(
    ("said", "seconds", "reason"),
    [
        ([LoadRefused("the checkpoint is gone")], 1.0, "the checkpoint is gone"),
        (None, 1.0, "killed by SIGKILL"),  # loading, by the system that ran out of memory
        ([], 10.1, "it was not ready in 10 s"),
    ],
)
def test_one_that_cannot_load_is_not_tried_again(said, seconds, reason) -> None:
    pool = Pool()
    pool.turn()
    pool.made[0].said = said
    pool.turn(seconds)
    assert pool.told == [SpareLost(reason, final=True)]
    pool.turn(600.0)
    assert len(pool.made) == 1 and len(pool.told) == 1 and pool.made[0].killed


def test_a_machine_that_starts_no_process_is_no_end() -> None:
    pool = Pool()
    pool.spare._start = lambda serving: (_ for _ in ()).throw(OSError("no more processes"))  # type: ignore[assignment]
    pool.turn()
    assert pool.told == [SpareLost("it cannot be started: no more processes", final=True)]


def test_one_that_stood_is_replaced_three_times_in_ten_minutes() -> None:
    pool = Pool()
    for i in range(4):
        pool.load().said = None
        pool.turn()
        assert pool.told[-1] == SpareLost("killed by SIGKILL", final=i == 3)
    pool.turn(60.0)
    assert len(pool.made) == 4
    pool.spare.renew()  # as at ~/recover
    pool.load()


def test_no_other_is_begun_while_the_worker_loads() -> None:
    pool = Pool()
    fake = pool.load()
    pool.turn(serving=None)
    assert pool.spare.process is fake and pool.spare.stands()
    fake.said = None
    pool.turn(serving=None)
    pool.turn(serving=None)
    assert len(pool.made) == 1 and not pool.spare.stands()
