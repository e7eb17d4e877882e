"""`vla-ros bench`: a wrong wish is one line and status 2, whatever the policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from vla_ros.cli.main import main

RUN = ["--dtype", "float32", "--warm-up", "1", "--timed", "2"]
FLOW, FAST, PASS = "random:smolvla-small", "random:pi0_fast-small", "random:bitvla-small"


@pytest.mark.parametrize(
    ("checkpoint", "words", "message"),
    [
        ("random:small", "--rows magic", "rows magic are unknown"),
        ("/no/where", "", "neither a directory nor a hub id"),
        ("random:small", "--timed 0", "--timed 0: needs at least 1"),
        ("random:small", "--rows heterospec", "no heterospec.json: make one with `vla-ros cal"),
        ("random:small-oft", "--passes", "this is an OFT checkpoint"),
        ("random:small", "--fleet 1,x", "invalid literal"),
        ("random:small", "--fleet 0", "give 1 to 256 robots"),
        ("random:small", "--fleet 1 --rate 0", "0.01 to 1000 Hz"),
        ("random:small", "--fleet 1 --rows generate", "there are unbatched, batched, workers"),
        (FLOW, "--rows magic", "rows magic are unknown: there are flow, flow_eager, naive"),
        (FLOW, "--sweep", "--sweep is for token policies"),
        (FLOW, "--image-steps cpu", "--image-steps is for token policies"),
        (FLOW, "--compile-ablation", "--compile-ablation is for token policies"),
        (FLOW, "--tokens 7", "--tokens is for token policies"),
        (FLOW, "--timed 0", "--timed 0: needs at least 1"),
        (FLOW, "--embodiment gr1", "embodiment: this means nothing to a policy of smolvla"),
        (FLOW, "--rows lerobot", "no row is left: lerobot: run `vla-ros lerobot setup`"),
        (FLOW, "--lerobot-python /no/python", "interpreter /no/python cannot be started"),
        (FLOW, "--lerobot-python false", "LeRobot's process ended: it printed nothing"),
        (FAST, "--passes", "--passes is for token policies"),
        (FAST, "--rows naive", "rows naive are unknown"),
        (FAST, "--rows generate --weights int8 --dtype bfloat16", "no quantized weights"),
        (FAST, "--rows head --head nowhere", "no folder of a draft head"),
        (PASS, "--rows lerobot", "rows lerobot are unknown: there are parallel, naive"),
        (PASS, "--sweep", f"--sweep is for token policies, {PASS} makes its chunk in one"),
    ],
)
def test_a_wrong_wish_is_one_line(
    checkpoint: str, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--checkpoint", checkpoint, *RUN, *words.split()]) == 2
    *before, error = capsys.readouterr().err.splitlines()
    assert message in error
    assert all(line.split("  ")[-1].startswith("loading") for line in before)


def test_a_file_as_output_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "--output", str(tmp_path / "bench.json")]) == 2
    assert "a directory; bench.json will be in it" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
