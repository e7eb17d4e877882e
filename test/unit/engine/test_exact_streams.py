"""Every lossless decoding says token for token what ``generate`` says, over whole streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.calibrations import write_calibration
from support.engine import TEXTS, engine_of, play, stream, tiny, tiny_config
from support.heads import recursive_head
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.families.openvla import write_random
from vla_ros_lab.hugging_face import transformers_model

FRAMES = 52
# A change of instruction, one that comes while a pipeline of 7 or 16 fills, and a plain reset.
RESETS = {0: TEXTS[0], 18: TEXTS[1], 21: TEXTS[2], 40: TEXTS[2]}
LONG_RESETS = {0: TEXTS[0], 5: TEXTS[1]}  # leaves room for a pipeline of 32

CASES = [
    ("llama_mha", "single", 7, 0),
    ("llama_mha", "fused", 7, 1),
    ("llama_gqa", "single", 7, 2),
    pytest.param("llama_gqa", "fused", 16, 3, marks=pytest.mark.long),
    pytest.param("qwen2_tied", "single", 16, 4, marks=pytest.mark.long),
    ("qwen2_tied", "fused", 7, 5),
    pytest.param("qwen2_tied", "single", 32, 7, marks=pytest.mark.long),
]
SCHEDULES = [
    ("autoregressive", {}),
    ("actionflow", {}),
    ("naive_pipe", {}),
    ("speculative", {"adaptive_draft": False}),
    ("speculative", {"drafter": "temporal_linear", "adaptive_draft": False, "gamma": 3}),
    ("auto", {}),
    ("speculative", {"drafter": "temporal_tree", "adaptive_draft": False}),
    ("heterospec", {"extra": "CALIBRATION", "adaptive_draft": False}),
    ("speculative", {"drafter": "head", "adaptive_draft": False, "draft_checkpoint": "HEAD"}),
    ("speculative", {"drafter": "model", "draft_checkpoint": "DRAFT", "gamma": 4}),
    ("vanilla_speculative", {"draft_checkpoint": "DRAFT", "gamma": 4}),
]


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint directory of another model, with other towers than half of the targets."""
    directory = tmp_path_factory.mktemp("draft")
    write_random(directory, tiny_config("qwen2_tied", "single"), seed=99)
    return str(directory)


@pytest.mark.parametrize(("language", "towers", "count", "seed"), CASES)
def test_every_lossless_decoding_equals_generate(
    language: str, towers: str, count: int, seed: int, draft: str, tmp_path: Path
) -> None:
    checkpoint = tiny(tiny_config(language, towers), dim=count, seed=seed)
    resets = LONG_RESETS if count == 32 else RESETS
    events = stream(FRAMES, resets, seed)
    expected = play(engine_of(checkpoint, "generate"), events)
    assert len(expected) == FRAMES
    assert len({answer.tokens for answer in expected.values()}) > FRAMES // 3  # a real stream
    save_head(tmp_path, recursive_head(checkpoint.config, count, count, seed))
    named = {"DRAFT": draft, "HEAD": str(tmp_path)}
    for decoding, options in SCHEDULES:
        named = {**named, "CALIBRATION": write_calibration(tmp_path, count)}
        chosen = {k: named.get(v, v) if isinstance(v, str) else v for k, v in options.items()}
        engine = engine_of(checkpoint, decoding, **chosen)
        assert engine.decoder.decoding.lossless
        answers = play(engine, events)
        wrong = [s for s, a in answers.items() if a.tokens != expected[s].tokens]
        assert not wrong, f"{decoding} {options} differs at frames {wrong}"
        assert sorted(answers) == _answered(engine.decoder.decoding.depth, resets)
        if decoding != "vanilla_speculative":
            assert max(a.target_passes for a in answers.values()) <= count


def _answered(depth: int, resets: dict[int, str]) -> list[int]:
    """Frames that get an answer: all but the last depth - 1 before every reset and the end."""
    starts = sorted(resets)
    ends = [*starts[1:], FRAMES]
    return [f for a, b in zip(starts, ends, strict=True) for f in range(a, b - depth + 1)]


@pytest.mark.parametrize("other", [{"make_model": transformers_model}, {"attention": "torch"}])
@pytest.mark.parametrize("language", ["llama_gqa", "qwen2_tied"])
@pytest.mark.parametrize("decoding", ["autoregressive", "actionflow", "speculative"])
def test_other_layers_say_the_same(language: str, decoding: str, other: dict[str, Any]) -> None:
    checkpoint = tiny(tiny_config(language), seed=11)
    events = stream(12, {0: TEXTS[0]}, seed=11)
    own = play(engine_of(checkpoint, decoding), events)
    second = play(engine_of(checkpoint, decoding, **other), events)
    assert {s: a.tokens for s, a in own.items()} == {s: a.tokens for s, a in second.items()}


def test_two_engines_of_one_checkpoint_agree() -> None:
    """Loading fuses tensors in place; a second engine of the same tensors must not notice."""
    checkpoint = tiny(seed=12)
    events = stream(4, {0: TEXTS[0]})
    first, second = (play(engine_of(checkpoint), events) for _ in range(2))
    assert [a.tokens for a in first.values()] == [a.tokens for a in second.values()]
