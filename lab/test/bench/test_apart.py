"""Every engine of a sweep in a process of its own, where there is a GPU to share."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from support.measuring import whose
from vla_ros.core.errors import UserError
from vla_ros_lab.bench import suite
from vla_ros_lab.bench.apart import run_apart


def test_it_runs_elsewhere_and_reports_how_far_it_is() -> None:
    reports: list[tuple[str, int, int]] = []
    assert run_apart(whose, "", lambda *report: reports.append(report)) != os.getpid()
    assert reports == [("asked", 1, 2)]


@pytest.mark.parametrize(
    ("options", "error", "line"),
    [
        ("refuse", UserError, "^no such frames$"),
        ("fail", RuntimeError, "^ValueError: a shape$"),
        ("die", RuntimeError, "ended with status -9"),
    ],
)
def test_its_errors_are_one_line_here(options: str, error: type[Exception], line: str) -> None:
    with pytest.raises(error, match=line):
        run_apart(whose, options, lambda *report: None)


@pytest.mark.parametrize(("device", "apart"), [("cpu", 0), ("cuda", 4), ("cuda:1", 4)])
def test_every_part_is_compiled_in_its_turn_and_on_a_gpu_in_a_process(
    device: str, apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[suite.BenchOptions] = []
    here: list[suite.BenchOptions] = []
    monkeypatch.setattr(suite, "run_apart", lambda run, options, report: made.append(options))
    monkeypatch.setattr(suite, "run_bench", lambda options, report: here.append(options))
    options = suite.BenchOptions()
    found = suite.run_ablation(replace(options, engine=replace(options.engine, device=device)))
    assert (len(made), len(here)) == (apart, 4 - apart)
    assert list(found) == ["eager", "vision", "decoder", "vision+decoder"]
    parts = [(), ("vision",), ("decoder",), ("vision", "decoder")]
    assert [step.compiled for step in made or here] == parts


def test_in_a_sweep_a_pipeline_is_full_before_the_clock_runs_and_stays_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or no window of K calls is there to take the latency from, and it is NaN."""
    steps: list[suite.BenchOptions] = []
    monkeypatch.setattr(suite, "run_bench", lambda options, report: steps.append(options))
    suite.run_sweep(replace(suite.BenchOptions(), timed=30, warm_up=10))
    assert {step.tokens for step in steps} == {7, 16, 24, 32}
    assert all(step.warm_up >= step.tokens and step.timed > step.tokens for step in steps)
    assert (steps[0].warm_up, steps[0].timed) == (10, 30)
