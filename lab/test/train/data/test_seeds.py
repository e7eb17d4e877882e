import pytest

from vla_ros.data.episodes.plan import (
    EVALUATION,
    TRAINING,
    VALIDATION,
    dagger_seed,
    expert_seed,
    validation_seed,
)


def test_no_seed_of_training_is_one_of_the_evaluation():
    for first, second in ((EVALUATION, TRAINING), (TRAINING, VALIDATION), (EVALUATION, VALIDATION)):
        assert not set(first[:: len(first) - 1]) & set(second)
        assert first.stop <= second.start
    extremes = [expert_seed(c, n) for c in (0, 4) for n in (0, 99_999)]
    extremes += [dagger_seed(r, n) for r in (0, 49) for n in (0, 9_999)]
    assert all(seed in TRAINING for seed in extremes)
    assert len(set(extremes)) == len(extremes)
    assert validation_seed(0) in VALIDATION


@pytest.mark.parametrize(
    "ask",
    [
        lambda: expert_seed(5, 0),
        lambda: expert_seed(0, 100_000),
        lambda: dagger_seed(50, 0),
        lambda: dagger_seed(0, 10_000),
        lambda: validation_seed(-1),
    ],
)
def test_a_number_that_would_leave_its_range_is_refused(ask):
    with pytest.raises(ValueError, match="give 0 to"):
        ask()


def test_the_initial_states_themselves_differ():
    tasks = pytest.importorskip("vla_ros.sim.tasks", exc_type=ImportError)
    for task in tasks.TASKS[::9]:
        evaluated = [tasks.placements(task.name, i, 0) for i in range(task.initial_states)]
        for number in range(3):
            trained = tasks.placements(task.name, number, expert_seed(0, number))
            assert trained not in evaluated
            assert trained != tasks.placements(task.name, number, validation_seed(number))
