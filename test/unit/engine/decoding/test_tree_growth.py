"""A recursive head's drafts through graphs: the same drafts, and none captured in service."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.engine import CLOCK, CPU, TEXTS, Again, engine_of, play, stream, tiny, tiny_config
from support.heads import recursive_head, rollouts
from vla_ros.core.types import Timeline
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.decoding.draft_tree import Budget, DraftTree
from vla_ros.engine.decoding.head_drafters import RecursiveDrafter
from vla_ros.engine.decoding.tree_growth import (
    FRESH,
    TreeFrame,
    TreeGrower,
    layout_of,
    shape_of,
)
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.engine.layers.graphs import CountedCapture
from vla_ros.engine.layers.request import Request, StageTimer
from vla_ros_lab.decodings.calibration import FILE, Calibration, from_json, plan_bins
from vla_ros_lab.decodings.heterospec import EntropyHeadDrafter
from vla_ros_lab.heterospec import to_json
from vla_ros_lab.roofline.calibration import fit

CHUNK = 4
COUNT = 7 * CHUNK
CONFIG = replace(tiny_config(), chunk=CHUNK)
ACTIONS = ActionTokens(960)
REQUEST = Request(0, torch.zeros(0, 0), StageTimer(Timeline(0), CLOCK, CPU))
TABLE = torch.randn(960, 64, generator=torch.Generator().manual_seed(7))


def embed(tokens: torch.Tensor) -> torch.Tensor:
    return TABLE[tokens]


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Of at most 12 nodes and 5 levels; a node's children are the first of its alternatives."""
    parents: list[int] = []
    ranks: list[int] = []
    levels: list[int] = []
    for node in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from([-1, *(n for n in range(node) if levels[n] < 5)]))
        ranks.append(sum(other == parent for other in parents))
        parents.append(parent)
        levels.append(1 if parent < 0 else levels[parent] + 1)
    return DraftTree(tuple(parents), tuple(ranks))


@settings(max_examples=10, deadline=None)
@given(st.lists(trees(), min_size=1, max_size=3), st.integers(1, 20), st.sampled_from([0, 3]))
def test_within_a_frame_every_tree_says_what_it_says_alone(
    drawn: list[DraftTree], known: int, tolerance: int
) -> None:
    head = recursive_head(CONFIG, COUNT, seed=1)
    shapes = [shape_of(tree) for tree in drawn]
    draw = torch.Generator().manual_seed(known)
    taps = torch.randn(known, 2 * 64, generator=draw)
    said = (ACTIONS.first + torch.randint(0, 256, (known,), generator=draw)).tolist()
    told = torch.randint(-1, 256, (2, known + 6), generator=draw).tolist()
    behind = told[0][:known], told[1][:known]
    ahead = told[0][known:], told[1][known:]

    def apart(place: int) -> int:
        return 0 if place % 7 == 6 else tolerance

    own = TreeGrower(head, embed, ACTIONS.first, apart, TreeFrame.around(shapes), Again())
    own.prepare([(-1, len(shape.levels)) for shape in shapes])
    for shape in (*shapes, shapes[0]):
        alone = TreeGrower(head, embed, ACTIONS.first, apart, TreeFrame.around([shape]))
        found = []
        for grower in (alone, own):
            grower.forget()
            grower.add_taps(taps[: known // 2])
            grower.add_taps(taps[known // 2 :])
            with torch.inference_mode():
                grower.begin(said, behind, ahead)
                grower.through(shape, len(shape.levels))
                found.append((grower.tokens().tolist(), grower.entropy()))
        assert found[0][0] == found[1][0]
        assert found[0][1] == pytest.approx(found[1][1], abs=1e-3)


def test_a_tree_that_was_not_planned_for_says_so() -> None:
    wide = shape_of(DraftTree((-1, -1, 0, 1), (0, 1, 0, 0)))
    deep = shape_of(DraftTree((-1, 0, 1, 2), (0, 0, 0, 0)))
    for frame, shape in ((TreeFrame.around([deep]), wide), (TreeFrame.around([wide]), deep)):
        with pytest.raises(ValueError, match="not planned for"):
            layout_of(shape, frame, CPU)


# Drafters


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    from vla_ros_lab.train.head.replayed import replayed

    head = recursive_head(CONFIG, COUNT, seed=3)
    episodes = [rollouts(CONFIG, COUNT, 40, seed) for seed in range(2)]
    offers = replayed(head, episodes, embed, ACTIONS, CHUNK)
    return fit(offers, Budget(8, 24), about={"drafter": "head"}).calibration


def drafter_of(kind: str, calibration: Calibration, capture):  # type: ignore[no-untyped-def]
    head, budget = recursive_head(CONFIG, COUNT, seed=3), Budget(8, 24)
    trees = kind == "trees"
    made = RecursiveDrafter(
        ACTIONS, CPU, lambda p: 0, budget if trees else Budget(0, 0), head, embed, None, CHUNK,
        capture,
    )  # fmt: skip
    return made if trees else EntropyHeadDrafter(made, calibration, plan_bins(calibration), CPU)


@pytest.mark.parametrize("kind", ["trees", "heterospec"])
def test_drafts_are_those_without_graphs(kind: str, calibration: Calibration) -> None:
    """Whatever stood: rounds one after the other, and one after more tokens than are taken in at
    once; and all graphs were captured by preparing."""
    capture = CountedCapture(Again())
    plain, own = drafter_of(kind, calibration, None), drafter_of(kind, calibration, capture)
    own.prepare(REQUEST)
    prepared, drafted = capture.count, 0
    assert 2 < prepared < 20
    for frame in range(6):
        episode = rollouts(CONFIG, COUNT, 6, 1)
        said, taps = episode.tokens[frame].tolist(), episode.taps[frame].float()
        steps = (FRESH + 2, 3, 1, 4) if frame % 2 else (1, 2, 1, 6, 4, 3, 1, 8)
        for one in (plain, own):
            one.begin(REQUEST)
        known = 0
        for step in steps:
            known += step
            drafts = []
            for one in (plain, own):
                one.observe_taps(taps[known - step : known], range(step))
                drafts.append(one.propose(said[:known], COUNT - 1 - known))
            assert drafts[0].parents == drafts[1].parents
            assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
            drafted += len(drafts[0].tokens)
        assert plain.passes == own.passes
        for one in (plain, own):
            one.observe(said, said)
    assert drafted > 300
    assert capture.count == prepared


def test_what_is_not_finite_is_forgotten(calibration: Calibration) -> None:
    """NaN in the target's states poisons the memory until it is told that there was damage."""
    own, plain = drafter_of("trees", calibration, Again()), drafter_of("trees", calibration, None)
    own.prepare(REQUEST)
    taps, said = torch.randn(1, 128), [ACTIONS.first + 20]
    own.begin(REQUEST)
    own.observe_taps(taps * float("nan"), (0,))
    own.propose(said, 20)
    own.forget(damaged=True)
    assert bool(own.head_trees.grower.keys.isfinite().all())
    found = []
    for one in (plain, own):
        one.begin(REQUEST)
        one.observe_taps(taps, (0,))
        found.append(one.propose(said, 20).tokens.tolist())
    assert found[0] == found[1] != []


# Engines


@pytest.mark.parametrize("kind", ["trees", "heterospec"])
def test_an_engine_captures_nothing_in_service(
    kind: str, calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("vla_ros.engine.decoding.tokens", "vla_ros_lab.model_drafter"):
        monkeypatch.setattr(f"{module}.MAX_TEXT", 48)
    save_head(tmp_path, recursive_head(CONFIG, COUNT, seed=3))
    (tmp_path / FILE).write_text(json.dumps(to_json(calibration)))
    assert from_json(json.loads((tmp_path / FILE).read_text())).tokens == COUNT
    decoding = "speculative" if kind == "trees" else "heterospec"
    options = {"drafter": "head", "draft_checkpoint": str(tmp_path), "adaptive_draft": False}
    checkpoint, capture = tiny(CONFIG, seed=2), Again()
    engine = engine_of(checkpoint, decoding, capture, **options)
    events = stream(8, {0: TEXTS[0], 4: TEXTS[1]}, seed=3)
    first = play(engine, events[:1])
    before = capture.captured
    answers = {**first, **play(engine, events[1:])}
    assert capture.captured == before
    assert engine.captures_in_service == 0
    plain = play(engine_of(checkpoint), events)
    assert {s: a.tokens for s, a in answers.items()} == {s: a.tokens for s, a in plain.items()}
    assert sum(a.draft_passes for a in answers.values()) > 20
    assert sum(sum(a.accepted) for a in answers.values()) > 5
