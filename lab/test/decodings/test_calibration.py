"""The entropy of a path, the cuts that make bins of it, and the trees that belong to the bins."""

from __future__ import annotations

import json
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.calibrations import WINDOW, fitted, moods
from vla_ros.engine.decoding.draft_tree import Budget, Cost
from vla_ros.engine.decoding.temporal_prediction import TemporalMarginals
from vla_ros_lab.decodings.calibration import (
    Bins,
    Calibration,
    from_json,
    path_entropy,
    plan_bins,
    top_entropy,
)
from vla_ros_lab.heterospec import EMPTY, rounds, shown, to_json

#: none so small that a scale makes it another one: a float32's smallest is 1e-38
CHANCES = st.lists(st.just(0.0) | st.floats(1e-38, 1.0), min_size=1, max_size=16)


# Phi


def test_entropy_is_that_of_the_normalized_top():
    assert top_entropy([0.5, 0.25]) == pytest.approx(-(2 / 3 * log(2 / 3) + 1 / 3 * log(1 / 3)))
    assert top_entropy([0.1] * 16) == pytest.approx(log(16))
    assert top_entropy([1.0, 0.0]) == 0.0
    assert top_entropy([]) == top_entropy([0.0, 0.0]) == 0.0
    assert path_entropy([[0.1] * 4, [1.0], [0.2, 0.2]]) == pytest.approx(log(4) + log(2))


@given(CHANCES, st.floats(0.01, 1.0))
def test_entropy_lies_between_certain_and_alike_and_knows_no_scale(chances, scale):
    found = top_entropy(chances)
    assert -1e-9 <= found <= log(len(chances)) + 1e-9
    assert top_entropy([scale * c for c in chances]) == pytest.approx(found, abs=1e-6)


def test_an_offer_has_the_chances_of_how_things_are():
    rng = np.random.default_rng(0)
    learned = TemporalMarginals(2, WINDOW)
    stream = [[200, int(rng.integers(150, 250))] for _ in range(200)]
    for before, last, own in zip(stream, stream[1:], stream[2:], strict=False):
        learned.update(last, before, own, learned.candidates(last, before).tokens)
    offer = learned.candidates([200, 200], [200, 190])
    for chances in offer.chances:
        assert list(chances) == sorted(chances, reverse=True)
        assert sum(chances) <= 1.0 + 1e-9
    assert top_entropy(offer.chances[0]) < 0.8 < 2.0 < top_entropy(offer.chances[1])
    assert offer.behind(1).tokens == offer.tokens[1:]
    assert learned.candidates([7, 200], [7, 200]).chances[0][0] == 1.0  # what is no bin is repeated


# Bins and trees


def calibration(tokens: int, bins: int = 8, **options) -> Calibration:
    def state(levels: int) -> Bins:
        chances = tuple(((0.6, 0.2, 0.1),) * levels for _ in range(bins))
        return Bins(tuple(float(n) for n in range(1, bins)), chances, (10,) * bins)

    return Calibration(tuple(state(n) for n in range(tokens - 1, 0, -1)), **options)


def test_the_three_surest_bins_are_extended_and_pruned_as_in_the_paper():
    """EAGLE-3's tree of 60 nodes and a depth of 7: alpha = 4."""
    long = calibration(56, base=Budget(60, 60), levels=8)
    assert [long.size(0, n) for n in range(4)] == [(12, 22), (11, 39), (10, 62), (8, 60)]


def test_at_seven_tokens_no_tree_is_deeper_than_six():
    short = calibration(7)
    assert [short.size(0, n) for n in range(4)] == [(6, 10), (6, 16), (6, 25), (6, 24)]
    assert short.size(4, 0) == (2, 22)
    assert max(max(tree.levels) for trees in plan_bins(short).trees for tree in trees) == 6


def test_with_few_bins_half_of_them_stay_as_they_are():
    assert [state.sure for state in calibration(3, bins=1).states] == [0, 0]
    assert calibration(3, bins=5).states[0].sure == 2


def test_bins_go_by_the_levels_that_the_base_tree_drafts():
    two = calibration(9, levels=2)
    alike = (0.25,) * 4
    open_ = [alike] * 9
    assert two.entropy(open_) == pytest.approx(2 * log(4))
    assert two.entropy(open_[:2]) == pytest.approx(log(4))  # the last token is not drafted
    assert two.bin(0, open_) == 2


def test_a_plan_expects_what_happens_and_costs_prune_it():
    found = fitted(4)
    frames = shown(moods(4, seed=1), WINDOW, anew=True)
    plan = plan_bins(found.calibration)
    played = list(
        rounds(
            [f for f in frames if f.offer is not None],
            lambda offer, known: EMPTY if known > 2
            else plan.trees[known][found.calibration.bin(known, offer.chances)],
        )
    )  # fmt: skip
    passes = len(played) / sum(r.known == 0 for r in played)
    assert plan.expected[0] == pytest.approx(passes, rel=0.1)
    dear = plan_bins(found.calibration, Cost(0.08, 0.08), Cost(0.08, 0.25))
    assert 0 < sum(map(len, dear.trees[0])) < sum(map(len, plan.trees[0])) / 2
    stepped = plan_bins(found.calibration, Cost(0.08, 0.01), Cost(0.08, 0.01), step=8)
    assert {len(tree) % 8 for tree in stepped.trees[0]} == {0}


def test_a_file_gives_the_calibration_back():
    found = fitted(5).calibration
    again = from_json(json.loads(json.dumps(to_json(found))))
    assert [s.thresholds for s in again.states] == [
        pytest.approx(s.thresholds, abs=1e-6) for s in found.states
    ]
    assert again.base == found.base
    assert [len(t) for t in plan_bins(again).trees[0]] == [
        len(t) for t in plan_bins(found).trees[0]
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "no calibration"),
        ({"version": 9}, "calibrate again"),
        ({"nodes": [24]}, "not enough values"),
        ({"nodes": [0, 64]}, "must be there"),
        ({"states": []}, "must be there"),
        ({"states": [{"thresholds": [], "chances": [], "rounds": []}]}, "a bin more"),
        ({"states": [{"thresholds": [], "chances": [[[0.1, 0.2]]], "rounds": [1]}]}, "fall"),
        ({"states": [{"thresholds": [], "chances": [[]], "rounds": [1]}]}, "1 levels"),
        ({"states": [{"thresholds": []}]}, "missing"),
        ({"levels": None}, "another kind"),
    ],
)
def test_a_file_of_somebody_else_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        from_json({**to_json(fitted(5).calibration), **change})
