"""Scheduling by age, with a simulated clock."""

from __future__ import annotations

import heapq
import random
from statistics import quantiles
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.runtime.scheduler import SECOND, BatchCosts, Refused, Scheduler, capacity

MS = SECOND // 1000
CHEAP = {1: 0.020, 2: 0.024, 4: 0.032, 8: 0.050}  # weights dominate
BETWEEN = {1: 0.030, 2: 0.050, 4: 0.080}
DEAR = {n: 0.020 * n for n in (1, 2, 4, 8)}  # rows dominate


def fleet(costs: dict[int, float], robots: int, rate: float, age: float) -> Scheduler[Any]:
    scheduler: Scheduler[Any] = Scheduler(BatchCosts(costs))
    for number in range(robots):
        scheduler.admit(f"robot {number}", rate, age)
    return scheduler


def test_of_a_robot_one_frame_waits_and_it_may_go_with_it() -> None:
    scheduler = fleet(CHEAP, 2, 10, 0.5)
    scheduler.submit("robot 0", 10 * MS, 1)
    with pytest.raises(AssertionError, match="one frame"):
        scheduler.submit("robot 0", 20 * MS, 2)
    scheduler.submit("robot 1", 20 * MS, 3)
    assert scheduler.release("robot 0") == 1
    assert scheduler.release("robot 0") is None
    assert scheduler.next(25 * MS) == [3]
    assert not scheduler.waits
    assert scheduler.next(25 * MS) == []


def test_who_says_nothing_is_never_refused_and_not_starved() -> None:
    scheduler: Scheduler[str] = Scheduler(BatchCosts({1: 0.020}))
    scheduler.admit("hasty", 40, 0.1)
    for number in range(40):
        scheduler.admit(f"stranger {number}")
    scheduler.submit("stranger 0", 0, "stranger's")
    order = []
    for tick in range(100):
        if scheduler.robots["hasty"].frame is None:
            scheduler.submit("hasty", tick * 20 * MS, "hasty's")
        order += scheduler.next(tick * 20 * MS)
    assert order.index("stranger's") == 47, "when what it acts on is 0.9 s older than the other's"


def test_after_a_slow_minute_nobody_is_refused_or_dropped_for_it() -> None:
    scheduler = fleet({1: 0.020}, 1, 10, 0.1)
    for _ in range(20):
        scheduler.costs.learn(1, 5.0)
    assert scheduler.costs.of(1) > 1.0
    scheduler.admit("another", 10, 0.1)
    scheduler.submit("robot 0", 0, 1)
    assert scheduler.next(70 * MS) == [1]


def test_that_a_pass_costs_less_than_at_start_is_found_out() -> None:
    scheduler = fleet({1: 0.060}, 1, 10, 0.1)
    answered = []
    for tick in range(1, 101):
        scheduler.submit("robot 0", (100 * tick - 50) * MS, tick)  # 50 ms old when it comes
        if scheduler.next(100 * tick * MS) == [tick]:
            answered.append(tick)
            scheduler.costs.learn(1, 0.020)
    assert answered[:2] == [4, 8]
    assert answered[2:] == list(range(9, 101))


def test_a_frame_that_is_too_old_already_is_dropped_even_alone() -> None:
    scheduler = fleet({1: 0.020}, 1, 10, 0.1)
    scheduler.submit("robot 0", 0, 1)
    assert scheduler.next(101 * MS) == []
    (dropped,) = scheduler.take_dropped()
    assert "would be 121 ms old when it is answered, more than the age limit of 100" in str(dropped)


def test_the_robot_whose_observation_is_first_too_old_is_first() -> None:
    scheduler: Scheduler[str] = Scheduler(BatchCosts({1: 0.020}))
    scheduler.admit("patient", 5, 1.0)
    scheduler.admit("hasty", 5, 0.1)
    scheduler.submit("patient", 0, "older")
    scheduler.submit("hasty", 30 * MS, "newer")
    assert scheduler.next(31 * MS) == ["newer"]
    assert scheduler.next(51 * MS) == ["older"]


def test_a_batch_is_no_larger_than_the_first_of_it_can_wait() -> None:
    scheduler = fleet(BETWEEN, 4, 5, 0.25)
    for number, stamp in enumerate((0, 150, 160, 170)):
        scheduler.submit(f"robot {number}", stamp * MS, number)
    # With two others the first would be answered at 190 + 65 ms, later than its 250.
    assert scheduler.next(190 * MS) == [0, 1]
    assert scheduler.next(240 * MS) == [2, 3]


def test_where_weights_dominate_all_go_together() -> None:
    """One behind the other the last of eight would be 160 ms old, together all are 50."""
    scheduler = fleet(CHEAP, 8, 10, 0.15)
    for number in range(8):
        scheduler.submit(f"robot {number}", 0, number)
    assert len(scheduler.next(1 * MS)) == 8


def test_whoever_had_no_answer_for_long_is_first() -> None:
    scheduler = fleet({1: 0.020}, 2, 5, 0.5)
    scheduler.submit("robot 0", 0, 1)
    scheduler.submit("robot 1", 10 * MS, 2)
    assert scheduler.next(20 * MS) == [1]
    scheduler.submit("robot 0", 30 * MS, 3)
    assert scheduler.next(40 * MS) == [3]
    scheduler.submit("robot 0", 50 * MS, 5)
    assert scheduler.next(60 * MS) == [2]


def test_a_frame_that_cannot_be_in_time_is_dropped_and_said() -> None:
    scheduler = fleet(CHEAP, 2, 5, 0.1)
    scheduler.submit("robot 0", 0, 7)
    scheduler.submit("robot 1", 70 * MS, 8)
    assert scheduler.next(90 * MS) == [8]
    (dropped,) = scheduler.take_dropped()
    assert dropped.frame == 7
    assert dropped.age_s == pytest.approx(0.110)
    assert scheduler.take_dropped() == []


@pytest.mark.parametrize(
    ("costs", "rate", "age", "fit", "says"),
    [
        (CHEAP, 10.0, 0.15, 14, "14 robots want|15 robots want 150.0 answers a second"),
        (DEAR, 10.0, 0.15, 4, "5 robots want 50.0 answers a second, and batches of 1 give 45.0"),
        (CHEAP, 10.0, 0.03, 1, "takes 20 ms .* 40 ms, more than the age limit of 30 ms; 1 others"),
        (CHEAP, 10.0, 0.01, 0, "an answer takes 20 ms, more than the age limit of 10 ms$"),
        (CHEAP, 40.0, 0.0, 1, r"2 robots want 80.0 answers a second, and batches of 2 give 75.0: "),
    ],
)
def test_a_robot_that_cannot_be_served_is_refused_with_the_figures(
    costs: dict[int, float], rate: float, age: float, fit: int, says: str
) -> None:
    scheduler = fleet(costs, fit, rate, age)
    with pytest.raises(Refused, match=says):
        scheduler.admit("another", rate, age)
    assert len(scheduler.robots) == fit
    if fit:
        scheduler.release("robot 0")
        scheduler.admit("another", rate, age)


def test_how_many_robots_fit() -> None:
    assert capacity(BatchCosts(CHEAP), 10.0, 0.15) == 14
    assert capacity(BatchCosts(CHEAP), 10.0) == 14
    assert capacity(BatchCosts(CHEAP), 10.0, 0.01) == 0
    assert capacity(BatchCosts(CHEAP), 0.0, most=7) == 7


def test_a_hasty_robot_is_not_let_in_beside_batches_that_make_it_wait() -> None:
    scheduler = fleet(CHEAP, 8, 10, 0.15)
    with pytest.raises(Refused, match=r"9 robots want 90\.0 answers a second"):
        scheduler.admit("hasty", 10, 0.05)


def test_bad_figures_and_names_are_refused() -> None:
    scheduler = fleet(CHEAP, 1, 1, 1)
    with pytest.raises(Refused, match="give 0 or more"):
        scheduler.admit("other", float("nan"), 1)
    with pytest.raises(ValueError, match="positive seconds"):
        BatchCosts({})


def test_costs_between_and_beyond_what_was_measured() -> None:
    costs = BatchCosts({1: 0.02, 4: 0.05})
    assert costs.of(2) == pytest.approx(0.03)
    assert costs.of(8) == pytest.approx(0.1)
    costs.learn(4, 0.1)
    assert costs.of(4) == pytest.approx(0.06)


def simulate(
    scheduler: Scheduler[tuple[str, int]],
    rate: float,
    seconds: float,
    seed: int,
    slower: float = 1.0,
) -> dict[str, list[float]]:
    """Ages [s] of the answers of every robot, whose frames come with jitter. A batch takes what it
    is said to, times ``slower``."""
    noise = random.Random(seed)
    events: list[tuple[int, str]] = []
    for name in scheduler.robots:
        begin = noise.random() / rate
        count = int(seconds * rate)
        events += [
            (round((begin + (k + noise.uniform(-0.2, 0.2)) / rate) * SECOND) + SECOND, name)
            for k in range(count)
        ]
    heapq.heapify(events)
    costs = {n: scheduler.costs.of(n) for n in range(1, scheduler.costs.largest + 1)}
    now, ages = SECOND, {name: list[float]() for name in scheduler.robots}
    newest: dict[str, int] = {}  # as in the mailbox of a robot that has asked already
    while events:
        while events and events[0][0] <= now:
            stamp, name = heapq.heappop(events)
            newest[name] = stamp
        for name, stamp in list(newest.items()):
            if scheduler.robots[name].frame is None:
                scheduler.submit(name, stamp, (name, stamp))
                del newest[name]
        batch = scheduler.next(now)
        if not batch:
            now = max(now, events[0][0]) if events else now
            continue
        took = costs[len(batch)] * slower
        now += round(took * SECOND)
        scheduler.costs.learn(len(batch), took)
        for name, stamp in batch:
            ages[name].append((now - stamp) / SECOND)
    return ages


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    costs=st.sampled_from([CHEAP, DEAR]),
    rate=st.sampled_from([2.0, 5.0, 10.0]),
    age=st.sampled_from([0.15, 0.3, 0.6]),
)
def test_whoever_was_let_in_is_answered_in_time(
    seed: int, costs: dict[int, float], rate: float, age: float
) -> None:
    """Whatever the jitter: no answer is too old, and nobody is starved. Frames of many that come at
    once may find no time: those are dropped, and newer ones answered."""
    scheduler: Scheduler[tuple[str, int]] = Scheduler(BatchCosts(costs))
    for number in range(20):
        try:
            scheduler.admit(f"robot {number}", rate, age)
        except Refused:
            break
    ages = simulate(scheduler, rate, 10.0, seed)
    assert all(max(each) <= age + 1e-9 for each in ages.values())
    answered = [len(each) / (10.0 * rate) for each in ages.values()]
    assert min(answered) > 0.5
    assert sum(answered) > 0.9 * len(answered)


def test_a_server_that_became_slower_drops_evenly() -> None:
    scheduler = fleet(CHEAP, 12, 10, 0.15)
    ages = simulate(scheduler, 10, 20.0, 1, slower=1.8)
    answered = [len(each) for each in ages.values()]
    worst = [quantiles(each, n=100)[98] for each in ages.values()]
    assert min(answered) > 0.5 * max(answered)
    assert max(worst) < 1.3 * min(worst)
