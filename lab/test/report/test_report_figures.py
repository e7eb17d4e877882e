"""The figures of the report: which curves there are, and what is named in them."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.evaluations import evaluation
from vla_ros.data.episodes.records import Job, Record, Spread, Variant
from vla_ros.data.episodes.rows import DELAY, KINDS, RELAXED, REPLAN, VariantRow, rows_of, sweeps
from vla_ros_lab.report.figures import age_figure, sweep_figure, times_figure

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
    assert delay.values == delay.positions == (0, 1, 2, 4)


def test_exact_acceptance_is_a_relaxed_distance_of_0():
    sampling = Variant("sampling", "speculative", acceptance="sampling")
    (relaxed,) = sweeps(rows(PLAIN, *RELAX, sampling, DRAFTS), RELAXED)
    assert relaxed.values == (0, 1, 3, 9)
    assert relaxed.rows[0].variant is DRAFTS


def test_a_replan_interval_of_0_is_all_of_the_chunk():
    chunks = [Variant(f"S={s}", "parallel", replan_interval=s) for s in (0, 1, 8)]
    (replan,) = sweeps(rows(*chunks), REPLAN)
    assert replan.labels == ("1", "8", "all")
    assert replan.positions == (0, 1, 2)


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


# Figures


def test_success_and_rate_against_age_name_every_variant():
    picture = age_figure(rows(PLAIN, DRAFTS, *DELAYED))
    assert picture.startswith("<svg")
    found = texts(picture)
    assert found.count("delay 4") == 2, "the end of the curve, in both panels"
    assert [found.count(name) for name in ("autoregressive", "speculative")] == [1, 1]
    assert "Success against age" in found


def test_the_lettering_of_a_figure_has_the_pages_colors():
    """Light or dark: a page has another ink in the dark."""
    picture = age_figure(rows(PLAIN, DRAFTS))
    assert "var(--ink,#1f2933)" in picture and "var(--soft," in picture
    for color in ("#1f2933", "#52606d", "#000000"):
        assert picture.count(color) == picture.count(f",{color})"), color


def test_a_single_variant_is_no_curve_against_age():
    assert age_figure(rows(PLAIN)) == ""


@pytest.mark.parametrize(
    ("kind", "variants", "says"),
    [
        (DELAY, (PLAIN, *DELAYED), ["delay of the observation, actions", "push", "all"]),
        (RELAXED, (DRAFTS, *RELAX), ["gripper", "rx", "reach", "all"]),
    ],
)  # fmt: skip
def test_a_sweep_shows_groups_and_what_it_comes_from(kind, variants, says):
    (sweep,) = sweeps(rows(*variants), kind)
    assert set(says) <= set(texts(sweep_figure(sweep)))


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
