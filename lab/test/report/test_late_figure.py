"""The figure of chunks that come late: which lines it has and that it is drawn."""

from __future__ import annotations

from dataclasses import replace

from support.evaluations import evaluation
from vla_ros.data.episodes.records import Spread, Variant
from vla_ros.data.episodes.rows import rows_of
from vla_ros_lab.report.figures import late_figure, late_lines


def variant(execution, delay, **changes):
    s = max(delay, 4)
    label = f"{execution},S={s},d={delay}{changes or ''}"
    return Variant(label, "auto", execution=execution, delay_frames=delay, replan_interval=s,
                   **changes)  # fmt: skip


def rows(variants):
    records = evaluation(variants, ("reach_red_cube", "stack_red_on_blue"), 3)
    seams = [
        replace(r, seam=Spread() if r.job.variant[:4] == "sync" else Spread.of([0.01, 0.02]))
        for r in records
    ]
    return rows_of(variants, seams)


def test_a_line_an_execution_in_the_order_of_the_delay_whatever_s():
    found = late_lines(rows([
        *(variant(e, d) for e in ("sync", "rtc") for d in (8, 0, 4)),
        variant("rtc", 4, rtc_mode="guided_vjp"),
        Variant("other", "speculative", execution="async", delay_frames=2),
    ]))  # fmt: skip
    delays = {name: [row.variant.delay_frames for row in own] for name, own in found.items()}
    assert delays == {"sync": [0, 4, 8], "rtc": [0, 4, 8], "rtc, true Jacobian": [4]}
    assert late_lines(rows([variant("rtc", d) for d in (0, 2)])) == {}, "one line is a sweep"
    assert late_lines(rows([variant(e, 2) for e in ("sync", "rtc")])) == {}


def test_it_is_drawn_with_every_line_named():
    picture = late_figure(rows([variant(e, d) for e in ("sync", "async", "rtc") for d in (0, 6)]))
    assert picture.startswith("<svg")
    for words in (">sync<", ">async<", ">rtc<", "delay of a chunk, actions"):
        assert words in picture, words
    assert picture.count(">sync<") == 1, "standing still there is no seam"
    assert late_figure(rows([variant("rtc", 0)])) == ""
