"""Speculation over draft trees: the same tokens, fewer passes, few plans, no shape in service."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.calibrations import write_calibration
from support.engine import (
    CLOCK,
    CPU,
    TEXTS,
    Event,
    engine_of,
    noted,
    observation,
    play,
    stream,
    tiny,
    tiny_config,
)
from support.heads import recursive_head
from vla_ros.core.types import Timeline
from vla_ros.engine import Engine, EngineOptions
from vla_ros.engine.decoding.acceptance import Exact, Relaxed
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.decoding.draft_tree import Budget
from vla_ros.engine.decoding.drafters import TemporalTreeDrafter
from vla_ros.engine.decoding.factory import DecodingParts, make_decoding
from vla_ros.engine.decoding.speculative import TreeSpeculative
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.engine.models.openvla import VLAModel
from vla_ros_lab.decodings.heterospec import HeteroSpec
from vla_ros_lab.hugging_face import transformers_model

FRAMES = 520
RESETS = {
    0: TEXTS[0], 90: TEXTS[1], 93: TEXTS[2], 180: TEXTS[2], 310: TEXTS[0], 311: TEXTS[1],
    470: TEXTS[1],
}  # fmt: skip
FULL = {"drafter": "temporal_tree", "adaptive_draft": False}
#: of drafts and their length: fixed, adaptive
SHAPES = [
    (False, True),
    (True, False),
    pytest.param(False, False, marks=pytest.mark.long),
    pytest.param(True, True, marks=pytest.mark.long),
]


def said(answers) -> dict[int, tuple[int, ...]]:  # type: ignore[no-untyped-def]
    return {stamp: answer.tokens for stamp, answer in answers.items()}


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_five_hundred_frames_say_what_generate_says(tmp_path: Path) -> None:
    """Instruction changes, one right behind another, and resets; learned or anew each time."""
    hetero = {"decoding": "heterospec", "extra": write_calibration(tmp_path)}
    checkpoint = tiny(tiny_config("llama_gqa"), seed=21)
    events = stream(FRAMES, RESETS, seed=21)
    expected = said(play(engine_of(checkpoint, "generate"), events))
    assert len(expected) == FRAMES
    save_head(tmp_path, recursive_head(checkpoint.config, 7))
    head = {"drafter": "head", "draft_checkpoint": str(tmp_path)}
    learned = {"drafter": "temporal_tree"}
    for options in (
        FULL, learned, head, {**head, "adaptive_draft": False}, hetero,
        {**hetero, "adaptive_draft": False},
    ):  # fmt: skip
        engine = engine_of(checkpoint, **{"decoding": "speculative", **options})
        assert isinstance(engine.decoder.decoding, TreeSpeculative)
        answers = play(engine, events)
        assert said(answers) == expected
        assert any(sum(a.accepted) for a in answers.values())


def test_the_tree_follows_the_uncertainty(tmp_path: Path) -> None:
    """Frames at rest, then restless ones: other bins, other trees, the same tokens."""
    checkpoint = tiny(seed=2)
    engine = engine_of(
        checkpoint, "heterospec", extra=write_calibration(tmp_path), adaptive_draft=False
    )
    assert isinstance(engine.decoder.decoding, HeteroSpec)
    rest = [Event(i, stream(1, {})[0].image, None if i else TEXTS[0]) for i in range(30)]
    wild = [Event(30 + i, stream(1, {}, seed=50 + i)[0].image) for i in range(30)]
    sizes: list[int] = []
    propose = engine.decoder.decoding.drafter.propose

    def seen(prefix, limit):  # type: ignore[no-untyped-def]
        draft = propose(prefix, limit)
        sizes.append(len(draft.tokens))
        return draft

    engine.decoder.decoding.drafter.propose = seen  # type: ignore[method-assign]
    still = play(engine, rest)
    assert sizes[-1] == 10  # the surest bin: 0.3 * 24 nodes and 3 for what would be levels
    assert still[29].target_passes == 1
    restless = play(engine, wild)
    assert max(sizes) > 60
    assert len(set(sizes)) > 4
    assert said({**still, **restless}) == said(play(engine_of(checkpoint), [*rest, *wild]))


def drifting(count: int) -> list[Event]:
    """A robot that acts: what it says changes a little with every frame."""
    scene = stream(1, {0: TEXTS[0]}, seed=5)[0].image.astype(int)
    rows = torch.arange(scene.size).view(scene.shape).numpy()
    return [
        Event(i, (scene + (rows * i // 97) % (2 + i)).clip(0, 255).astype("uint8"),
              None if i else TEXTS[0])
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other", [{"make_model": transformers_model}, {"attention": "torch"}, {"gamma": 2}]
)
def test_other_ways_to_run_it_say_the_same(other: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = tiny(tiny_config("qwen2_tied"), seed=11)
    events = [
        *stream(20, {0: TEXTS[0]}, seed=11),
        *(replace(e, stamp=20 + e.stamp) for e in drifting(20)),
    ]
    expected = said(play(engine_of(checkpoint), events))
    assert said(play(engine_of(checkpoint, "speculative", **FULL, **other), events)) == expected
    hetero = {"extra": write_calibration(tmp_path), "adaptive_draft": False}
    assert said(play(engine_of(checkpoint, "heterospec", **hetero, **other), events)) == expected


def test_plans_and_layouts_outlive_frames() -> None:
    """The shape of the trees changes rarely: afterwards every pass finds its plan."""
    engine = engine_of(tiny(seed=2), "speculative", **FULL)
    events = stream(64, {0: TEXTS[0]}, seed=3)
    play(engine, events[:34])
    planner = engine.decoder.decoding.runner.planner  # type: ignore[union-attr]
    before = planner.built
    answers = play(engine, events[34:])
    passes = sum(a.target_passes for a in answers.values())
    assert passes > 60
    assert planner.built - before <= 6


def graphed(
    captured: list[object],
    fixed: bool,
    adaptive: bool,
    drafter: str = "temporal_tree",
    calibration: tuple[str, ...] = (),
) -> Engine:
    """An engine whose passes are captured, by a stand-in that runs them again."""

    def capture(function):  # type: ignore[no-untyped-def]
        captured.append(function())
        return function

    engine = engine_of(tiny(seed=2), "speculative")
    model = VLAModel(tiny(seed=2), CPU, torch.float32, capture=capture)
    options = EngineOptions(
        "memory", decoding="heterospec" if calibration else "speculative", drafter=drafter,
        fixed_shapes=fixed, adaptive_draft=adaptive, extra=calibration,
    )  # fmt: skip
    engine.decoder.model = model
    head = recursive_head(model.config, 7)
    none = lambda name: None  # noqa: E731
    parts = DecodingParts(model, options, 7, 7, 300, none, head=head)  # type: ignore[arg-type]
    engine.decoder.decoding = make_decoding(parts)
    return engine


def prepare(engine: Engine, events: list[Event]) -> None:
    """For prompts of this length, as the benchmark does."""
    engine.reset(TEXTS[0])
    seen = observation(0, events[0].image)
    engine.decoder.decoding.prepare(engine.encode(seen, Timeline(0), CLOCK))


@pytest.mark.parametrize("drafter", ["temporal_tree", "head"])
@pytest.mark.parametrize(("fixed", "adaptive"), SHAPES)
def test_with_graphs_no_shape_is_new_in_service(fixed: bool, adaptive: bool, drafter: str) -> None:
    captured: list[object] = []
    engine = graphed(captured, fixed, adaptive, drafter)
    events = stream(40, {0: TEXTS[0]}, seed=3)
    prepare(engine, events)
    heads = 5 if drafter == "head" else 0  # one for every depth of the head's trees
    assert len(captured) <= (4 if fixed else 16) + heads
    first = play(engine, events[:1])
    before = len(captured)
    answers = play(engine, events[1:])
    assert len({a.target_passes for a in answers.values()}) > 3
    assert len(captured) == before
    assert said({**first, **answers}) == said(play(engine_of(tiny(seed=2)), events))


@pytest.mark.parametrize(("fixed", "adaptive"), SHAPES)
def test_with_graphs_heterospec_meets_neither_a_new_shape_nor_a_new_plan(
    fixed: bool, adaptive: bool, tmp_path: Path
) -> None:
    captured: list[object] = []
    engine = graphed(captured, fixed, adaptive, calibration=write_calibration(tmp_path))
    events = stream(60, {0: TEXTS[0]}, seed=3)
    prepare(engine, events)
    assert len(captured) <= (4 if fixed else 16)
    first = play(engine, events[:1])
    shapes, plans = len(captured), engine.decoder.decoding.runner.planner.built  # type: ignore[union-attr]
    answers = play(engine, events[1:])
    assert len({a.target_passes for a in answers.values()}) > 3
    assert len(captured) == shapes
    assert engine.decoder.decoding.runner.planner.built == plans  # type: ignore[union-attr]
    assert said({**first, **answers}) == said(play(engine_of(tiny(seed=2)), events))


def test_a_round_of_heterospec_reads_the_device_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(tiny(seed=2), "heterospec", extra=write_calibration(tmp_path))
    events = stream(40, {0: TEXTS[0]}, seed=3)
    play(engine, events[:20])
    reads = [0]

    def counting(tensor: torch.Tensor, *args: object) -> object:
        reads[0] += 1
        return read(tensor, *args)

    read = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", counting)
    monkeypatch.setattr(torch.Tensor, "item", counting)
    answers = play(engine, events[20:])
    assert reads[0] <= sum(a.target_passes for a in answers.values())


def test_heterospec_says_what_it_lacks(tmp_path: Path) -> None:
    checkpoint = replace(tiny(), directory=tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((tiny().directory / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match=r"has no heterospec.json: make one with `vla-ros calib"):
        engine_of(checkpoint, "heterospec")
    with pytest.raises(ValueError, match="actions of 5 tokens, these have 7"):
        engine_of(checkpoint, "heterospec", extra=write_calibration(tmp_path, 5))
    with pytest.raises(ValueError, match="give drafter temporal_tree"):
        engine_of(checkpoint, "heterospec", drafter="model", draft_checkpoint="x")
    with pytest.raises(CheckpointError, match="is no JSON"):
        (tmp_path / "broken.json").write_text("{")
        engine_of(checkpoint, "heterospec", extra=(f"calibration={tmp_path / 'broken.json'}",))
    write_calibration(tmp_path)
    (tmp_path / "heterospec-7.json").rename(tmp_path / "heterospec.json")
    engine = engine_of(checkpoint, "heterospec")  # beside the checkpoint it is found
    assert isinstance(engine.decoder.decoding, HeteroSpec)


def test_relaxed_stays_within_its_bounds() -> None:
    checkpoint = tiny(seed=6)
    engine = engine_of(checkpoint, "speculative", **FULL, acceptance="relaxed", relaxed_distance=5)
    seen = noted(engine.decoder.decoding)
    play(engine, stream(60, {0: TEXTS[0], 30: TEXTS[1]}, seed=6))
    off = [[abs(t - o) for t, o in zip(d.tokens, d.own, strict=True)] for d in seen]
    assert max(max(row[:6]) for row in off) <= 5
    assert max(row[6] for row in off) == 0
    assert any(max(row) for row in off)  # it did relax
    assert not engine.decoder.decoding.lossless


# The drafter

ACTIONS = ActionTokens(32000)
BUDGET = Budget(6, 9)


def drafter(**options: object) -> TemporalTreeDrafter:
    tolerance = Exact().tolerance
    return TemporalTreeDrafter(ACTIONS, 3, CPU, tolerance, BUDGET, **options)  # type: ignore[arg-type]


def test_it_names_alternatives_to_the_last_action() -> None:
    own = drafter()
    assert not len(own.propose([], 2).tokens)  # nothing known yet
    own.observe([31900, 31800, 31999], [31900, 31800, 31999])
    draft = own.propose([], 2)
    assert draft.parents is not None
    roots = [t for t, p in zip(draft.tokens.tolist(), draft.parents, strict=True) if p == -1]
    assert len(draft.tokens) == 6
    assert roots[0] == 31900
    assert set(roots[1:]) <= {31898, 31899, 31901, 31902}
    assert 31800 in draft.tokens.tolist()
    later = own.propose([5], 1)  # one level is left: alternatives side by side
    assert set(later.parents or ()) == {-1}
    assert len(later.tokens) == 9
    own.forget()
    assert not len(own.propose([], 2).tokens)


def test_without_costs_an_episode_depends_on_nothing_before_it() -> None:
    fresh, used = drafter(), drafter()
    for n in range(50):
        used.observe([31800 + 7 * n] * 3, [31800 + 7 * n % 90] * 3)
    used.forget()
    for n in range(5):
        for one in (fresh, used):
            one.observe([31900 + n] * 3, [31900 + n] * 3)
    a, b = fresh.propose([], 2), used.propose([], 2)
    assert a.parents == b.parents
    assert a.tokens.tolist() == b.tokens.tolist()


def test_it_learns_where_a_token_goes_and_draws_on_the_targets_own() -> None:
    own = drafter()
    for n in range(20):
        own.observe([0, 0, 0], own=[31800 + 3 * n, 31850, 31999])
    draft = own.propose([], 2)
    assert draft.tokens[0] == 31800 + 3 * 20  # it moves on by three
    deepest = own.propose([1], 1).tokens
    assert deepest[0] == 31850


def test_siblings_are_spaced_where_near_is_enough() -> None:
    tolerance = Relaxed(ACTIONS, 4, 3).tolerance
    own = TemporalTreeDrafter(ACTIONS, 3, CPU, tolerance, Budget(3, 3))
    own.observe([31900] * 3, [31900] * 3)
    alone = sorted(own.propose([7], 1).tokens.tolist())
    assert min(b - a for a, b in itertools.pairwise(alone)) > 4
