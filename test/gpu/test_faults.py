"""NaN with a draft model, two devices, and the precision check, on a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.engine import TEXTS, play, stream, tiny_config
from support.gpu import PAIRS
from vla_ros.cli.main import main
from vla_ros.engine import InvalidAction
from vla_ros.engine.families.openvla import write_random

EVENTS = stream(12, {0: TEXTS[0]}, seed=4)


@pytest.mark.parametrize("acceptance", ["exact", "sampling"])
def test_nan_in_target_and_draft_ends_with_its_frames(
    acceptance: str, device: str, make_engine, tmp_path: Path
) -> None:
    """On CUDA drawing from NaN would be an assertion of the device, which ends the context."""
    write_random(tmp_path, tiny_config(), seed=4)
    engine = make_engine(
        tiny_config(), device, "speculative", drafter="model", draft_checkpoint=str(tmp_path),
        acceptance=acceptance, seed=4,
    )  # fmt: skip
    play(engine, EVENTS[:4])
    eyes = [
        model.vision.vision_backbone.featurizer.pos_embed
        for model in (engine.model, engine.decoder.decoding.drafter._draft)
    ]
    good = [eye.clone() for eye in eyes]
    for eye in eyes:
        eye.fill_(float("nan"))
    for event in EVENTS[4:7]:
        with pytest.raises(InvalidAction, match="not finite"):
            play(engine, [event])
    for eye, was in zip(eyes, good, strict=True):
        eye.copy_(was)
    answers = play(engine, EVENTS[7:])
    assert len(answers) == len(EVENTS[7:])
    assert all(len(a.tokens) == 7 for a in answers.values())
    assert engine.captures_in_service == 0
    if acceptance == "exact":
        plain = make_engine(tiny_config(), device, "generate", graphs=False, seed=4)
        expected = play(plain, [EVENTS[0], *EVENTS[7:]])
        assert {s: a.tokens for s, a in answers.items()} == {s: expected[s].tokens for s in answers}


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("decoding", ["actionflow", "speculative"])
def test_engines_on_two_devices_take_turns(
    decoding: str, first: str, second: str, make_engine
) -> None:
    """The second device is never the current one: events, graphs and kernels must be its own."""
    config = tiny_config("llama_gqa")
    alone = play(make_engine(config, first, decoding, seed=1), EVENTS)
    engines = [make_engine(config, where, decoding, seed=1) for where in (first, second)]
    for engine in engines:
        engine.reset(TEXTS[0])
    taken: list[dict[int, tuple[int, ...]]] = [{}, {}]
    for event in EVENTS:
        for engine, answers in zip(engines, taken, strict=True):
            for stamp, answer in play(engine, [event]).items():
                answers[stamp] = answer.tokens
                assert all(ms >= 0 for ms in answer.timeline.durations_ms().values())
    assert taken[0] == {s: a.tokens for s, a in alone.items()}
    assert taken[1] == taken[0]  # random weights are drawn by the kind of device


def test_the_precision_gate(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_random(tmp_path / "it", tiny_config(towers="fused"), seed=1)
    words = ["verify", "--checkpoint", str(tmp_path / "it"), "--synthetic", "--frames", "2"]
    loose = ["--max-mm", "1000", "--max-degrees", "360", "--max-margin", "1"]
    assert main([*words, *loose, "--device", device, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["passed"] is True
    assert found["checked"]["tokens (argmax)"] == 14
    assert main([*words, "--device", device, "--max-error", "1e-7"]) == 1
