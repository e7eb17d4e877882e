"""Chunks said token by token: the same tokens whatever drafts them, and drafts that hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.calibrations import write_calibration
from support.engine import (
    CLOCK,
    CPU,
    TEXTS,
    engine_of,
    observation,
    play,
    stream,
    tiny,
    tiny_config,
)
from vla_ros.core.types import Executing, Timeline
from vla_ros.engine.decoding.acceptance import Exact
from vla_ros.engine.decoding.drafters import TemporalDrafter
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.engine.layers.request import Request
from vla_ros_lab.heterospec import shown

CHUNK, COUNT = 8, 56
CONFIG = replace(tiny_config(), chunk=CHUNK)
TREE = {"drafter": "temporal_tree"}


def said(answers) -> dict[int, tuple[int, ...]]:  # type: ignore[no-untyped-def]
    return {stamp: answer.tokens for stamp, answer in answers.items()}


def test_it_answers_a_chunk_after_one_prefill() -> None:
    engine = engine_of(tiny(CONFIG, seed=2))
    assert (engine.info.chunk_length, engine.info.max_tokens) == (CHUNK, COUNT)
    answers = play(engine, stream(2, {0: TEXTS[0]}, seed=3))
    for answer in answers.values():
        assert answer.target_passes == len(answer.tokens) == COUNT
        assert answer.actions.shape == (CHUNK, 7)
        values = engine.model.actions.decode(answer.tokens).reshape(CHUNK, 7)
        assert np.allclose(answer.actions, engine.robot.normalizer.restore(values))


@pytest.mark.long
def test_drafted_or_not_it_says_the_same() -> None:
    checkpoint = tiny(CONFIG, seed=2)
    events = stream(14, {0: TEXTS[0], 9: TEXTS[1]}, seed=3)
    expected = said(play(engine_of(checkpoint, "generate"), events[:4]))
    plain = said(play(engine_of(checkpoint), events))
    assert {stamp: plain[stamp] for stamp in expected} == expected
    for options in (
        {}, {"drafter": "temporal_linear"}, {"fixed_shapes": True}, {"gamma": 9}, TREE,
        {**TREE, "adaptive_draft": False},
    ):  # fmt: skip
        answers = play(engine_of(checkpoint, "speculative", **options), events)
        assert said(answers) == plain, options
        assert sum(sum(a.accepted) for a in answers.values()) > 10, options


def test_heterospec_says_the_same(tmp_path: Path) -> None:
    checkpoint = tiny(replace(CONFIG, chunk=2), seed=2)
    events = stream(20, {0: TEXTS[0], 9: TEXTS[1]}, seed=3)
    calibration = write_calibration(tmp_path, 14)
    engine = engine_of(checkpoint, "heterospec", extra=calibration, adaptive_draft=False)
    answers = play(engine, events)
    assert said(answers) == said(play(engine_of(checkpoint), events))
    assert sum(sum(a.accepted) for a in answers.values()) > 10


def test_what_was_said_is_replayed_as_it_would_be_drafted() -> None:
    """Four of eight steps are executed: half of a chunk has been said before."""
    slides = Slides()
    frames = shown([[slides.chunk(step) for step in range(0, 24, 4)]], range(31744, 32000),
                   steps=CHUNK)  # fmt: skip
    assert frames[0].offer is None
    for frame, step in zip(frames[2:], range(8, 24, 4), strict=True):
        assert frame.offer is not None
        there = zip(frame.offer.tokens[:28], slides.chunk(step)[:28], strict=True)
        assert all(token in tokens[:3] for tokens, token in there)
        assert -1 < max(frame.ranks[:28]) <= 2


class Slides:
    """A target whose chunk at step t says the steps t to t + 7 of one long line."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.line = 31800 + rng.integers(0, 100, (60, 7))

    def chunk(self, step: int) -> list[int]:
        return self.line[step : step + CHUNK].flatten().tolist()


def asked(stamp: int, executing: Executing | None) -> Request:
    seen = replace(observation(stamp, np.zeros((2, 2, 3), np.uint8)), executing=executing)
    return Request(stamp, None, None, observation=seen)  # type: ignore[arg-type]


@pytest.mark.parametrize("told", [False, True])
def test_what_the_last_chunk_said_of_the_same_steps_is_drafted(told: bool) -> None:
    """Four of eight steps are executed: the other four are drafted, and then the last of them."""
    slides, drafter = Slides(), TemporalDrafter(
        ActionTokens(32000), COUNT, CPU, Exact().matches, adaptive=False, steps=CHUNK
    )  # fmt: skip
    for number, step in enumerate(range(0, 20, 4)):
        now = Executing(number, 4, 1) if told and number else None
        drafter.begin(asked(number + 1, now))
        guess = drafter.propose([], COUNT - 1).tokens.tolist()
        if number > 1 or (told and number):
            assert guess[:28] == slides.chunk(step)[:28]
            assert guess[28:35] == guess[21:28]
        drafter.observe(slides.chunk(step), slides.chunk(step))
    assert min(drafter.statistics.rates[:28]) > 0.7 > 0.1 > max(drafter.statistics.rates[35:])


def test_a_still_scene_costs_one_pass() -> None:
    engine = engine_of(tiny(CONFIG, seed=2), "speculative")
    image = stream(1, {})[0].image
    engine.reset(TEXTS[0])
    passes = []
    for stamp in range(1, 8):
        # It repeats itself: told that nothing was executed, it is drafted whole.
        seen = replace(observation(stamp, image), executing=Executing(stamp - 1, 0, 0))
        start = CLOCK.steady_ns()
        answer = engine.step(seen, Timeline(start).mark("queue", start), CLOCK)
        assert answer is not None
        passes.append(answer.target_passes)
    assert passes[-1] == 1


@pytest.mark.parametrize(
    ("decoding", "options", "reason"),
    [
        ("actionflow", {}, "56 frames"),
        ("naive_pipe", {}, "56 frames"),
        ("speculative", {"drafter": "head"}, "vla-ros train --head --target"),
    ],
)
def test_what_is_not_for_chunks_says_so(
    decoding: str, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        engine_of(tiny(CONFIG), decoding, **options)
