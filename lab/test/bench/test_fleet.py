"""`vla-ros bench --fleet`: several robots, three ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from vla_ros.cli.main import main
from vla_ros_lab.bench.fleet import FleetRow, RobotResult, draw
from vla_ros_lab.bench.options import BATCHED, UNBATCHED

SMALL = ["bench", "--checkpoint", "random:small", "--dtype", "float32", "--warm-up", "1"]
ROBOTS = (
    RobotResult(10, (40.0,) * 10),
    RobotResult(10, (60.0,) * 5, too_old=2),
    RobotResult(0, refused="3 robots want 30.0 answers a second"),
)


@pytest.mark.long
def test_every_way_is_measured_with_every_number_of_robots(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--fleet", "1,3", "--rate", "5", "--timed", "6", "--output", str(tmp_path)]
    assert main([*SMALL, *words]) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "fleet.json").read_text())
    rows = {(row["way"], row["robots"]): row for row in result["fleet"]}
    assert list(rows) == [(w, n) for w in ("unbatched", "batched", "workers") for n in (1, 3)]
    for (way, count), row in rows.items():
        assert len(row["each"]) == count
        for robot in row["each"]:
            assert robot["shown"] == 6
            assert 1 <= robot["answered"] <= 6
            assert 0 < robot["age_p50_ms"] <= robot["age_p99_ms"] <= row["worst_p99_ms"]
        assert row["share"] == pytest.approx(sum(r["answered"] for r in row["each"]) / count / 6)
        assert 1 <= row["robots_a_pass"] <= (count if way == "batched" else 1)
    assert set(result["pass_ms"]) == {"1", "2", "3"}
    assert rows["workers", 3]["rss_mb"] > 2 * rows["workers", 1]["rss_mb"] > 200
    # Of this process, which holds what other tests left in it: by how much it grows with robots.
    assert rows["batched", 3]["rss_mb"] < 1.3 * rows["batched", 1]["rss_mb"]
    assert "lets " in printed and " robots in at 5 Hz" in printed
    assert json.loads((tmp_path / "fleet.json").read_text()) == result
    assert (tmp_path / "fleet.png").read_bytes().startswith(b"\x89PNG")
    assert max(map(len, printed.splitlines()[:-1])) <= 80


def test_whom_the_server_does_not_let_in_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--fleet", "2", "--rate", "900", "--max-age", "30", "--timed", "2", "--rows"]
    assert main([*SMALL, *words, "unbatched", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["fleet"]
    assert row["refused"] == 2
    assert row["each"][0]["refused"].startswith("1 robots want 900.0 answers a second")
    assert row["age_p99_ms"] is None


def test_figures_are_of_those_who_were_let_in() -> None:
    found = FleetRow(BATCHED, ROBOTS, 2.0, 1.5, 100.0).as_json()
    assert (found["robots"], found["refused"], found["answers_hz"]) == (3, 1, 7.5)
    assert (found["share"], found["least_share"]) == (0.75, 0.5)
    assert found["fairness"] == pytest.approx(1.5**2 / (2 * 1.25))  # Jain's index
    assert (found["age_p50_ms"], found["worst_p99_ms"]) == (40.0, 60.0)


def test_the_picture_has_a_line_a_way() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    rows = [FleetRow(w, ROBOTS[:n], 1.0, 1.0, 1.0) for w in (UNBATCHED, BATCHED) for n in (1, 2)]
    ages, shares = draw(rows, "a title").axes
    assert [list(line.get_xdata()) for line in ages.lines] == [[1, 2]] * 4
    assert list(shares.lines[0].get_ydata()) == [100.0, 75.0]
