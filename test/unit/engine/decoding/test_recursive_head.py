"""A recursive draft head: what it says grows as it was trained, and changes no token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.engine import TEXTS, engine_of, play, stream, tiny, tiny_config
from support.heads import recursive_head
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.decoding.draft_heads import LEVELS, heads_for, recursive_width
from vla_ros.engine.decoding.draft_tree import DraftTree, likeliest
from vla_ros.engine.decoding.tree_growth import TreeFrame, TreeGrower, shape_of
from vla_ros_lab.train.head.unrolled import unroll

CONFIG = replace(tiny_config(), chunk=8)
COUNT = 56
FIRST = 704


def embed(tokens: torch.Tensor) -> torch.Tensor:
    draw = torch.Generator().manual_seed(7)
    return torch.randn(960, 64, generator=draw)[tokens]


def random_answer(seed: int = 0):  # type: ignore[no-untyped-def]
    """Taps and tokens of an answer, and what was expected of it."""
    draw = torch.Generator().manual_seed(seed)
    taps = torch.randn(1, COUNT - 2, 2 * 64, generator=draw)
    tokens = FIRST + torch.randint(0, 256, (1, COUNT - 2), generator=draw)
    told = torch.randint(-1, 256, (2, 1, COUNT - 2, LEVELS), generator=draw)
    return taps, tokens, told[0], told[1]


@pytest.mark.parametrize("greedy", [False, True])
def test_a_tree_grows_as_the_head_was_trained(greedy: bool) -> None:
    """The unrolled steps of a whole answer are the levels that a drafter grows, one by one."""
    head = recursive_head(CONFIG, COUNT, seed=1)
    taps, tokens, last, before = random_answer()
    steps = unroll(head, taps, tokens, last, before, 4, embed, FIRST if greedy else None)
    deepest = shape_of(DraftTree(tuple(range(-1, 4)), (0,) * 5))
    grower = TreeGrower(head, embed, FIRST, lambda place: 0, TreeFrame.around([deepest]))
    said = tokens[0].tolist()
    for known, fresh in ((1, 1), (4, 3), (20, 16)):
        grower.add_taps(taps[0, known - fresh : known])
        assert grower.seen == known
        behind = range(known - fresh, known)
        there = [[t[0, p, 0].item() for p in behind] for t in (last, before)]
        ahead = [t[0, known - 1, :4].tolist() for t in (last, before)]
        grower.begin(said[known - fresh : known], tuple(there), tuple(ahead))
        wanted = [steps[i][0, known - 1 + i] for i in range(4)]
        ranks, tree = [], DraftTree()
        for level in range(4):
            tree = DraftTree(tuple(range(-1, level)), (*ranks, 0))
            with torch.inference_mode():
                grower.through(shape_of(tree), level)
            found = grower.ranked[level].tolist()
            expected = wanted[level].topk(16)
            assert found == expected.indices.tolist()
            chances = wanted[level].softmax(-1)[expected.indices]
            torch.testing.assert_close(grower.best[level], chances, rtol=1e-4, atol=1e-6)
            right = 0 if greedy else _rank_for(grower.ranked[level], said[known + level] - FIRST)
            ranks.append(right)


def _rank_for(ranked: torch.Tensor, bin_: int) -> int:
    """Make the alternative of rank 1 the one that was said: what is drafted is then known."""
    ranked[1] = bin_
    return 1


def test_branches_do_not_see_each_other() -> None:
    """A path of a wide tree says what it says alone."""
    head = recursive_head(CONFIG, COUNT, seed=2)
    taps, tokens, last, before = random_answer(1)
    wide = likeliest([[0.5, 0.3, 0.2]] * 3, 20)
    grower = TreeGrower(head, embed, FIRST, lambda place: 0, TreeFrame.around([shape_of(wide)]))

    def drafted(tree: DraftTree) -> list[int]:
        grower.forget()
        grower.add_taps(taps[0, :5])
        told = [[t[0, p, 0].item() for p in range(5)] for t in (last, before)]
        ahead = [t[0, 4, :4].tolist() for t in (last, before)]
        shape = shape_of(tree)
        with torch.inference_mode():
            grower.begin(tokens[0, :5].tolist(), tuple(told), tuple(ahead))
            grower.through(shape, len(shape.levels))
            return grower.tokens().tolist()

    whole = drafted(wide)
    for node in range(len(wide)):
        path, at = [], node
        while at >= 0:
            path.append(at)
            at = wide.parents[at]
        path.reverse()
        alone = DraftTree(tuple(range(-1, len(path) - 1)), tuple(wide.ranks[n] for n in path))
        assert drafted(alone) == [whole[n] for n in path]


def test_its_width_follows_the_target() -> None:
    assert (recursive_width(256), heads_for(128)) == (128, 4)
    assert (recursive_width(4096), heads_for(1024)) == (1024, 16)


@pytest.mark.long
def test_drafted_by_the_head_a_chunk_says_the_same(tmp_path: Path) -> None:
    """Fp32, over changes of the instruction and resets; generate is the oracle."""
    checkpoint = tiny(CONFIG, seed=2)
    save_head(tmp_path, recursive_head(CONFIG, COUNT, seed=3))
    events = stream(12, {0: TEXTS[0], 5: TEXTS[1], 9: TEXTS[1]}, seed=3)
    expected = play(engine_of(checkpoint, "generate"), events[:2])
    plain = play(engine_of(checkpoint), events)
    assert all(plain[s].tokens == a.tokens for s, a in expected.items())
    head = {"drafter": "head", "draft_checkpoint": str(tmp_path)}
    for options in ({"adaptive_draft": False}, {"fixed_shapes": True}, {"gamma": 3}, {}):
        answers = play(engine_of(checkpoint, "speculative", **head, **options), events)
        assert {s: a.tokens for s, a in answers.items()} == {
            s: a.tokens for s, a in plain.items()
        }, options
        if options.get("adaptive_draft") is False:
            assert sum(a.draft_passes for a in answers.values()) > 40
            assert sum(sum(a.accepted) for a in answers.values()) > 10
