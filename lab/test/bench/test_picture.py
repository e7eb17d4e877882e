"""bench.png: what was measured, its spread, and what was expected of it."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from vla_ros_lab.bench.report import draw, expected_ms


def row(median_ms, p95_ms, passes, lossless=True):
    return {
        "median_ms": median_ms, "p95_ms": p95_ms, "latency_ms": median_ms,
        "rate_hz": 1e3 / median_ms, "passes_per_action": passes, "lossless": lossless,
    }  # fmt: skip


ROWS = {
    "autoregressive": row(270.0, 280.0, 7.0),
    "speculative_hit": row(66.0, 70.0, 1.0),
    "speculative_temporal": row(106.0, 295.0, 3.5),
    "naive_pipe": row(78.0, 82.0, 0.5, lossless=False),
}


def test_a_row_is_expected_to_cost_its_passes():
    expected = expected_ms(ROWS)
    assert expected == pytest.approx(
        {"autoregressive": 270.0, "speculative_hit": 66.0, "speculative_temporal": 66 + 2.5 * 34}
    )
    assert expected_ms({k: v for k, v in ROWS.items() if k != "speculative_hit"}) == {}
    assert expected_ms({}) == {}


def test_the_picture_has_every_row_its_spread_and_what_was_expected():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    left, _ = draw(ROWS, "a title").axes
    assert [bar.get_width() for bar in left.patches] == [270.0, 66.0, 106.0, 78.0]
    (spread,) = left.collections
    ends = [(first[0], last[0]) for first, last in spread.get_segments()]
    assert ends == [(row["median_ms"], row["p95_ms"]) for row in ROWS.values()]
    (diamonds,) = left.lines
    assert list(diamonds.get_xdata()) == pytest.approx([270.0, 66.0, 151.0])
    assert list(diamonds.get_ydata()) == [0, 1, 2]
    assert "(lossy)" in left.get_yticklabels()[3].get_text()
    assert len(draw({"generate": ROWS["naive_pipe"]}, "").axes[0].lines) == 0
