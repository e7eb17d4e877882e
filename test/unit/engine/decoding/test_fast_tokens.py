"""pi0-FAST's tokens: drafts that change nothing, the end of an answer, graphs, odd tokenizers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.engine import CLOCK, Again
from vla_ros.core.types import Executing, Observation, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.decoding.acceptance import Exact
from vla_ros.engine.decoding.autoregressive import Autoregressive
from vla_ros.engine.decoding.base import up_to
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.decoding.draft_heads import RecursiveConfig, RecursiveHead
from vla_ros.engine.decoding.draft_tree import Budget, Cost, branches
from vla_ros.engine.decoding.drafters import GPU, Costs, Draft, Drafter
from vla_ros.engine.decoding.fast_drafter import FastDrafter, shifted, worthwhile
from vla_ros.engine.decoding.head_drafters import FastHeadDrafter
from vla_ros.engine.decoding.speculative import TreeSpeculative
from vla_ros.engine.engine import Engine, Inference
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.registry import family_of
from vla_ros.engine.io.fast_tokens import FastTokenizer, FastTokens, write_fast_tokenizer
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.request import Request, StageTimer
from vla_ros.engine.models.language.base import tap_layers

SOURCE = "random:pi0_fast-small"
PREFIX, END, LAST = (500, 501, 502), 7, 400


def engine_of(capture: Capture | None = None, seed: int = 1, **options: Any) -> Engine:
    place = Placement(torch.device("cpu"), torch.float32, capture)
    policy = family_of(SOURCE).load(SOURCE, LoadOptions(), place, seed=seed)
    engine = Engine(policy, EngineOptions(SOURCE, **options))
    engine.reset("pick up the red cube")
    return engine


def frame(number: int, **more: Any) -> Observation:
    random = np.random.default_rng(number // 2)  # every image twice: the second is guessed
    images = random.integers(0, 255, (2, 56, 56, 3), np.uint8)
    state = random.normal(size=9).round(1)
    return Observation(number, number, 0, images[0], images[1], state, **more)


def said(engine: Engine, count: int = 4) -> list[Inference]:
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
    {"decoding": "speculative", "drafter": "temporal_tree"},
    {"decoding": "speculative", "drafter": "temporal_tree", "adaptive_draft": False},
])  # fmt: skip
def test_drafts_change_no_token(plain: list[Inference], options: dict[str, Any]) -> None:
    found = said(engine_of(**options))
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    assert all(len(one.tokens) == one.target_passes for one in plain)
    if not options.get("adaptive_draft", True):
        assert sum(sum(one.drafted) for one in found) >= len(found)


@pytest.mark.parametrize("options", [
    {"decoding": "autoregressive"}, {"decoding": "speculative"},
    {"decoding": "speculative", "drafter": "temporal_tree"},
])  # fmt: skip
def test_graphs_change_no_token_and_all_are_made_before_service(
    plain: list[Inference], options: dict[str, Any]
) -> None:
    """Prompts whose length follows the state are padded, and nothing sees the padding."""
    engine = engine_of(Again(), **options, adaptive_draft=False)
    found = said(engine, 3)
    assert [one.tokens for one in found] == [one.tokens for one in plain[:3]]
    assert engine.captures > 4
    assert all(one.captures == 0 for one in found)


def test_an_end_marker_ends_the_answer(plain: list[Inference]) -> None:
    """Whatever token it is: what a model says is cut behind it, and no pass is made for more."""
    whole = plain[0].tokens
    place = next(n for n in range(12, 60) if whole[n] not in whole[:n])
    for options in (
        {"decoding": "autoregressive"}, {"adaptive_draft": False},
        {"decoding": "speculative", "drafter": "temporal_tree", "adaptive_draft": False},
    ):  # fmt: skip
        engine = engine_of(**options)
        engine.model.ends = whole[place]
        engine = Engine(engine.policy, engine.options)
        engine.reset("pick up the red cube")
        found = said(engine, 1)[0]
        assert found.tokens == whole[: place + 1]
        assert found.target_passes <= place + 1


class Shown:
    """A drafter that is asked without an engine."""

    def __init__(self, tokens: FastTokens, wide: bool, costs: Costs | None = None) -> None:
        self.it = FastDrafter(tokens, torch.device("cpu"), Budget(), costs, wide)

    def __call__(self, stamp: int, executing: Executing | None, known: list[int]) -> Draft:
        stages = StageTimer(Timeline(0), CLOCK, torch.device("cpu"))
        observation = Observation(stamp, stamp, 0, np.zeros((1, 1, 3), np.uint8),
                                  executing=executing)  # fmt: skip
        self.it.begin(Request(stamp, torch.zeros(1, 1), stages, observation=observation))
        return self.it.propose(known, 100)


def path_of(count: int) -> Any:
    when = np.linspace(0, 2, count)[:, None]
    return np.concatenate((np.sin(when), np.cos(when), when - 1), 1)


def test_the_draft_is_the_last_chunk_moved_on(tokens: FastTokens) -> None:
    path = path_of(14)
    before = tokens.encode(path[:10])
    drafter = Shown(tokens, wide=False)

    def proposed(stamp: int, executing: Executing | None, known: list[int]) -> list[int]:
        draft = drafter(stamp, executing, known)
        assert draft.parents == tuple(range(-1, len(draft.tokens) - 1)), "a chain"
        return list(draft.tokens.tolist())

    assert proposed(1, None, []) == list(PREFIX), "what is always said, and no more"
    assert proposed(1, None, list(PREFIX)) == []
    drafter.it.observe(before, before)
    assert proposed(2, None, []) == before[:-1][:24]
    assert proposed(2, Executing(1, 2, 0), list(PREFIX)) != before[3:-1]
    moved = shifted(tokens, tokens.coefficients(before), 2)
    spelled = [LAST - t for t in tokens.tokenizer.spelled(moved)]
    assert proposed(2, Executing(1, 2, 0), list(PREFIX)) == spelled, "no end marker: it is free"
    # behind a wrong guess it is spelled anew from the coefficient that was reached
    other = tokens.tokenizer.spelled(moved.flatten()[:1] + 9)
    assert proposed(2, Executing(1, 2, 0), [*PREFIX, *(LAST - t for t in other)]) == [
        LAST - t for t in tokens.tokenizer.spelled(moved.flatten()[1:])
    ]
    # within a letter of two bytes it goes on with the second
    assert len(other) == 2
    assert proposed(2, Executing(1, 2, 0), [*PREFIX, spelled[0]]) == spelled[1:]
    assert proposed(2, None, [*PREFIX, 600]) == [], "what is no action token is no place"


def branches_of(draft: Draft) -> set[tuple[int, ...]]:
    assert draft.parents is not None
    said = draft.tokens.tolist()
    return {tuple(said[n] for n in branch) for branch in branches(draft.parents)}


def test_a_tree_holds_the_chain_and_what_is_off_by_one(tokens: FastTokens) -> None:
    """An answer one of whose first coefficients is off by one is in the tree, as far as it goes."""
    chunk = tokens.decode(tokens.encode(path_of(10)))
    chain, tree = Shown(tokens, wide=False), Shown(tokens, wide=True)
    own = tokens.encode(chunk)
    for one in (chain, tree):
        one(1, None, [])
        one.it.observe(own, own)
    straight = tuple(chain(2, None, list(PREFIX)).tokens.tolist())
    found = branches_of(tree(2, None, list(PREFIX)))
    assert len(found) == Budget().alone, "no branch is there twice, and the budget is used"
    assert straight[:8] in found
    for place in range(3):
        for off in (1, -1):
            other = tokens.coefficients(own).flatten()
            other[place] += off
            spelled = tuple(LAST - t for t in tokens.tokenizer.spelled(other))
            begun = next(n for n, (a, b) in enumerate(zip(spelled, straight, strict=False))
                         if a != b)  # fmt: skip
            assert spelled[: begun + 2] in found


def test_a_tree_follows_which_coefficients_are_off(tokens: FastTokens) -> None:
    """What always comes as expected has no alternative; what never does has those that came."""
    drafter = Shown(tokens, wide=True, costs=GPU)
    assert len(drafter(0, None, list(PREFIX)).tokens) == 0, "nothing is drafted unproven"
    still = tokens.encode(tokens.decode(tokens.encode(path_of(10))))
    other = tokens.coefficients(still)
    other[0, 0] += 1
    for stamp in range(1, 9):  # the first coefficient goes to and fro
        own = tokens.encode(tokens.tokenizer.chunk(other)) if stamp % 2 else still
        drafter(stamp, None, [])
        drafter.it.observe(own, own)
    chances = drafter.it.chances
    assert chances[0, 0] < 0.5 < chances[0, 1:].sum()
    assert chances[1:, 0].min() > 0.9
    found = branches_of(drafter(9, None, list(PREFIX)))
    now = tokens.coefficients(still).flatten()
    for off in (0, 1):
        now[0] += off
        spelled = tuple(LAST - t for t in tokens.tokenizer.spelled(now))
        assert spelled[:10] in found


def test_a_draft_is_as_large_as_pays() -> None:
    cost = Cost(0.08, 0.25)
    chain = [(0.9**n, n, (7,) * n) for n in range(1, 31)]
    assert worthwhile([(0.0, 1, (7,))], cost) == []
    assert worthwhile([(0.3, 1, (7,))], cost) == [], "more than its token costs, not a draft"
    assert worthwhile(chain, cost) == chain[:13]
    assert worthwhile(chain[:5], cost) == chain[:5]
    assert worthwhile(chain, cost, step=8) == chain[:16]


@lru_cache
def random_engine(seed: int, acting: bool) -> Engine:
    """Of random weights; ``acting``: it says nothing but action tokens, those of the small FAST
    tokenizer, and so no end marker unless one of them is made it."""
    engine = engine_of(seed=seed)
    head = engine.model.decoder.head
    assert isinstance(head, torch.Tensor)
    if acting:
        head[: LETTERS.start], head[LETTERS.stop :] = 0.0, 0.0
    return engine


LETTERS = range(316, 577)  # action tokens: the small tokenizer's, backwards


class Guesses(Drafter):
    """Trees whose every node is the right token or another one, the end marker among them."""

    def __init__(self, own: tuple[int, ...], ends: int, random: np.random.Generator) -> None:
        self._own, self._ends, self._random = own, ends, random

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        count = int(self._random.integers(0, 20))
        parents, levels, tokens = list[int](), list[int](), list[int]()
        for node in range(count):
            parent = (
                int(self._random.integers(-1, node)) if self._random.random() < 0.4 else node - 1
            )
            level = 1 if parent < 0 else levels[parent] + 1
            place = len(prefix) + level - 1
            if level > limit:
                break
            right = self._own[place] if place < len(self._own) else self._ends
            other = int(self._random.integers(0, 500))
            parents.append(parent)
            levels.append(level)
            tokens.append(int(self._random.choice([right, other, self._ends], p=[0.7, 0.2, 0.1])))
        return Draft(torch.tensor(tokens, dtype=torch.long), parents=tuple(parents))


@settings(max_examples=15, deadline=None)
@given(data=st.data(), seed=st.integers(1, 3), number=st.integers(0, 500), acting=st.booleans())
def test_no_tree_changes_a_token(data: st.DataObject, seed: int, number: int, acting: bool) -> None:
    """Whatever is drafted, whichever token is the end marker and wherever it lies."""
    engine = random_engine(seed, acting)
    model, longest, frames = engine.model, engine.policy.config.longest, frame(number)
    request = engine.encode(frames, Timeline(0), CLOCK)
    model.ends, count = None, 16
    whole = Autoregressive(model, count, longest).step(request).tokens
    model.ends = data.draw(st.sampled_from([None, 7, *whole]))
    plain = tuple(up_to(list(whole), model.ends))
    guesses = Guesses(whole, model.ends or 7, np.random.default_rng(number))
    trees = TreeSpeculative(model, count, longest, guesses, Exact(),
                            budget=Budget(20, 20))  # fmt: skip
    found = trees.step(request)
    assert found is not None
    assert found.tokens == plain
    assert found.target_passes <= len(plain)


@pytest.mark.parametrize("wide", [False, True])
def test_drafts_between_odd_answers_change_no_token(
    wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of random weights are no chunk: cut anywhere, with bytes that are no letter. What is
    drafted from one that is taken for a chunk is no other answer."""
    engine = random_engine(1, acting=True)
    model, longest, count = engine.model, engine.policy.config.longest, 24
    monkeypatch.setattr(FastTokens, "whole", lambda self, tokens: True)
    drafter = FastDrafter(model.actions, model.device, Budget(), None, wide)
    trees = TreeSpeculative(model, count, longest, drafter, Exact(), budget=Budget())
    plain = Autoregressive(model, count, longest)
    drafted = 0
    for number in range(5):
        executing = Executing(number - 1, number % 3, 0)
        request = engine.encode(frame(number, executing=executing), Timeline(0), CLOCK)
        model.ends = None
        wanted = plain.step(request).tokens
        model.ends = wanted[12] if number == 3 else None
        found = trees.step(request)
        assert found is not None
        assert found.tokens == tuple(up_to(list(wanted), model.ends))
        drafted += sum(found.drafted)
    assert drafted > 20


def head_for(model: Any, tokens: int, seed: int = 0) -> RecursiveHead:
    """A head of random weights that believes what is expected, and trees of the same size
    everywhere."""
    text, actions = model.config.shapes.text, model.actions
    layers = tap_layers(text.layers)
    config = RecursiveConfig(layers, text.hidden_size, tokens, 1, actions.bins, 32, 2, False)
    torch.manual_seed(seed)
    head = RecursiveHead(config)
    with torch.no_grad():
        head.trust.copy_(head.norm.weight * 0.1)
    return head.requires_grad_(False).eval()


@pytest.mark.parametrize(("tokens", "options"), [
    (60, {}), (60, {"adaptive_draft": False}), (20, {"adaptive_draft": False, "gamma": 3}),
])  # fmt: skip
def test_a_draft_head_changes_no_token(
    plain: list[Inference], options: dict[str, Any], tokens: int, tmp_path: Path
) -> None:
    """From its folder; one that knows shorter answers than come, too; in sessions, which share it;
    and in graphs, all of them made before service."""
    save_head(tmp_path, head_for(engine_of().model, tokens))
    options |= {"decoding": "speculative", "drafter": "head", "draft_checkpoint": str(tmp_path)}
    engine = engine_of(**options)
    for one in (engine, engine.session(), engine_of(Again(), **options)):
        one.reset("pick up the red cube")
        found = said(one, 2)
        assert [one.tokens for one in found] == [one.tokens for one in plain[:2]]
        assert all(one.captures == 0 for one in found)
        if not options.get("adaptive_draft", True):
            assert sum(sum(one.drafted) for one in found) > 20
    first, second = (one.decoder.decoding.drafter for one in (engine, engine.session()))
    assert first._head.head is second._head.head  # type: ignore[attr-defined]


@settings(max_examples=12, deadline=None)
@given(data=st.data(), seed=st.integers(1, 3), head=st.integers(0, 9), acting=st.booleans())
def test_no_head_changes_a_token(data: st.DataObject, seed: int, head: int, acting: bool) -> None:
    """Whatever the head guesses, over odd answers, whichever token is the end marker: one of the
    action tokens, or one that no head knows."""
    engine = random_engine(seed, acting)
    model, longest, count = engine.model, engine.policy.config.longest, 16
    drafter = FastHeadDrafter(
        model.actions, model.device, Budget(8, 20), head_for(model, count, head),
        model.decoder.embed,
    )  # fmt: skip
    trees = TreeSpeculative(model, count, longest, drafter, Exact(), budget=Budget(8, 20))
    plain, drafted = Autoregressive(model, count, longest), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FastTokens, "whole", lambda self, tokens: True)
        for number in range(4):
            executing = Executing(number - 1, 0, 0)
            request = engine.encode(frame(number, executing=executing), Timeline(0), CLOCK)
            model.ends = None
            whole = plain.step(request).tokens
            model.ends = data.draw(st.sampled_from([None, 7, *whole]))
            found = trees.step(request)
            assert found is not None
            assert found.tokens == tuple(up_to(list(whole), model.ends))
            assert found.target_passes + sum(found.accepted) >= len(found.tokens)
            drafted += sum(found.drafted)
    assert drafted  # also where every answer ends early


def test_a_head_is_told_the_spelling_and_what_it_names_is_drafted(tokens: FastTokens) -> None:
    """A head that believes nothing but what is expected drafts what the last chunk says; what is
    no action token, and what it was not shown, it does not draft behind."""
    config = RecursiveConfig((0,), 8, 40, 1, tokens.bins, 16, 2, False)
    head = RecursiveHead(config).requires_grad_(False)
    for parameter in head.parameters():
        parameter.zero_()
    drafter = FastHeadDrafter(tokens, torch.device("cpu"), Budget(), head,
                              lambda t: torch.zeros(len(t), 8))  # fmt: skip
    stages = StageTimer(Timeline(0), CLOCK, torch.device("cpu"))
    own = tokens.encode(path_of(10))
    drafter.begin(Request(1, torch.zeros(1, 1), stages))
    drafter.observe(own, own)
    drafter.begin(Request(2, torch.zeros(1, 1), stages))
    assert drafter.propose([], 30).tokens.tolist()[:3] == list(PREFIX), "behind the prompt: spelled"
    drafter.observe_taps(torch.zeros(4, 8), range(3))
    assert drafter.passes == 0
    likeliest = max(branches_of(drafter.propose(own[:3], 30)), key=len)
    assert len(likeliest) > 3
    assert list(likeliest) == own[3 : 3 + len(likeliest)]
    assert drafter.passes > 1
    assert drafter.propose([*own[:3], 600], 30).tokens.tolist() == [], "which it was not shown"
    assert drafter.expected([*PREFIX, 600], 3) == ([-1] * 3, [-1] * 3)


def test_a_head_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    head = head_for(engine_of().model, 61)
    shape = head.config
    other = RecursiveHead(replace(shape, bins=9, tokens=60))
    for number, (made, line) in enumerate((
        (other, "another target: 9 bins"),
        (head, "61 tokens an action, the target has 60"),
    )):  # fmt: skip
        save_head(tmp_path / str(number), made)
        with pytest.raises(ValueError, match=line):
            engine_of(decoding="speculative", drafter="head",
                      draft_checkpoint=str(tmp_path / str(number)))  # fmt: skip


def test_what_is_no_whole_chunk_is_not_drafted_from(tokens: FastTokens) -> None:
    """Nor does a byte that is no letter, in an answer that has the right length, end anything."""
    own, odd = tokens.encode(path_of(10)), Shown(tokens, wide=True)
    odd(1, None, [])
    for wrong in ([*PREFIX, END], own[:-3], [*own[:-1], own[4]], [600, *own]):
        odd.it.observe(wrong, wrong)
        assert len(odd(2, None, list(PREFIX)).tokens) == 0
    lead = tokens.tokenizer.spelled(np.array([9.0]))[0]
    broken = [*PREFIX, *(LAST - lead for _ in range(30)), END]
    odd.it.observe(broken, broken)
    for moved in range(4):
        odd(2, Executing(2, moved, 0), list(PREFIX))


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
        (
            {"decoding": "speculative", "drafter": "model"},
            "drafter temporal, temporal_tree or head",
        ),
        ({"decoding": "speculative", "drafter": "head"}, "no draft_head: make one with `vla-ros"),
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
