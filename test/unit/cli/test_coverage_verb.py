"""`vla-ros coverage`: from an evaluation's tokens to a table; what it cannot use is one line."""

import json

import numpy as np

from vla_ros.cli.main import main


def record(folder, episodes, frames, width=3):
    rng = np.random.default_rng(0)
    (folder / "tokens").mkdir()
    for number in range(episodes):
        tokens = 500 + rng.integers(-1, 2, (frames, width)).cumsum(0)
        path = folder / "tokens" / f"speculative_{number}.npz"
        np.savez(path, tokens=tokens.astype(np.int32), success=bool(number))


def test_it_counts_what_was_recorded(tmp_path, capsys):
    record(tmp_path, 4, 140)
    assert main(["coverage", str(tmp_path), "--json"]) == 0
    shown = capsys.readouterr().out
    found = json.loads(shown.splitlines()[-1])
    assert (found["frames"], found["episodes"]) == (560, 4)
    passes = {row["name"]: row["passes"] for row in found["passes"]}
    assert passes["tree of 8: fitted"] < passes["chain"] < 3
    assert "repeat ± 1" in shown


def test_too_little_is_refused(tmp_path, capsys):
    record(tmp_path, 4, 140)
    assert main(["coverage", str(tmp_path / "nowhere")]) == 2
    assert main(["coverage", str(tmp_path), "--variant", "autoregressive"]) == 2
    assert main(["coverage", str(tmp_path), "--solved"]) == 2
    said = capsys.readouterr().err
    assert said.count("--keep-tokens") == 2
    assert "3 episodes with 420 frames: give 2 episodes and 500 frames" in said
