"""`vla-ros bench` on a small model: every row, every key, exact in fp32."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.calibrations import write_calibration
from vla_ros.cli.main import main
from vla_ros.core.errors import UserError
from vla_ros.engine.families.base import LoadedPolicy
from vla_ros.engine.options import EngineOptions
from vla_ros_lab.bench import suite
from vla_ros_lab.bench.measure import drifting_frames, load_frames
from vla_ros_lab.bench.suite import ROWS

KEYS = {
    "median_ms", "p95_ms", "rate_hz", "latency_ms", "passes_per_action", "acceptance",
    "speedup_vs_generate", "token_match", "lossless",
}  # fmt: skip
SMALL = ["bench", "--checkpoint", "random:small", "--dtype", "float32", "--warm-up", "8"]
Bench = Callable[..., dict[str, Any]]


@pytest.mark.long
def test_all_rows_in_fp32(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*SMALL, "--timed", "8", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    result = json.loads((tmp_path / "bench.json").read_text())
    assert not printed.rstrip().endswith("}"), "JSON is printed with --json alone"
    rows = result["decodings"]
    assert tuple(rows) == ROWS
    assert all(set(row) >= KEYS for row in rows.values())
    exact = [n for n in ROWS if rows[n]["lossless"] and n != "parallel"]
    assert len(exact) == 16
    assert {rows[name]["token_match"] for name in exact} == {1.0}
    assert not rows["speculative_relaxed"]["lossless"]
    assert rows["speculative_hit"]["passes_per_action"] == 1
    assert rows["speculative_hit"]["acceptance"] == 1
    assert rows["speculative_miss_always"]["passes_per_action"] == 7
    assert rows["auto"]["passes_per_action"] == rows["speculative_temporal"]["passes_per_action"]
    assert rows["speculative_miss"]["acceptance"] is None  # never right, it never drafted
    assert rows["speculative_tree_full"]["passes_per_action"] < 7
    bound = result["hindsight"]  # of drafts that know the outcome
    for name in ("speculative_entropy", "speculative_tree_full"):
        assert 1 <= bound["passes"] <= rows[name]["passes_per_action"]
    assert bound["verified"] < rows["speculative_tree_full"]["split"]["verified"]
    full, none = rows["speculative_tree_full"]["split"], rows["speculative_miss"]["split"]
    assert full["verified"] > 24 > full["accepted"] > 0
    assert (none["verified"], none["accepted"]) == (0, 0)  # what was never drafted
    assert rows["actionflow"]["split"] is None
    for name in ("speculative_temporal", "speculative_tree", "speculative_tree_full"):
        parts = [rows[name]["split"][f"{part}_ms"] for part in ("draft", "verify", "other")]
        assert parts[1] > parts[0] > 0  # drafting is cheap, a pass is not
        assert parts[2] > 0
    assert rows["actionflow"]["passes_per_action"] == 1
    # The draft is the same random:small: always right, and still a pass more when not fused.
    assert rows["speculative_model"]["passes_per_action"] == 1
    assert rows["vanilla_speculative"]["passes_per_action"] == 2
    assert rows["actionflow"]["latency_ms"] > rows["actionflow"]["median_ms"]
    assert rows["generate"]["speedup_vs_generate"] == 1
    assert result["shapes"]["vision_tokens"] == 64
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "bench.json").read_text()) == result
    assert "speculative_relaxed *" in (tmp_path / "bench.txt").read_text()
    shown = printed.splitlines()[:-1]  # the last line is JSON
    assert max(map(len, shown)) <= 80
    assert {line.split()[0] for line in shown if line} >= set(ROWS)  # no name is cut in two


def test_heterospec_is_a_row_where_there_is_a_calibration(bench: Bench, tmp_path: Path) -> None:
    words = ["--rows", "generate,heterospec", "--timed", "6"]
    write_calibration(tmp_path)
    file = str(tmp_path / "heterospec-7.json")
    found = bench("random:small", *words, "--calibration", file)
    row = found["decodings"]["heterospec"]
    assert row["token_match"] == 1.0
    assert row["passes_per_action"] < 7


def test_chunks_are_drafted_by_every_row_that_fits(bench: Bench) -> None:
    rows = "autoregressive,speculative_tree_full,speculative_head"
    found = bench("random:small-chunk", "--rows", rows, "--timed", "1", "--warm-up", "1")
    assert found["shapes"]["action_tokens"] == 56
    made = found["decodings"]
    assert made["autoregressive"]["passes_per_action"] == 56
    assert made["speculative_head"]["draft_passes_per_action"] > 4
    assert made["speculative_head"]["passes_per_action"] <= 56
    assert made["speculative_tree_full"]["draft_passes_per_action"] == 0


def test_it_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--timed", "2", "--rows", "generate,autoregressive", "--json"]) == 0
    out, said = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert [line.split("  ")[-1] for line in said.splitlines()[:4]] == [
        *("loading random:small", "asking the model", "preparing", "warming up"),
    ]
    assert re.search(r"^10/10.*  measuring$", said, re.MULTILINE)


def test_a_row_alone_runs_alone_and_its_tokens_can_be_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two processes of one row each, as benchmarks/run.sh has them, can be compared."""
    found = {}
    for row in ("autoregressive", "actionflow"):
        words = ["--timed", "9", "--warm-up", "1", "--rows", row, "--json"]
        assert main([*SMALL, *words]) == 0
        out, said = capsys.readouterr()
        assert "asking the model" not in said
        found[row] = json.loads(out)["decodings"][row]["said"].split()
    plain, late = found["autoregressive"], found["actionflow"]
    assert [len(plain), len(late)] == [10, 4]  # seven frames to an answer
    assert plain[:4] == late
    assert all(re.fullmatch("[0-9a-f]{8}", digest) for digest in plain)


def test_in_bf16_differences_are_close_calls(bench: Bench) -> None:
    """Equality is not promised there: another shape of product rounds otherwise."""
    rows = "generate,autoregressive,actionflow,speculative_hit"
    found = bench("random:small", "--dtype", "bfloat16", "--timed", "16", "--rows", rows)
    found = found["decodings"]
    for name in rows.split(",")[1:]:
        assert found[name]["token_match"] > 0.5
        margin = found[name]["mismatch_margin"]
        assert margin is None or margin < 0.2  # logits spread over several units


def test_json_alone_chosen_rows_and_recorded_frames(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "f.npz", images=np.stack(drifting_frames(3, side=64)))
    words = ["--timed", "2", "--rows", "generate,actionflow", "--json", "--tokens", "3"]
    assert main([*SMALL, *words, "--frames", str(tmp_path / "f.npz")]) == 0
    out = capsys.readouterr().out
    assert len(out.strip().splitlines()) == 1
    found = json.loads(out)
    assert list(found["decodings"]) == ["generate", "actionflow"]
    assert found["shapes"]["action_tokens"] == 3


def test_how_the_engine_runs_is_chosen_and_says_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images resized in torch are Pillow's to the byte, so every answer is."""
    asked: list[EngineOptions] = []

    class Noted(suite.Engine):
        def __init__(self, policy: LoadedPolicy, options: EngineOptions) -> None:
            asked.append(options)
            super().__init__(policy, options)

    monkeypatch.setattr(suite, "Engine", Noted)
    words = ["--timed", "2", "--warm-up", "1", "--rows", "autoregressive"]
    said = []
    for steps in ("cpu", "device"):
        found = bench("random:small", *words, "--image-steps", steps)
        said.append(found["decodings"]["autoregressive"]["said"])
    assert [options.image_steps for options in asked] == ["cpu", "device"]
    assert said[0] == said[1]


def test_the_sweep_covers_lengths(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_ros_lab.bench.suite.SWEEP_TOKENS", (2, 3))
    monkeypatch.setattr("vla_ros_lab.bench.suite.SWEEP_WORDS", (10, 60))
    words = ["--timed", "1", "--warm-up", "2", "--rows", "autoregressive", "--sweep"]
    shapes = [run["shapes"] for run in bench("random:small", *words)["sweep"]]
    assert [s["action_tokens"] for s in shapes] == [2, 2, 3, 3]
    assert shapes[1]["prompt_tokens"] > shapes[0]["prompt_tokens"] + 40


def test_frames_of_another_kind_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", pictures=np.zeros(3))
    with pytest.raises(UserError, match="no array 'images'"):
        load_frames(tmp_path / "f.npz")
