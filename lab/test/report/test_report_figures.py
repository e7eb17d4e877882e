"""The figures of the report: which curves there are, and where points and labels go."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.evaluations import evaluation
from vla_ros.data.episodes.records import Job, Record, Spread, Variant
from vla_ros.data.episodes.rows import DELAY, KINDS, RELAXED, REPLAN, VariantRow, rows_of, sweeps

pytest.importorskip("matplotlib")
from vla_ros_lab.report.figures import (
    Label,
    age_figure,
    panels,
    place,
    spread_out,
    sweep_figure,
    times_figure,
)

TASKS = ("reach_red_cube", "push_red_cube_left", "pick_red_cube")
PLAIN = Variant("autoregressive", "autoregressive")
DRAFTS = Variant("speculative", "speculative")
DELAYED = tuple(
    Variant(f"autoregressive,delay={d}", "autoregressive", delay_frames=d) for d in (4, 1, 2)
)
RELAX = tuple(
    Variant(f"speculative,r={r}", "speculative", acceptance="relaxed", relaxed_distance=r)
    for r in (1, 3, 9)
)


def rows(*variants: Variant, realtime: bool = False) -> tuple[VariantRow, ...]:
    return rows_of(variants, evaluation(variants, TASKS, 4, realtime=realtime))


def texts(picture: str) -> list[str]:
    """Every text of an SVG."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture)


# Sweeps


def test_a_sweep_begins_with_the_variant_that_has_none_of_it():
    (delay,) = sweeps(rows(PLAIN, DRAFTS, *DELAYED), DELAY)
    assert [row.variant.label for row in delay.rows] == [
        "autoregressive",
        "autoregressive,delay=1",
        "autoregressive,delay=2",
        "autoregressive,delay=4",
    ]
    assert delay.values == delay.places == (0, 1, 2, 4)


def test_exact_acceptance_is_a_relaxed_distance_of_0():
    sampling = Variant("sampling", "speculative", acceptance="sampling")
    (relaxed,) = sweeps(rows(PLAIN, *RELAX, sampling, DRAFTS), RELAXED)
    assert relaxed.values == (0, 1, 3, 9)
    assert relaxed.rows[0].variant is DRAFTS


def test_a_replan_interval_of_0_is_all_of_the_chunk():
    chunks = [Variant(f"S={s}", "parallel", replan_interval=s) for s in (0, 1, 8)]
    (replan,) = sweeps(rows(*chunks), REPLAN)
    assert replan.labels == ("1", "8", "all")
    assert replan.places == (0, 1, 2)


def test_one_value_is_no_sweep():
    found = rows(PLAIN, DRAFTS, replace(DRAFTS, label="model", drafter="model"))
    assert not [sweep for kind in KINDS for sweep in sweeps(found, kind)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            Variant,
            label=st.just("x"),
            decoding=st.sampled_from(["autoregressive", "speculative"]),
            acceptance=st.sampled_from(["exact", "relaxed", "sampling"]),
            relaxed_distance=st.integers(0, 2),
            delay_frames=st.integers(0, 2),
            replan_interval=st.integers(0, 2),
            image_delay_ms=st.sampled_from([0.0, 50.0]),
        ),
        max_size=12,
    )
)
def test_the_rows_of_a_sweep_differ_in_its_number_only(found):
    variants = [replace(variant, label=str(i)) for i, variant in enumerate(found)]
    records = [
        Record(Job(v.label, "reach_red_cube", 0, 0, number=i), True, "success")
        for i, v in enumerate(variants)
    ]
    shown = rows_of(variants, records)
    for kind in KINDS:
        for sweep in sweeps(shown, kind):
            assert list(sweep.values) == sorted(set(sweep.values))
            free = {"label", kind.field} | ({"acceptance"} if kind is RELAXED else set())
            for field in fields(Variant):
                if field.name not in free:
                    assert len({getattr(r.variant, field.name) for r in sweep.rows}) == 1


# Places

steps = st.floats(0.1, 5)
heights = st.lists(st.floats(-3, 13), max_size=12)


@given(values=heights.map(sorted), step=steps)
def test_labels_at_the_end_are_apart_inside_and_in_order(values, step):
    moved = spread_out(values, step, 0.0, 10.0)
    assert len(moved) == len(values)
    least = min(step, 10.0 / max(len(values) - 1, 1))
    assert all(b - a >= least - 1e-6 for a, b in zip(moved, moved[1:], strict=False))
    assert all(-1e-6 <= one <= 10.0 + 1e-6 for one in moved)
    free = all(b - a >= step for a, b in zip(values, values[1:], strict=False))
    if free and all(0 <= one <= 10 for one in values):
        assert moved == pytest.approx(values)


def test_labels_of_close_points_do_not_lie_on_each_other():
    figure, (axes,) = panels(1, width=5, height=4)
    axes.set(xlim=(0, 10), ylim=(0, 10))
    points = [(5 + 0.1 * i, 5 + 0.1 * i) for i in range(6)]
    place(axes, [Label(x, y, ((f"variant {x:g}", "black"),)) for x, y in points], points)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 6
    overlaps = [
        a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1 and a.x0 < b.x1 - 1 and b.x0 < a.x1 - 1
        for i, a in enumerate(boxes)
        for b in boxes[:i]
    ]
    assert not any(overlaps)
    inside = axes.get_window_extent()
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 + 8 for box in boxes)


# Figures


def test_success_and_rate_against_age_name_every_variant():
    picture = age_figure(rows(PLAIN, DRAFTS, *DELAYED))
    assert picture.startswith("<svg")
    said = texts(picture)
    for words in ("autoregressive", "speculative", "delay 4"):
        assert said.count(words) == 2  # in both panels
    assert "Success against age" in said


def test_a_single_variant_is_no_curve_against_age():
    assert age_figure(rows(PLAIN)) == ""


@pytest.mark.parametrize(
    ("kind", "variants", "says"),
    [
        (DELAY, (PLAIN, *DELAYED), ["delay of the observation, control steps", "push", "all"]),
        (RELAXED, (DRAFTS, *RELAX), ["gripper", "rx", "reach", "all"]),
    ],
)  # fmt: skip
def test_a_sweep_shows_groups_and_what_it_comes_from(kind, variants, says):
    (sweep,) = sweeps(rows(*variants), kind)
    said = texts(sweep_figure(sweep))
    assert set(says) <= set(said)


def test_a_sweep_where_a_group_is_not_played_yet_everywhere():
    variants = (PLAIN, *DELAYED)
    records = evaluation(variants, TASKS, 2)
    late = [r for r in records if r.job.variant == PLAIN.label or "pick" not in r.job.task]
    (sweep,) = sweeps(rows_of(variants, late), DELAY)
    assert "pick" in texts(sweep_figure(sweep))


def test_times_show_median_and_95_percent():
    record = Record(
        Job(PLAIN.label, "reach_red_cube", 0, 0),
        True,
        "success",
        inference_ms=Spread.of([10.0, 20.0, 30.0]),
    )
    said = texts(times_figure(rows_of([PLAIN], [record])))
    assert "20.0 / 29.0" in said
    assert "–" in said  # no age
    assert times_figure(rows_of([PLAIN], [replace(record, inference_ms=Spread())])) == ""


def test_one_hang_does_not_squeeze_all_others_into_a_corner():
    def record(variant: Variant, most: float) -> Record:
        job = Job(variant.label, "reach_red_cube", 0, 0)
        spread = Spread.of([20.0] * 50 + [most])
        return Record(job, True, "success", inference_ms=spread, age_ms=spread)

    usual, hang = (
        times_figure(rows_of([PLAIN, DRAFTS], [record(PLAIN, most), record(DRAFTS, 25)]))
        for most in (30, 9000)
    )
    assert {"100", "1000"} <= set(texts(hang))
    assert {"0", "10", "20"} <= set(texts(usual))


def test_the_same_records_give_the_same_picture():
    first, second = (age_figure(rows(PLAIN, DRAFTS, *DELAYED)) for _ in range(2))
    assert first == second
