"""Drafters: what they propose, what they learn, and how vocabularies meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.engine import (
    CLOCK,
    CPU,
    TEXTS,
    engine_of,
    images,
    observation,
    play,
    stream,
    tiny,
    tiny_config,
)
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine.decoding.acceptance import Exact
from vla_ros.engine.decoding.draft_tree import Cost
from vla_ros.engine.decoding.drafters import AcceptanceStatistics, TemporalDrafter
from vla_ros.engine.decoding.speculative import Speculative
from vla_ros.engine.families.openvla import SMALL_VOCAB, in_memory, random_tensors, write_random
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.engine.layers.request import Reading
from vla_ros.engine.models.openvla import VLAModel
from vla_ros_lab.bench.drafters import MissDrafter
from vla_ros_lab.model_drafter import ModelDrafter

ACTIONS = ActionTokens(32000)


def temporal(linear: bool = False, adaptive: bool = False) -> TemporalDrafter:
    return TemporalDrafter(ACTIONS, 3, CPU, Exact().matches, linear, adaptive)


def tokens(drafter: TemporalDrafter, prefix: list[int], limit: int) -> list[int]:
    values: list[int] = drafter.propose(prefix, limit).tokens.tolist()
    return values


def test_repeat_proposes_the_last_action() -> None:
    drafter = temporal()
    assert tokens(drafter, [], 2) == []  # nothing known yet
    drafter.observe([31900, 31800, 31999], [31900, 31800, 31999])
    assert tokens(drafter, [], 2) == [31900, 31800]
    assert tokens(drafter, [5], 2) == [31800, 31999]
    drafter.forget()
    assert tokens(drafter, [], 2) == []


def test_linear_follows_the_motion_and_stays_in_the_bins() -> None:
    drafter = temporal(linear=True)
    drafter.observe([31900, 31990, 31745], [31900, 31990, 31745])
    drafter.observe([31910, 31999, 31744], [31910, 31999, 31744])
    assert tokens(drafter, [], 3) == [31920, 31999, 31744]


def test_drafts_come_from_the_targets_own_tokens() -> None:
    drafter = temporal()
    drafter.observe([31902, 31800, 31999], own=[31900, 31800, 31999])
    assert tokens(drafter, [], 1) == [31900]


def test_statistics_choose_how_long_a_draft_pays() -> None:
    statistics = AcceptanceStatistics(4)
    for _ in range(60):
        statistics.update([True, True, False, True])
    assert statistics.rates[0] > 0.99
    assert statistics.rates[2] < 0.01
    assert statistics.worthwhile(0, 4, Cost(draft=0.1, token=0.2)) == 2
    assert statistics.worthwhile(2, 2, Cost(0.1, 0.2)) == 0
    assert statistics.worthwhile(3, 4, Cost(0.1, 0.2)) == 1
    assert statistics.worthwhile(3, 4, Cost(0.9, 0.2)) == 0  # nor does it pay to ask


def test_a_guess_is_believed_once_it_has_been_right() -> None:
    """And not before: the first outcome counts fully, the second about half."""
    statistics, free = AcceptanceStatistics(2), Cost(0.0, 0.0)
    assert statistics.worthwhile(0, 2, free) == 0
    statistics.update([True, False])
    assert (statistics.rates, statistics.worthwhile(0, 2, free)) == ((1.0, 0.0), 1)
    statistics.update([False, True])
    assert statistics.rates == pytest.approx((0.9 / 1.9, 1.0 / 1.9))
    for _ in range(80):
        statistics.update([False, False])
    statistics.update([True, False])
    assert statistics.rates[0] == pytest.approx(0.1, abs=1e-3)


def test_a_drafter_that_is_never_right_never_drafts() -> None:
    """So that the default costs next to nothing where it does not help."""
    drafter = temporal(adaptive=True)
    for number in range(60):
        assert tokens(drafter, [], 2) == []
        drafter.observe([31800 + number] * 3, [31800 + number] * 3)


def test_a_drafter_that_is_always_wrong_switches_itself_off_and_on_again() -> None:
    drafter = temporal(adaptive=True)
    for number in range(40):
        own = [31800 + number, 31801 + number, 31802 + number]
        drafter.observe(own, own)
    assert tokens(drafter, [], 2) == []
    for _ in range(40):  # it watches without drafting
        drafter.observe([31900] * 3, [31900] * 3)
    assert tokens(drafter, [], 2) == [31900, 31900]


def test_a_still_scene_costs_one_pass() -> None:
    engine = engine_of(tiny(seed=2), "speculative")
    events = stream(1, {0: TEXTS[0]})
    still = [replace(events[0], stamp=i, text=None if i else TEXTS[0]) for i in range(12)]
    answers = play(engine, still)
    assert [answers[i].target_passes for i in range(2)] == [7, 7]  # no guess, then one unproven
    assert [answers[i].target_passes for i in range(2, 12)] == [1] * 10
    assert answers[5].drafted == answers[5].accepted == (1, 1, 1, 1, 1, 1, 0)


def test_without_drafts_speculation_is_autoregressive_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same packs, and the host reads once an action: what a useless drafter costs."""
    events, packs, reads = stream(12, {0: TEXTS[0]}, seed=7), [], []
    plain = play(engine_of(tiny(seed=2)), events)
    read = Reading.read
    monkeypatch.setattr(Reading, "read", lambda self: reads.append(1) or read(self))
    for decoding in ("autoregressive", "auto"):
        engine, seen = engine_of(tiny(seed=2), decoding), []
        if decoding == "auto":
            answers = {s: a.tokens for s, a in plain.items()}
            engine.decoder.decoding.drafter = MissDrafter(engine.model, 7, answers, adaptive=True)
        run = engine.decoder.decoding.runner._pass
        engine.decoder.decoding.runner._pass = lambda way, layouts, *fed, run=run, seen=seen: (
            seen.extend(layouts) or run(way, layouts, *fed)
        )
        assert {s: a.tokens for s, a in play(engine, events).items()} == {
            s: a.tokens for s, a in plain.items()
        }
        packs.append(seen)
    assert packs[0] == packs[1]
    assert len(reads) == 2 * len(events)


def test_with_graphs_no_shape_is_new_in_service() -> None:
    """Every pack shape of speculation is run before the first answer."""
    engine = engine_of(tiny(seed=2), "speculative")
    assert isinstance(engine.decoder.decoding, Speculative)
    captured = []

    def capture(function):  # type: ignore[no-untyped-def]
        captured.append(function())
        return function

    model = VLAModel(tiny(seed=2), CPU, torch.float32, capture=capture)
    drafter = TemporalDrafter(model.actions, 7, CPU, Exact().matches)
    engine.decoder.model = model
    engine.decoder.decoding = Speculative(model, 7, 300, drafter, Exact())
    events = stream(30, {0: TEXTS[0]}, seed=3)
    first = play(engine, events[:1])
    before = len(captured)
    answers = play(engine, events[1:])
    assert len({a.target_passes for a in answers.values()}) > 3  # all kinds of drafts came
    assert len(captured) == before
    expected = play(engine_of(tiny(seed=2)), events)
    assert {s: a.tokens for s, a in {**first, **answers}.items()} == {
        s: a.tokens for s, a in expected.items()
    }


def engine_with_draft(draft: Path, target_seed: int, **options: object):  # type: ignore[no-untyped-def]
    chosen = {"drafter": "model", "draft_checkpoint": str(draft), **options}
    return engine_of(tiny(seed=target_seed), "speculative", **chosen)


def test_the_target_as_its_own_draft_is_always_right(tmp_path: Path) -> None:
    """Needs the draft's KV to be right after every outcome, and the bins to agree."""
    write_random(tmp_path / "twin", tiny_config(), seed=2)
    for gamma, passes in ((6, 1), (3, 2), (2, 3)):
        engine = engine_with_draft(tmp_path / "twin", 2, gamma=gamma)
        assert engine.decoder.decoding.drafter.shares_vision
        answers = play(engine, stream(6, {0: TEXTS[0]}))
        assert {a.target_passes for a in answers.values()} == {passes}
        assert all(a.accepted == a.drafted for a in answers.values())
        assert all(a.draft_passes >= a.drafted.count(1) for a in answers.values())


def test_a_draft_with_another_vocabulary_meets_the_target_in_the_bins(tmp_path: Path) -> None:
    """The twin's tokens are moved by 40: same bins, other ids."""
    shift = 40
    config = tiny_config()
    moved = replace(
        config,
        text=replace(config.text, vocab_size=config.text.vocab_size + shift),
        action_vocab=SMALL_VOCAB + shift,
    )
    tensors = random_tensors(config, 2, CPU, torch.float32)
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        old = tensors["language_model." + name]
        new = torch.zeros(len(old) + shift, old.shape[1])
        new[: config.action_vocab - 256] = old[: config.action_vocab - 256]
        new[moved.action_vocab - 256 : moved.action_vocab] = old[SMALL_VOCAB - 256 : SMALL_VOCAB]
        tensors["language_model." + name] = new
    from vla_ros.engine.families.openvla import norm_stats, save_checkpoint
    from vla_ros.engine.families.random import write_tokenizer

    save_checkpoint(tmp_path / "moved", moved, tensors, norm_stats(), write_tokenizer)
    answers = play(engine_with_draft(tmp_path / "moved", 2, gamma=6), stream(6, {0: TEXTS[0]}))
    assert {a.target_passes for a in answers.values()} == {1}


def test_vision_is_shared_only_where_it_is_the_same(tmp_path: Path) -> None:
    write_random(tmp_path / "other", tiny_config(), seed=3)
    engine = engine_with_draft(tmp_path / "other", 2)
    assert isinstance(engine.decoder.decoding, Speculative)
    assert isinstance(engine.decoder.decoding.drafter, ModelDrafter)
    assert not engine.decoder.decoding.drafter.shares_vision


@pytest.mark.parametrize("gamma", [1, 4])
def test_rejected_drafts_leave_no_trace_in_the_drafts_memory(tmp_path: Path, gamma: int) -> None:
    """Every proposal equals that of a drafter that sees this prefix for the first time."""
    write_random(tmp_path / "other", tiny_config("qwen2_tied"), seed=5)
    engine = engine_with_draft(tmp_path / "other", 2, gamma=gamma)
    fresh = engine_with_draft(tmp_path / "other", 2, gamma=gamma)
    drafter, second = engine.decoder.decoding.drafter, fresh.decoder.decoding.drafter
    propose, begin = drafter.propose, drafter.begin
    seen, now = [], []

    def check(prefix, limit):  # type: ignore[no-untyped-def]
        second.begin(now[-1])
        draft = propose(prefix, limit)
        seen.append(draft.tokens.tolist() == second.propose(prefix, limit).tokens.tolist())
        return draft

    drafter.propose = check
    drafter.begin = lambda request: now.append(request) or begin(request)
    second.instruct(TEXTS[0])
    play(engine, stream(8, {0: TEXTS[0]}))
    assert len(seen) > 16
    assert all(seen)


def two_cameras(count: int) -> list[Observation]:
    """Frames whose wrist image has nothing to do with the main one."""
    main, wrist = list(images(count, seed=1)), list(images(count, seed=2))
    return [
        replace(observation(i, a), wrist_image=b)
        for i, (a, b) in enumerate(zip(main, wrist, strict=True))
    ]


@pytest.mark.parametrize("sight", ["features", "pixels", "own pixels"])
def test_a_draft_of_one_camera_sees_the_main_one_of_two(tmp_path: Path, sight: str) -> None:
    """It says what it says as a draft of a target that has the main camera only."""
    one, target = tiny_config(), replace(tiny_config(), images=2)
    if sight == "own pixels":
        one = replace(one, resize="letterbox")
    write_random(tmp_path / "draft", one, seed=2 if sight == "features" else 3)
    found = []
    for config in (target, tiny_config()):
        checkpoint = in_memory(config, 2, CPU, torch.float32)
        engine = engine_of(
            checkpoint, "speculative", drafter="model", draft_checkpoint=str(tmp_path / "draft")
        )
        drafter = engine.decoder.decoding.drafter
        assert drafter.shares_vision is (sight == "features")
        engine.reset(TEXTS[0])
        drafts = []
        for seen in two_cameras(3):
            request = engine.encode(seen, Timeline(0), CLOCK)
            drafter.begin(request)
            drafts.append(drafter.propose([], 6).tokens.tolist())
            if config is target:
                assert engine.decoder.decoding.step(request).target_passes <= 7
        found.append(drafts)
    assert found[0] == found[1]
    assert found[0][0] != found[0][2]


def test_drafts_that_cannot_draft_are_refused_in_one_line(tmp_path: Path) -> None:
    write_random(tmp_path / "two", replace(tiny_config(), images=2), seed=2)
    with pytest.raises(ValueError, match="needs 2 cameras, the target has 1: give a draft_check"):
        engine_with_draft(tmp_path / "two", 2)
    write_random(tmp_path / "oft", replace(tiny_config(), parallel=True, chunk=2), seed=2)
    with pytest.raises(ValueError, match="an OFT checkpoint, which says no tokens"):
        engine_with_draft(tmp_path / "oft", 2)


def test_a_draft_model_runs_as_its_target_does(tmp_path: Path) -> None:
    """Attention and graphs that were chosen reach the draft too."""
    write_random(tmp_path / "twin", tiny_config(), seed=2)
    options = {"attention": "torch", "cuda_graphs": False}
    engine = engine_with_draft(tmp_path / "twin", 2, gamma=6, **options)
    draft = engine.decoder.decoding.drafter._draft
    assert draft.options == engine.model.options == engine.options
    answers = play(engine, stream(6, {0: TEXTS[0]}))
    assert {a.target_passes for a in answers.values()} == {1}
