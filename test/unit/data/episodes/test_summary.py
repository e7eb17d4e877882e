"""The figures of an evaluation as JSON."""

import json
from dataclasses import replace

from support.evaluations import evaluation
from vla_ros.core.console import text_of
from vla_ros.data.episodes.plan import group_of
from vla_ros.data.episodes.records import Setup, Variant
from vla_ros.data.episodes.rows import summary
from vla_ros.viz.evaluation import tables

SETUP = Setup(checkpoint="c", seed=3)
VARIANTS = (Variant("autoregressive", "autoregressive"), Variant("speculative", "speculative"))
TASKS = ("reach_red_cube", "reach_blue_cube", "stack_red_on_blue")


def test_its_figures_are_sums_of_the_records():
    records = evaluation(VARIANTS, TASKS, 10)
    figures = json.loads(json.dumps(summary(SETUP, VARIANTS, records, "vla-ros eval"), indent=1))
    first = figures["variants"]["autoregressive"]
    assert {name: figures[name] for name in first} == first
    assert (figures["seed"], figures["mode"], figures["command"]) == (3, "lockstep", "vla-ros eval")
    for label, own in figures["variants"].items():
        mine = [record for record in records if record.job.variant == label]
        assert (own["episodes"], own["successes"]) == (30, sum(r.success for r in mine))
        assert own["success_rate"] == round(own["successes"] / 30, 4)
        assert (
            own["wilson95"][0] < own["success_rate"] < own["wilson95"][1] or own["successes"] == 30
        )
        for task, outcome in own["by_task"].items():
            assert outcome["successes"] == sum(r.success for r in mine if r.job.task == task)
        reach = own["by_group"]["reach"]
        assert reach["successes"] == sum(r.success for r in mine if group_of(r.job.task) == "reach")
        assert sum(own["failures"].values()) == 30 - own["successes"]
    drafted = [r.drafted for r in records if r.job.variant == "speculative"]
    assert figures["variants"]["speculative"]["drafted"] == [
        sum(d) for d in zip(*drafted, strict=True)
    ]


def test_a_decoding_that_was_picked_is_called_by_its_name():
    auto = Variant("auto,d=2", "auto", delay_frames=2)
    records = [replace(r, decoding="speculative") for r in evaluation((auto,), TASKS, 3)]
    figures = summary(SETUP, (auto,), records)
    assert (figures["decoding"], figures["decoding_asked"]) == ("speculative", "auto")
    assert (
        text_of(*tables(SETUP, (auto,), records))
        .splitlines()[1]
        .startswith("auto,d=2 (speculative)")
    )
    old = [replace(r, decoding="") for r in records]  # of an evaluation before it was recorded
    assert summary(SETUP, (auto,), old)["decoding"] == "auto"


def test_without_an_episode_there_is_no_rate():
    figures = summary(SETUP, VARIANTS, [])
    assert (figures["success_rate"], figures["episodes"], figures["variants"]) == (None, 0, {})
