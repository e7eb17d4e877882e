"""Which episodes an evaluation has."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.data.episodes.plan import Plan, PlanError, age_limit_s, group_of, select_tasks
from vla_ros.data.episodes.records import Setup, Variant
from vla_ros.sim.env import Task
from vla_ros.sim.tasks import TASKS

VARIANTS = (Variant("a", "autoregressive"), Variant("b", "actionflow"))


def plan(episodes=2, tasks=TASKS[:3], seed=0, variants=VARIANTS, instruction=""):
    return Plan(Setup(checkpoint="c", seed=seed), variants, tuple(tasks), episodes, instruction)


@given(st.integers(1, 120), st.integers(1, 7), st.integers(0, 1000))
def test_every_variant_plays_the_same_episodes(episodes, states, seed):
    tasks = [Task("one", "do one", states, 10), Task("two", "do two", 50, 10)]
    jobs = plan(episodes, tasks, seed).jobs()
    assert [job.number for job in jobs] == list(range(2 * 2 * episodes))
    assert len({job.key() for job in jobs}) == len(jobs)
    half = len(jobs) // 2
    assert {job.variant for job in jobs[:half]} == {"a"}
    played = [
        [(j.task, j.initial_state, j.seed) for j in part] for part in (jobs[:half], jobs[half:])
    ]
    assert played[0] == played[1]
    ones = [(state, drawn) for task, state, drawn in played[0] if task == "one"]
    assert ones == [(k % states, seed + k // states) for k in range(episodes)]


def test_a_part_of_it_has_every_task():
    jobs = plan(episodes=5).jobs()
    assert {job.task for job in jobs[:3]} == {task.name for task in TASKS[:3]}


def test_tasks_are_chosen_by_name_and_by_family():
    assert select_tasks(TASKS, []) == TASKS
    chosen = select_tasks(TASKS, ["reach", "stack_red_on_blue"])
    assert {group_of(task.name) for task in chosen} == {"reach", "stack"}
    assert len(chosen) == 5
    with pytest.raises(PlanError, match="no task or family 'pul'; there are pick, push, reach"):
        select_tasks(TASKS, ["pul"])


def test_tasks_of_another_environment_belong_to_their_suite():
    assert group_of("open_the_drawer", "libero_goal") == "libero_goal"
    other = (Task("open_the_drawer", "open the drawer", 50, 300),)
    assert select_tasks(other, ["open_the_drawer"]) == other
    with pytest.raises(PlanError):
        select_tasks(other, ["reach"])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: plan(episodes=0), "0 episodes"),
        (lambda: plan(tasks=()), "a variant and a task"),
        (lambda: plan(variants=()), "a variant and a task"),
        (lambda: plan(variants=(VARIANTS[0], replace(VARIANTS[1], label="a"))), "two variants"),
        (lambda: plan(seed=999_999, episodes=60), "0 to 999999"),
        (lambda: plan(seed=-1), "0 to 999999"),
    ],
)
def test_an_evaluation_that_cannot_be_is_one_line(make, said):
    with pytest.raises(PlanError, match=said):
        make()


def test_the_age_limit_grows_by_what_a_variant_delays():
    setup = Setup(checkpoint="c", max_age_s=0.5)
    assert age_limit_s(setup, Variant("a")) == 0.5
    assert age_limit_s(setup, Variant("a", delay_frames=4)) == pytest.approx(0.7)
    assert age_limit_s(setup, Variant("a", image_delay_ms=150)) == pytest.approx(0.65)
    assert age_limit_s(setup, Variant("a", replan_interval=8)) == pytest.approx(0.85)
    whole = replace(setup, chunk=8)
    assert age_limit_s(whole, Variant("a")) == pytest.approx(0.85)
    assert age_limit_s(whole, Variant("a", replan_interval=2)) == pytest.approx(0.55)
