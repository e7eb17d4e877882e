"""What the shipped policy does with an instruction: it acts on it, whatever the task is judged
by."""

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
pytest.importorskip("mujoco")

from vla_ros.data.episodes.play import DirectRunner
from vla_ros.data.episodes.records import Job, Record, Setup, Variant
from vla_ros.sim.tasks import COLORS

TRAINED = Setup(checkpoint="shipped:tabletop", route="direct", max_steps=60)
EXACT = Variant("autoregressive", "autoregressive")
STATE = 1


@pytest.fixture(scope="module")
def runner() -> Iterator[DirectRunner]:
    with DirectRunner(TRAINED, (EXACT,)) as runner:
        yield runner


def play(runner: DirectRunner, task: str, instruction: str = "") -> Record:
    return runner.play(Job(EXACT.label, task, STATE, 0, instruction), EXACT)


@pytest.mark.parametrize(
    "wanted",
    [pytest.param(c, marks=() if c == COLORS[0] else pytest.mark.long) for c in COLORS],
)
def test_of_four_cubes_it_goes_to_the_one_that_is_named(runner, wanted):
    """One scene, one goal, four instructions: only the one that names it meets the goal."""
    met = [
        named
        for named in COLORS
        if play(runner, f"reach_{wanted}_cube", f"move the gripper above the {named} cube").success
    ]
    assert met == [wanted]


def test_it_takes_other_words_for_the_same(runner):
    for said in ("go over the green cube", "hover above the green block"):
        assert play(runner, "reach_green_cube", said).success


def test_a_color_that_is_not_on_the_table_is_no_licence(runner):
    """The policy cannot know; the gate bounds what it does, and no action is old or invalid."""
    record = play(runner, "pick_red_cube", "pick up the purple cube and put it on the plate")
    assert (record.success, record.reason) == (False, "step limit")
    assert (record.error, record.held) == ("", 0)
    assert record.age_ms.quantile(100) == 0.0


def test_an_empty_sentence_moves_nothing(runner):
    record = play(runner, "pick_red_cube", " ")
    assert (record.success, record.frames, record.held) == (False, 0, TRAINED.max_steps)
    # Alone it has no task yet; after another test it has one, which " " stops.
    told = ("waits for an instruction", "stopped: waits for resume or another instruction")
    assert record.reason in [f"step limit, the policy never acted: {why}" for why in told]


LATE = Setup(checkpoint="shipped:tabletop", route="direct")
DELAY = 6  # control steps of 50 ms


@pytest.mark.parametrize("task", ["reach_green_cube", "push_blue_cube_left"])
def test_one_that_is_told_its_delay_acts_for_the_moment_it_acts_in(task):
    variant = Variant("late", "autoregressive", delay_frames=DELAY)
    with DirectRunner(LATE, (variant,)) as late:
        record = late.play(Job(variant.label, task, STATE, 0, ""), variant)
    assert record.success, record.reason
    assert record.age_ms.quantile(0) == record.age_ms.quantile(100) == 50.0 * DELAY
    assert record.conditioning_delay.quantile(0) == record.conditioning_delay.quantile(100) == DELAY
    assert record.staleness_ms.quantile(100) == 0.0
