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


def record_chunks(folder, executed, episodes=2, frames=260, steps=4, dim=2):
    """Chunks of one long line: what the last one said of a step is what the next one says."""
    rng = np.random.default_rng(1)
    (folder / "tokens").mkdir()
    for number in range(episodes):
        line = 500 + rng.integers(0, 200, (frames * executed + steps, dim))
        starts = range(0, frames * executed, executed)
        tokens = np.stack([line[start : start + steps].flatten() for start in starts])
        path = folder / "tokens" / f"speculative_{number}.npz"
        np.savez(path, tokens=tokens.astype(np.int32), success=True)


def test_chunks_are_shifted_by_what_was_executed(tmp_path, capsys):
    record_chunks(tmp_path, executed=3)
    assert main(["coverage", str(tmp_path), "--chunk", "4", "--executed", "3", "--json"]) == 0
    shown = capsys.readouterr().out
    found = {row["name"]: row for row in json.loads(shown.splitlines()[-1])["coverage"]}
    shifted, previous = found["last chunk, shifted"], found["previous step"]
    assert shifted["shares"][:2] == [1.0] * 2  # one of four steps was said before
    assert shifted["shares"][2:] == [0.0] * 6
    assert max(previous["shares"]) < 0.05
    assert "\nby step " in shown and "\nby dimension " in shown
    assert main(["coverage", str(tmp_path), "--chunk", "5"]) == 2
    assert "8 tokens are no 5 actions" in capsys.readouterr().err


def test_a_line_at_rest_repeats_its_previous_step(tmp_path, capsys):
    (tmp_path / "tokens").mkdir()
    rng = np.random.default_rng(2)
    for number in range(2):
        tokens = np.tile(rng.integers(0, 200, (260, 2)), (1, 4)).astype(np.int32)
        np.savez(tmp_path / "tokens" / f"a_{number}.npz", tokens=tokens, success=True)
    assert main(["coverage", str(tmp_path), "--chunk", "4", "--executed", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["coverage"]
    previous = next(row for row in found if row["name"] == "previous step")
    assert previous["shares"][2:] == [1.0] * 6 and max(previous["shares"][:2]) < 0.1
