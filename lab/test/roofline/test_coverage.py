"""What recorded tokens say of drafts, against streams whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from vla_ros.engine.decoding.draft_tree import ROOT, Budget, DraftTree
from vla_ros_lab.heterospec import deepest
from vla_ros_lab.roofline.coverage.alternatives import coverage
from vla_ros_lab.roofline.coverage.episodes import Chunks
from vla_ros_lab.roofline.coverage.passes import chain, learning, trees


def walks(steps: list[int], episodes: int = 6, frames: int = 120, seed: int = 0) -> list:
    """Episodes whose every token moves by a draw of ``steps`` bins, each on its own."""
    rng = np.random.default_rng(seed)
    start = np.full((1, 4), 500)
    return [
        np.concatenate((start, start + rng.choice(steps, (frames - 1, 4)).cumsum(0))).astype(
            np.int32
        )
        for _ in range(episodes)
    ]


def test_shares_are_those_of_the_stream():
    rows = {row.name: row for row in coverage(walks([0, 0, 1, -1]))}
    assert rows["repeat"].shares == pytest.approx([0.5] * 4, abs=0.08)
    assert rows["repeat ± 1"].shares == (1.0,) * 4
    assert (rows["repeat ± 1"].joint, rows["repeat ± 1"].product) == (1.0, 1.0)
    assert rows["repeat"].joint == pytest.approx(0.125, abs=0.05)
    assert rows["repeat"].product == pytest.approx(0.125, abs=0.05)
    assert rows["fitted, 3"].shares == pytest.approx([1.0] * 4, abs=0.01)


def test_tokens_that_go_together_show_in_the_joint_share():
    together = [np.repeat(e[:, :1], 4, axis=1) for e in walks([0, 1])]
    repeat = next(row for row in coverage(together) if row.name == "repeat")
    assert repeat.joint == pytest.approx(0.5, abs=0.08)
    assert repeat.product == pytest.approx(0.125, abs=0.05)


def test_a_motion_that_goes_on_is_found_by_the_fit_as_by_linear():
    ramps = [np.arange(60, dtype=np.int32)[:, None] * 3 + np.full((1, 4), 200, np.int32)] * 4
    rows = {row.name: row for row in coverage(ramps)}
    assert rows["repeat"].shares == (0.0,) * 4
    assert rows["linear"].shares == rows["fitted, 1"].shares == (1.0,) * 4


def test_a_chain_takes_a_pass_for_every_miss():
    """First actions in full, then 1 + misses: counted by hand."""
    episode = np.array([[1, 2, 3], [1, 2, 9], [1, 5, 9], [4, 6, 9]], np.int32)
    found = chain([episode])
    assert found.passes == (3 + 1 + 2 + 3) / 4
    assert (found.accepted, found.verified) == ((2 + 1 + 0 + 0) / 4, (2 + 2 + 2 + 1) / 4)


def test_trees_of_independent_tokens_take_what_the_recursion_says():
    found = trees(walks([0, 0, 0, 1, 1, -1]), Budget(9, 9), "nine")
    first = (4 - found.passes) / 119  # an episode's first action takes 4
    assert found.expected == pytest.approx(found.passes - first, abs=0.1)
    assert found.passes < chain(walks([0, 0, 0, 1, 1, -1])).passes - 0.3


def test_what_is_learned_on_the_way_is_nearly_what_is_fitted():
    episodes = walks([0, 0, 1, 5])
    fitted = trees(episodes, Budget(9, 9), "fitted")
    kept = learning(episodes, Budget(9, 9), False, "learned")
    anew = learning(episodes, Budget(9, 9), True, "anew")
    assert kept.passes == pytest.approx(fitted.passes, abs=0.15)
    assert fitted.passes - 0.15 < anew.passes < 4


def test_a_tree_is_walked_from_its_root():
    tree = DraftTree((ROOT, ROOT, 1), (0, 1, 0))
    assert deepest(tree, [-1, 0]) == ROOT
    assert deepest(tree, [0, 0]) == 0  # the second level's node is behind the other one only
    assert deepest(tree, [1, 0]) == 2
    assert deepest(tree, [1, 1]) == 1


def test_an_episode_that_was_over_after_two_chunks_counts_for_nothing():
    rng = np.random.default_rng(3)
    long = [rng.integers(0, 9, (30, 8)).astype(np.int32) for _ in range(2)]
    short = rng.integers(0, 9, (2, 8)).astype(np.int32)
    chunks = Chunks(4, 2)
    free = ("last chunk, shifted", "previous step", "either", "as temporal drafts")
    with_it, without = coverage([*long, short], chunks), coverage(long, chunks)
    for one, other in zip(with_it, without, strict=True):
        if one.name in free:
            assert one == other
