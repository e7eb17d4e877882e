"""Engines with weights of fewer bits, quantised when loaded and ahead of time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.engine import play, stream, tiny_config
from vla_ros.cli.main import main
from vla_ros.engine import CheckpointError, Engine, EngineOptions, load_engine
from vla_ros.engine.checkpoints.quantise import quantise_checkpoint
from vla_ros.engine.checkpoints.random import write_random
from vla_ros.engine.inspection import inspect, sha256_on_disk
from vla_ros.engine.quantised.formats import parse_formats

ALL = "vision=int8,decoder=int4,head=int8"
EVENTS = stream(4, {0: "pick up the red cube"})


@pytest.fixture(params=["llama_gqa", "qwen2_tied"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_random(tmp_path / "it", tiny_config(request.param, "fused"), seed=1)
    return tmp_path / "it"


def loaded(checkpoint: Path, weights: str = "", **options: object) -> Engine:
    engine = load_engine(
        EngineOptions(str(checkpoint), dtype="bfloat16", weights=weights, **options)  # type: ignore[arg-type]
    )
    assert isinstance(engine, Engine)
    return engine


@pytest.mark.parametrize("weights", ["int8", "int4", "fp8", ALL])
def test_ahead_of_time_is_the_same_to_the_bit(checkpoint: Path, weights: str) -> None:
    """And schedules run: speculation over the quantised weights answers every frame."""
    target = checkpoint.with_name("few")
    done = quantise_checkpoint(str(checkpoint), parse_formats(weights), target)
    assert done.after < done.before
    now, before = play(loaded(checkpoint, weights), EVENTS), play(loaded(target), EVENTS)
    assert now.keys() == before.keys() == set(range(4))
    for stamp, inference in now.items():
        assert inference.tokens == before[stamp].tokens
        np.testing.assert_array_equal(inference.actions, before[stamp].actions)
    assert sha256_on_disk(str(target)) != sha256_on_disk(str(checkpoint))
    assert inspect(str(target)).parameters > 0


def test_what_it_was_made_of_is_written_down(checkpoint: Path) -> None:
    target = checkpoint.with_name("few")
    quantise_checkpoint(str(checkpoint), parse_formats("int8"), target)
    said = json.loads((target / "quantised.json").read_text())
    assert said["weights"] == "decoder=int8,head=int8"
    assert said["source"] == str(checkpoint)
    assert said["source_sha256"] == sha256_on_disk(str(checkpoint))


def test_what_cannot_be_is_one_line(checkpoint: Path) -> None:
    for options, said in (
        ({"dtype": "float32"}, "give dtype bfloat16"),
        ({"schedule": "generate"}, "no quantised weights"),
        ({"backend": "transformers"}, "no quantised weights"),
        ({"schedule": "speculative", "acceptance": "sampling", "weights": "int4"}, "head=int8"),
    ):
        asked = {"dtype": "bfloat16", "weights": "int8", **options}
        with pytest.raises(ValueError, match=said):
            load_engine(EngineOptions(str(checkpoint), **asked))  # type: ignore[arg-type]
    target = checkpoint.with_name("few")
    quantise_checkpoint(str(checkpoint), parse_formats("int8"), target)
    with pytest.raises(CheckpointError, match="give dtype bfloat16"):
        load_engine(EngineOptions(str(target)))
    with pytest.raises(ValueError, match="quantised already"):
        loaded(target, "int4")
    with pytest.raises(CheckpointError, match="exists"):
        quantise_checkpoint(str(checkpoint), parse_formats("int8"), target)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"weights": "int8", "group": 64}, "groups of 64"),
        ({"weights": "int9", "group": 32}, "give bf16, int8, int4, fp8"),
        ({"weights": "int4", "group": 32}, "do not fit"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: dict[str, object], said: str) -> None:
    write_random(tmp_path / "it", tiny_config(), seed=1)
    quantise_checkpoint(str(tmp_path / "it"), parse_formats("int8"), tmp_path / "few")
    (tmp_path / "few" / "quantised.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=said):
        loaded(tmp_path / "few")


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_sizes_that_no_kernel_takes(tmp_path: Path, kind: str) -> None:
    """They are padded, when they are multiplied and not on the disk."""
    config = tiny_config()
    config = replace(config, text=replace(config.text, intermediate_size=100))
    write_random(tmp_path / "it", config, seed=1)
    quantise_checkpoint(str(tmp_path / "it"), parse_formats(kind), tmp_path / "few")
    now, before = (
        play(loaded(*which), EVENTS) for which in ((tmp_path / "it", kind), (tmp_path / "few",))
    )
    assert [i.tokens for i in now.values()] == [i.tokens for i in before.values()]


def test_the_head_of_oft(tmp_path: Path) -> None:
    """Its wide maps have fewer bits, its last one stays; read back, it says the same."""
    config = replace(tiny_config("llama_gqa"), parallel=True, chunk=4)
    write_random(tmp_path / "it", config, seed=1)
    quantise_checkpoint(str(tmp_path / "it"), parse_formats("head=int8"), tmp_path / "few")
    engine, other = loaded(tmp_path / "it", "head=int8"), loaded(tmp_path / "few")
    assert len(engine.model.quantised_head) == 3
    now, before = play(engine, EVENTS), play(other, EVENTS)
    for stamp, inference in now.items():
        np.testing.assert_array_equal(inference.actions, before[stamp].actions)
    plain = play(loaded(tmp_path / "it"), EVENTS)
    apart = np.abs(plain[0].actions - now[0].actions).max()
    assert 0 < apart < 0.05


def test_the_verbs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quantise, then a gate against what it was made of; the verdict belongs to the new files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_random(tmp_path / "it", tiny_config(), seed=1)
    source, target = str(tmp_path / "it"), str(tmp_path / "few")
    words = ["quantize", "--checkpoint", source, "--weights", ALL, "--out", target, "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["bytes"] < said["bytes_before"]
    gate = ["gate", "--synthetic", "--frames", "2", "--json"]
    gate += ["--max-margin", "1", "--max-error", "0.5"]  # random weights
    assert main([*gate, "--checkpoint", target]) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert made["reference"] == source
    assert main([*gate, "--checkpoint", source, "--weights", ALL]) == 0
    loaded_so = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert loaded_so["stages"] == made["stages"]
    assert loaded_so["weights"] == ALL
    assert {s["name"]: s["worst"] > 0.02 for s in made["stages"]}["layer 0"]  # int4 is seen
    assert (tmp_path / "few" / "precision").is_dir()


@pytest.mark.parametrize(
    ("checkpoint", "weights", "said"),
    [
        ("shipped:tabletop", "int5", "give bf16, int8, int4, fp8"),
        ("shipped:tabletop", "bf16", "quantises nothing"),
        ("random:small", "int8", "made anew"),
        ("nowhere", "int8", "neither a directory"),
    ],
)
def test_wrong_usage(
    checkpoint: str, weights: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--checkpoint", checkpoint, "--weights", weights, "--out", str(tmp_path / "x")]
    assert main(["quantize", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "x").exists()
