"""What an episode's counts make of passes, staleness and the seams of chunks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import Command, CommandKind, Inference, Timeline
from vla_ros.data.episodes.records import Job, Setup, Spread, Variant, record_from_json, to_json
from vla_ros.data.episodes.rows import Drafts, summary
from vla_ros.data.episodes.tally import EpisodeTally
from vla_ros_lab.report.page import html

JOB = Job("v", "reach_red_cube", 0, 0)
PERIOD = 50 * MS


def inference(stamp_ns: int, passes: int, rows: int = 1, level: float = 0.0) -> Inference:
    said = np.full((rows, 7), level)
    return Inference(stamp_ns, said, Timeline(0), target_passes=passes)


def record(tally: EpisodeTally, depth: int = 1):
    return tally.record(
        JOB, success=True, reason="success", max_steps=9, wall_s=1.0, pipeline_depth=depth
    )


@pytest.mark.parametrize(
    ("passes", "rows", "depth", "expected"),
    [(7, 1, 1, 7.0), (7, 1, 7, 1.0), (1, 8, 1, 1 / 8), (3, 1, 1, 3.0)],
    ids=["autoregressive", "actionflow", "parallel", "speculative"],
)
def test_passes_are_shared_by_all_that_they_serve(passes, rows, depth, expected):
    """As the demo's card and `vla-ros bench` share them."""
    tally = EpisodeTally()
    for frame in range(4):
        tally.inference(inference(frame, passes, rows))
    found = record(tally, depth)
    assert Drafts.of([found, found]).passes == pytest.approx(expected)
    assert record_from_json(to_json(found)) == found


def chunks() -> EpisodeTally:
    """Two chunks of four, the second begins at its action 2, 0.01 m further than the first says,
    and every action waits 20 ms for its step."""
    tally = EpisodeTally()
    first, second = SECOND, SECOND + PERIOD
    tally.inference(inference(first, 1, 4))
    tally.inference(inference(second, 1, 4, level=0.01))
    now = first
    for stamp, places in ((first, (0, 1, 2)), (second, (2, 3))):
        for place in places:
            now += PERIOD
            level = 0.0 if stamp == first else 0.01
            late = now - stamp - place * PERIOD
            action = np.full(7, level)
            command = Command(CommandKind.POLICY, action, 0, 1, 0, now, stamp,
                              chunk_index=place, chunk_length=4, staleness_ns=late)  # fmt: skip
            tally.command(command, now + 20 * MS)
    return tally


def test_seams_jerk_and_staleness_are_in_record_summary_and_report(tmp_path):
    found = record(chunks())
    assert (found.begun.count, found.begun.quantiles[-1]) == (2, 2.0)
    jump = 0.01 * np.sqrt(6)
    assert (found.seam.count, found.seam.mean) == (1, pytest.approx(jump))
    assert found.jerk.quantiles[-1] == pytest.approx(jump)
    # published a period behind its time line, and executed 20 ms after that
    assert found.staleness_ms.count == 5
    assert set(found.staleness_ms.quantiles) == {70.0}
    variant = Variant("v", "flow")
    figures = summary(Setup(checkpoint="c"), (variant,), [found])
    assert figures["seam"]["p50"] == pytest.approx(jump, abs=1e-6)
    assert figures["staleness_ms"]["p50"] == 70.0
    page = html(tmp_path, Setup(checkpoint="c"), (variant,), [found], "vla-ros eval")
    for words in ("seam jump", "24.5 / 24.5", "staleness, ms", "70.0 / 70.0"):
        assert words in page, words
    assert (
        summary(Setup(checkpoint="c"), (variant,), [replace(found, seam=Spread())])["seam"] is None
    )
    alone = EpisodeTally()
    alone.inference(inference(SECOND, 1))
    single = replace(record(alone), job=JOB)
    page = html(tmp_path, Setup(checkpoint="c"), (variant,), [single], "vla-ros eval")
    assert "seam jump, 10" not in page, "of single actions there are no seams"
    assert "conditioning delay" not in page, "it was told of none"


def test_the_delay_that_a_policy_was_told_is_in_record_summary_and_report(tmp_path):
    tally = EpisodeTally()
    for number, told in enumerate((0, 6, 6), 1):
        tally.inference(replace(inference(number * SECOND, 1), conditioning_delay=told))
    command = Command(CommandKind.POLICY, np.zeros(7), 0, 1, 0, 5 * SECOND, SECOND, staleness_ns=MS)
    tally.command(command, 5 * SECOND)
    found = record(tally)
    assert (found.conditioning_delay.count, found.conditioning_delay.p50) == (3, 6.0)
    assert record_from_json(to_json(found)).conditioning_delay == found.conditioning_delay
    variant = Variant("v", "actionflow")
    assert summary(Setup(checkpoint="c"), (variant,), [found])["conditioning_delay"]["p50"] == 6.0
    page = html(tmp_path, Setup(checkpoint="c"), (variant,), [found], "vla-ros eval")
    for words in ("conditioning delay", "6.0 / 6.0", "staleness, ms", "1.0 / 1.0"):
        assert words in page, words
