"""Prompts, bins and de-normalization, against the figures the family publishes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.engine import CheckpointError, InvalidAction
from vla_ros.engine.families.openvla import PRESETS
from vla_ros.engine.families.random import TEXT_VOCAB, build_tokenizer, write_tokenizer
from vla_ros.engine.io.tokens import (
    ActionTokens,
    Normalizer,
    PromptTokenizer,
    prompt_text,
    read_normalizer,
)

LLAMA, QWEN = ActionTokens(32000), ActionTokens(151921)


def test_the_corners_of_openvlas_table() -> None:
    values = LLAMA.decode([31999, 31872, 31745, 31744])
    np.testing.assert_allclose(values, [-0.99608, 0.0, 0.99608, 0.99608], atol=1e-5)
    assert LLAMA.encode(np.array([-1.0, 1.0, 5.0])) == [31999, 31744, 31744]
    assert (QWEN.first, QWEN.vocab - 1) == (151665, 151920)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_encoding_and_decoding_lose_less_than_a_bin(values: list[float]) -> None:
    decoded = LLAMA.decode(LLAMA.encode(np.array(values)))
    assert np.abs(decoded - values).max() <= 1.01 / 255


@given(st.integers(0, 255))
def test_bins_translate_between_vocabularies(index: int) -> None:
    for actions in (LLAMA, QWEN):
        assert actions.to_bin(actions.from_bin(index)) == index
    there = QWEN.from_bin(LLAMA.to_bin(31744 + index))
    assert LLAMA.decode([31744 + index]) == QWEN.decode([there])


@pytest.mark.parametrize("token", [0, 31743, 32000, 32063])
def test_other_tokens_are_refused(token: int) -> None:
    with pytest.raises(InvalidAction, match=f"token {token} is no action token"):
        LLAMA.decode([31900, token])


def test_prompts() -> None:
    openvla = "In: What action should the robot take to pick up the cup?\nOut:"
    assert prompt_text("openvla", " Pick up the CUP ") == openvla
    assert prompt_text("openvla-v0.1", "x").endswith(
        "questions. USER: What action should the robot take to x? ASSISTANT:"
    )
    assert prompt_text("qwen", "x").startswith("<|im_start|>system\nYou are Qwen, created by")


def test_the_small_tokenizer_is_the_same_every_time_and_spells_anything(tmp_path: Path) -> None:
    one, two = build_tokenizer(), build_tokenizer()
    assert one.get_vocab() == two.get_vocab()
    assert one.get_vocab_size() <= TEXT_VOCAB
    write_tokenizer(tmp_path / "tokenizer.json")
    config = PRESETS["small"]
    tokenizer = PromptTokenizer(tmp_path, config)
    ids = tokenizer("pick up the red cube and place it on the plate")
    assert ids[0] == 0
    assert len(ids) < 32
    odd = tokenizer("größe ☃ 🤖")
    assert max(odd) < TEXT_VOCAB
    assert tokenizer("pick up the red cube") != tokenizer("pick up the blue cube")


def test_the_empty_token_is_appended_once(tmp_path: Path) -> None:
    from dataclasses import replace

    write_tokenizer(tmp_path / "tokenizer.json")
    config = replace(PRESETS["small"], empty_token_id=7)
    assert PromptTokenizer(tmp_path, config)("open the drawer")[-1] == 7
    plain = PromptTokenizer(tmp_path, PRESETS["small"])("open the drawer")
    last = replace(PRESETS["small"], empty_token_id=plain[-1])
    assert PromptTokenizer(tmp_path, last)("open the drawer") == plain


def test_restoring_respects_the_mask() -> None:
    normalizer = Normalizer(np.array([-2.0, 0.0]), np.array([4.0, 1.0]), np.array([True, False]))
    np.testing.assert_allclose(normalizer.restore(np.array([[0.0, 0.3], [1.0, -0.3]])),
                               [[1.0, 0.3], [4.0, -0.3]])  # fmt: skip
    np.testing.assert_allclose(normalizer.normalize(np.array([9.0, 0.5])), [1.0, 0.5])


STATS = {"a": {"action": {"q01": [0.0], "q99": [1.0]}}, "b": {"action": {"min": [0.0]}}}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "unnorm_key is needed; the checkpoint has: a, b"),
        ("c", "'c' is unknown; the checkpoint has: a, b"),
        ("b", "lacks q01, q99; there is min"),
    ],
)
def test_a_wrong_key_is_refused_with_what_there_is(key: str | None, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_normalizer(STATS, key)


def test_the_only_key_needs_no_name() -> None:
    assert read_normalizer({"a": STATS["a"]}, None).dim == 1
