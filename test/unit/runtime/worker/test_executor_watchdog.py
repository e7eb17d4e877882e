"""When a worker counts as hung, and how often it may be replaced."""

from __future__ import annotations

from vla_ros.core.clock import SECOND
from vla_ros.runtime.worker.executor import Watchdog
from vla_ros.runtime.worker.spare import RespawnBudget


def test_nothing_asked_nothing_missing() -> None:
    assert Watchdog().waiting_ns(10**12) == 0


def test_newer_requests_do_not_push_the_deadline() -> None:
    dog = Watchdog()
    for n in range(1, 6):
        dog.submitted(n, n * 100)
    assert dog.waiting_ns(600) == 500


def test_an_answer_settles_all_before_it_and_starts_the_rest_anew() -> None:
    dog = Watchdog()
    dog.submitted(1, 100)
    dog.submitted(2, 200)
    dog.submitted(3, 300)
    dog.answered(2, 400)
    assert dog.waiting_ns(450) == 50
    dog.answered(3, 500)
    assert dog.waiting_ns(900) == 0
    dog.submitted(4, 1000)
    assert dog.waiting_ns(1010) == 10


def test_an_answer_seen_before_its_question_was_noted() -> None:
    dog = Watchdog()
    dog.answered(1, 90)
    dog.submitted(1, 100)
    assert dog.waiting_ns(10_000) == 0


def test_excused_time_does_not_count() -> None:
    dog = Watchdog()
    dog.submitted(1, 100)
    dog.excuse(5000)
    assert dog.waiting_ns(5100) == 100


def test_budget_is_per_window() -> None:
    budget = RespawnBudget(3, 600.0)
    assert [budget.take(i * SECOND) for i in range(4)] == [True, True, True, False]
    assert not budget.take(599 * SECOND)
    assert budget.take(600 * SECOND)
    assert not budget.take(600 * SECOND)
    budget.clear()
    assert budget.take(600 * SECOND)
    assert not RespawnBudget(0, 600.0).take(0)
