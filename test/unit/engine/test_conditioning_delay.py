"""A token policy that is told how old its image will be when its action is executed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.engine import CLOCK, CPU, engine_of, images, tiny, tiny_config
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine import CheckpointError, EngineOptions, load_engine
from vla_ros.engine.families.openvla import load_checkpoint, write_random

TOLD = replace(tiny_config(), max_delay=8)
TEXT = "pick up the red cube"


def seen(number: int, delay_steps: int = 0) -> Observation:
    (image,) = images(1)
    return Observation(number, number, number, image, delay_steps=delay_steps)


def test_only_the_delay_s_token_differs_and_what_it_says_matters() -> None:
    engine = engine_of(tiny(TOLD))
    assert engine.info.max_delay == 8
    engine.reset(TEXT)
    prompts = [engine.encode(seen(1, d), Timeline(0), CLOCK).prompt for d in range(9)]
    for prompt in prompts[1:]:
        assert prompt.shape == prompts[0].shape, "one layout, one graph for all delays"
        assert (prompt != prompts[0]).any(1).sum() == 1
    said = {engine.step(seen(2 + d, d), Timeline(0), CLOCK).tokens for d in range(9)}
    assert len(said) > 1


def test_a_longer_delay_than_it_was_trained_for_is_the_longest() -> None:
    engine = engine_of(tiny(TOLD))
    engine.reset(TEXT)
    longest, longer = (engine.encode(seen(1, d), Timeline(0), CLOCK).prompt for d in (8, 30))
    assert torch.equal(longest, longer)


def test_others_have_the_prompt_they_had() -> None:
    engine, told = engine_of(tiny()), engine_of(tiny(TOLD))
    assert engine.info.max_delay == 0
    assert engine.policy.tokenizer(TEXT, 3) == engine.policy.tokenizer(TEXT)
    engine.reset(TEXT)
    answer = engine.step(seen(1, 3), Timeline(0), CLOCK)
    assert answer is not None and answer.conditioning_delay == 0
    assert len(told.policy.tokenizer(TEXT, 3)) > len(engine.policy.tokenizer(TEXT))


@pytest.mark.parametrize("decoding", ["speculative", "actionflow"])
def test_decodings_say_the_same_whatever_the_delay(decoding: str) -> None:
    """Frame by frame another delay: each answer is that of its own frame's prompt."""
    plain, fast = engine_of(tiny(TOLD)), engine_of(tiny(TOLD), decoding)
    wanted, found = {}, {}
    for engine, told in ((plain, wanted), (fast, found)):
        engine.reset(TEXT)
        for number, image in enumerate(images(30), 1):
            frame = Observation(number, number, number, image, delay_steps=number % 9)
            answer = engine.step(frame, Timeline(0), CLOCK)
            if answer is not None:
                told[answer.stamp_ns] = answer.tokens
                assert answer.conditioning_delay == min(answer.stamp_ns % 9, 8), "of its own frame"
    assert len(found) >= 24 and all(wanted[stamp] == tokens for stamp, tokens in found.items())


def test_a_checkpoint_says_that_it_knows_its_age(tmp_path: Path) -> None:
    write_random(tmp_path / "it", TOLD, seed=1)
    assert load_checkpoint(str(tmp_path / "it"), CPU, torch.float32).config.max_delay == 8
    engine = load_engine(EngineOptions(str(tmp_path / "it")))
    assert engine.info.max_delay == 8
    path = tmp_path / "it" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_delay": 12}))
    with pytest.raises(CheckpointError, match="max_delay is 12: a prompt names a delay by one"):
        load_checkpoint(str(tmp_path / "it"), CPU, torch.float32)
