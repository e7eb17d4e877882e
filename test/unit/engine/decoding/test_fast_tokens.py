"""pi0-FAST's tokens: drafts that change nothing, the end of an answer, graphs, odd tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.engine import CLOCK, Again
from vla_ros.core.types import Executing, Observation, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.decoding.draft_tree import Budget, Cost
from vla_ros.engine.decoding.fast_drafter import FastDrafter, shifted, worthwhile
from vla_ros.engine.decoding.request import Request, StageTimer
from vla_ros.engine.engine import FastEngine, Inference
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.io.fast_tokens import FastTokenizer, FastTokens, write_fast_tokenizer
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.models.family import LoadOptions, Placement
from vla_ros.engine.models.registry import family_of

SOURCE = "random:pi0_fast-small"
PREFIX, END, LAST = (500, 501, 502), 7, 400


def engine_of(capture: Capture | None = None, **options: Any) -> FastEngine:
    place = Placement(torch.device("cpu"), torch.float32, capture)
    policy = family_of(SOURCE).load(SOURCE, LoadOptions(), place, seed=1)
    engine = FastEngine(policy, EngineOptions(SOURCE, **options))
    engine.reset("pick up the red cube")
    return engine


def frame(number: int, **more: Any) -> Observation:
    random = np.random.default_rng(number // 2)  # every picture twice: the second is guessed
    images = random.integers(0, 255, (2, 56, 56, 3), np.uint8)
    state = random.normal(size=9).round(1)
    return Observation(number, number, 0, images[0], images[1], state, **more)


def said(engine: FastEngine, count: int = 4) -> list[Inference]:
    found = [engine.step(frame(n), Timeline(0), CLOCK) for n in range(count)]
    return [one for one in found if one is not None]


@pytest.fixture(scope="module")
def plain() -> list[Inference]:
    return said(engine_of(decoding="autoregressive"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> FastTokens:
    folder = tmp_path_factory.mktemp("fast") / "it"
    write_fast_tokenizer(folder)
    return FastTokens(FastTokenizer(folder), 10, 3, LAST, 2, PREFIX, END)


@pytest.mark.parametrize("options", [
    {}, {"decoding": "speculative"}, {"decoding": "speculative", "adaptive_draft": False},
    {"decoding": "speculative", "adaptive_draft": False, "gamma": 3},
])  # fmt: skip
def test_drafts_change_no_token(plain: list[Inference], options: dict[str, Any]) -> None:
    found = said(engine_of(**options))
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    assert all(len(one.tokens) == one.target_passes for one in plain)
    if not options.get("adaptive_draft", True):
        assert sum(sum(one.drafted) for one in found) >= len(found)


@pytest.mark.parametrize("decoding", ["autoregressive", "speculative"])
def test_graphs_change_no_token_and_all_are_made_before_service(
    plain: list[Inference], decoding: str
) -> None:
    """Prompts whose length follows the state are padded, and nothing sees the padding."""
    engine = engine_of(Again(), decoding=decoding, adaptive_draft=False)
    found = said(engine, 3)
    assert [one.tokens for one in found] == [one.tokens for one in plain[:3]]
    assert engine.captures > 4
    assert all(one.captures == 0 for one in found)


def test_an_end_marker_ends_the_answer(plain: list[Inference]) -> None:
    """Whatever token it is: what a model says is cut behind it, and no pass is made for more."""
    whole = plain[0].tokens
    place = next(n for n in range(12, 60) if whole[n] not in whole[:n])
    for options in ({"decoding": "autoregressive"}, {"adaptive_draft": False}):
        engine = engine_of(**options)
        engine.model.ends = whole[place]
        engine = FastEngine(engine.policy, engine.options)
        engine.reset("pick up the red cube")
        found = said(engine, 1)[0]
        assert found.tokens == whole[: place + 1]
        assert found.target_passes <= place + 1


def test_the_draft_is_the_last_chunk_moved_on(tokens: FastTokens) -> None:
    when = np.linspace(0, 2, 14)[:, None]
    path = np.concatenate((np.sin(when), np.cos(when), when - 1), 1)
    before, now = tokens.encode(path[:10]), tokens.encode(path[2:12])
    drafter = FastDrafter(tokens, torch.device("cpu"), Budget(), None)
    stages = StageTimer(Timeline(0), CLOCK, torch.device("cpu"))

    def proposed(stamp: int, executing: Executing | None, known: list[int]) -> list[int]:
        observation = Observation(stamp, stamp, 0, np.zeros((1, 1, 3), np.uint8),
                                  executing=executing)  # fmt: skip
        drafter.begin(Request(stamp, torch.zeros(1, 1), stages, observation=observation))
        return drafter.propose(known, 100).tokens.tolist()

    assert proposed(1, None, []) == list(PREFIX), "what is always said, and no more"
    assert proposed(1, None, list(PREFIX)) == []
    drafter.observe(before, before)
    assert proposed(2, None, []) == before[:24]
    assert proposed(2, Executing(1, 2, 0), list(PREFIX)) != before[3:]
    moved = shifted(tokens, tokens.tokenizer.numbers([LAST - t for t in before[3:-1]])
                    .reshape(10, 3), 2)  # fmt: skip
    spelled = [LAST - t for t in tokens.tokenizer.spelled(moved)]
    assert proposed(2, Executing(1, 2, 0), list(PREFIX)) == [*spelled, END]
    # behind a wrong guess it is spelled anew from the coefficient that was reached
    assert proposed(2, Executing(1, 2, 0), [*PREFIX, now[3], LAST - 5]) == [
        *(LAST - t for t in tokens.tokenizer.spelled(moved.flatten()[2:])), END,
    ]  # fmt: skip
    assert proposed(2, None, [*PREFIX, 600]) == [], "what is no action token is no place"


def test_a_draft_is_as_long_as_pays() -> None:
    cost = Cost(0.08, 0.25)
    assert worthwhile(0, 0.0, 30, cost) == 0
    assert worthwhile(3, 0.0, 30, cost) == 3
    assert worthwhile(0, 0.9, 30, cost) == 13
    assert worthwhile(0, 0.9, 5, cost) == 5


def test_a_chunk_comes_back_but_for_rounding(tokens: FastTokens) -> None:
    chunk = np.random.default_rng(0).normal(size=(10, 3)).cumsum(0) / 5
    back = tokens.decode(tokens.encode(chunk))
    assert np.abs(back - chunk).max() < 0.5 / tokens.tokenizer.scale * 10**0.5
    assert np.array_equal(tokens.decode(tokens.encode(back)), back)


def test_a_beginning_that_is_none_is_refused_where_it_is_to_be_looked_at(
    tokens: FastTokens,
) -> None:
    with pytest.raises(InvalidAction, match="begins with the tokens"):
        tokens.decode([PREFIX[0], 9, END])
    assert not tokens.decode([*PREFIX[:2], END]).any()


def test_what_pi0_fast_cannot_do_is_one_line() -> None:
    for options, line in (
        ({"decoding": "actionflow"}, "of pi0_fast there are autoregressive, and speculative"),
        ({"decoding": "speculative", "drafter": "head"}, "drafter temporal and acceptance exact"),
        ({"decoding": "speculative", "acceptance": "relaxed"}, "acceptance exact"),
        ({"rtc_mode": "guided"}, "needs a solver to guide"),
        ({"flow_steps": 3}, "flow_steps: these options are for flow policies"),
        ({"center_crop": "always"}, "center_crop: these options are for token policies"),
    ):
        with pytest.raises(ValueError, match=line):
            load_engine(EngineOptions(SOURCE, **options))


@pytest.mark.parametrize(("file", "content", "line"), [
    ("processor_config.json", '{"scale": 0}', "scale is 0: wanted a finite number above 0"),
    ("processor_config.json", '{"processor_class": "Other"}', "processor_class is 'Other'"),
    ("processor_config.json", "{", "processor_config.json"),
    ("tokenizer.json", "{}", "tokenizer.json is no tokenizer"),
])  # fmt: skip
def test_a_damaged_fast_tokenizer_is_one_line(
    tmp_path: Path, file: str, content: str, line: str
) -> None:
    folder = tmp_path / "it"
    write_fast_tokenizer(folder)
    assert json.loads((folder / "processor_config.json").read_text())["min_token"] == -128
    (folder / file).write_text(content)
    with pytest.raises(CheckpointError, match=line) as caught:
        FastTokenizer(folder)
    assert "\n" not in str(caught.value)
