"""Intervals and pooled spreads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.data.episodes.records import Spread
from vla_ros.data.episodes.rows import least_gain, mcnemar, pooled, wilson

COUNTS = st.integers(0, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [  # Newcombe 1998, table I, method 3 (Wilson's score), and two of no and only successes
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (10, 10, 0.7225, 1.0000),
    ],
)
def test_wilson_is_that_of_the_literature(successes, episodes, low, high):
    assert wilson(successes, episodes) == pytest.approx((low, high), abs=5e-5)


@given(COUNTS)
def test_an_interval_holds_the_share_and_turns_round(counts):
    successes, episodes = counts
    low, high = wilson(successes, episodes)
    assert 0.0 <= low <= high <= 1.0
    if episodes:
        assert low <= successes / episodes <= high
        assert low < high
        more = wilson(4 * successes, 4 * episodes)
        assert more[1] - more[0] < high - low
    turned = wilson(episodes - successes, episodes)
    assert turned == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_more_successes_than_episodes_are_refused():
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (0, 6, 0.03125), (5, 12, 0.14346), (9, 9, 1.0), (2, 25, 5.648e-06)],
)  # scipy.stats.binomtest(won, won + lost).pvalue
def test_a_paired_comparison_is_the_binomial_test(won, lost, p):
    assert mcnemar(won, lost) == mcnemar(lost, won) == pytest.approx(p, rel=1e-3)


def test_fewer_than_no_episodes_are_refused():
    with pytest.raises(ValueError, match="-1 won, 3 lost"):
        mcnemar(-1, 3)


SAMPLES = st.lists(st.lists(st.floats(-100, 100), max_size=40), max_size=5)


@given(SAMPLES)
def test_pooling_keeps_what_can_be_kept(lists):
    together = pooled([Spread.of(one) for one in lists])
    everything = [value for one in lists for value in one]
    exact = Spread.of(everything)
    assert together.count == exact.count
    assert together.mean == pytest.approx(exact.mean, abs=1e-9)
    assert list(together.quantiles) == sorted(together.quantiles)
    if everything:
        assert (together.quantiles[0], together.quantiles[-1]) == (min(everything), max(everything))


def test_pooled_quantiles_are_near_those_of_all_samples():
    rng = np.random.default_rng(0)
    parts = [rng.normal(50, 5, 300), rng.exponential(20, 900), rng.uniform(0, 10, 50)]
    together = pooled([Spread.of(part) for part in parts])
    exact = Spread.of(np.concatenate(parts))
    assert together.quantiles[1:-1] == pytest.approx(exact.quantiles[1:-1], abs=1.5)
    assert pooled([Spread(), Spread.of(parts[0])]) == Spread.of(parts[0])


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 200))
def test_the_least_gain_is_where_the_likeliest_pairs_are_just_within_chance(won, lost, more):
    """Beside a search for the likeliest probabilities under that gain, which is Tango's test."""
    pairs = won + lost + more
    gain = least_gain(won, lost, pairs)
    assert -1.0 < gain <= (won - lost) / pairs

    low, high = max(0.0, -gain), (1.0 - gain) / 2
    each = np.linspace(low, high, 200_001)[1:-1]  # chance of a loss
    with np.errstate(divide="ignore", invalid="ignore"):
        likely = (
            (won * np.log(each + gain) if won else 0.0)
            + (lost * np.log(each) if lost else 0.0)
            + more * np.log1p(-2 * each - gain)
        )
    loss = each[np.nanargmax(likely)]
    spread = np.sqrt((2 * loss + gain - gain**2) / pairs)
    assert ((won - lost) / pairs - gain) / spread == pytest.approx(1.645, abs=0.02)


def test_too_few_pairs_show_nothing():
    for pairs in (1, 4, 52):
        assert least_gain(0, 0, pairs) == pytest.approx(-(1.645**2) / (pairs + 1.645**2))
    assert least_gain(0, 0, 51) < -0.05 < least_gain(0, 0, 52)
    assert least_gain(9, 2, 140) > 0.0
