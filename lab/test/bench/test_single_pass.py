"""`vla-ros bench` of policies that say a chunk in one pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from vla_ros.cli.main import main

RUN = ["--dtype", "float32", "--warm-up", "1", "--timed", "2"]


def measured(capsys: pytest.CaptureFixture[str], checkpoint: str, *words: str) -> dict[str, Any]:
    assert main(["bench", "--checkpoint", checkpoint, *RUN, *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return found


def test_bitvla_beside_its_weights_as_floats(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = measured(capsys, "random:bitvla-small", "--output", str(tmp_path))
    rows = found["decodings"]
    assert list(rows) == ["parallel", "naive"]
    # one rounding of an input to int8 may go the other way: 1/127 of the largest
    assert 0 < rows["parallel"]["difference"] < 0.2
    for row in rows.values():
        assert set(row["stages_ms"]) == {"vision", "prefill", "decode"}
        assert sum(row["stages_ms"].values()) == pytest.approx(row["median_ms"], rel=0.5)
        assert row["passes_per_action"] == 1.0
    shapes = found["shapes"]
    assert (shapes["views"], shapes["action_tokens"], shapes["steps"]) == (2, 8, 0)
    # bytes: 4 of a float of heads and projectors, a quarter of a weight of the others
    assert found["memory"]["weights"] < shapes["parameters"]
    assert "2 views, 244 prefix tokens, a single pass" in (tmp_path / "bench.txt").read_text()


def test_a_policy_of_floats_has_nothing_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, "random:small-oft")
    assert list(found["decodings"]) == ["parallel"]
    assert found["skipped"] == {"naive": "naive: these weights are floats as they are"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rows", "lerobot"], "rows lerobot are unknown: there are parallel, naive"),
        (["--sweep"], "--sweep is for token policies, random:bitvla-small makes its chunk in one"),
    ],
)
def test_what_it_does_not_have(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--checkpoint", "random:bitvla-small", *words]) == 2
    assert said in capsys.readouterr().err
