"""What guessing is worth: the formulas against throwing the dice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros_lab.roofline.speculation import (
    best_gamma,
    break_even,
    expected_tokens,
    fused,
    landscape,
    speedup,
    unfused,
)

alphas = st.floats(0.0, 1.0)
gammas = st.integers(1, 12)


def play_fused(rng, alpha: float, tokens: int, gamma: int) -> tuple[int, int]:
    """One action, drafts thrown one by one, as the speculative decoding does it."""
    done = passes = drafted = 0
    while done < tokens:
        passes += 1
        length = min(gamma, tokens - done - 1)
        drafted += length
        hits = 0
        while hits < length and rng.random() < alpha:
            hits += 1
        done += hits + 1  # the accepted ones and the target's own
    return passes, drafted


def play_unfused(rng, alpha: float, tokens: int, gamma: int) -> tuple[int, int]:
    """The same as vanilla_speculative does it: the next token is known before each draft."""
    done, passes, drafted = 0, 1, 0  # the prefill
    while done < tokens:
        if tokens - done == 1:
            break  # its token is known from the pass before
        length = min(gamma, tokens - done - 1)
        passes, drafted = passes + 1, drafted + length
        hits = 0
        while hits < length and rng.random() < alpha:
            hits += 1
        done += hits + 1
        passes += done < tokens  # the correction or bonus token alone
    return passes, drafted


@pytest.mark.parametrize(("formula", "play"), [(fused, play_fused), (unfused, play_unfused)])
@pytest.mark.parametrize(("alpha", "tokens", "gamma"), [(0.3, 7, 6), (0.8, 7, 3), (0.6, 16, 4)])
def test_expected_passes_are_what_dice_give(formula, play, alpha, tokens, gamma):
    rng = np.random.default_rng(0)
    thrown = np.array([play(rng, alpha, tokens, gamma) for _ in range(6000)])
    expected = formula(alpha, tokens, gamma)
    error = 4 * thrown.std(axis=0) / np.sqrt(len(thrown))
    assert abs(thrown[:, 0].mean() - expected.passes) < error[0]
    assert abs(thrown[:, 1].mean() - expected.drafted) < error[1]


def test_expected_tokens_are_what_dice_give():
    rng = np.random.default_rng(1)
    hits = rng.random((20000, 6)) < 0.7
    tokens = 1 + np.cumprod(hits, axis=1).sum(axis=1)
    assert tokens.mean() == pytest.approx(expected_tokens(0.7, 6), rel=0.01)


@pytest.mark.parametrize(("alpha", "passes"), [(0.275, 5.35), (0.5, 4.0), (0.7, 2.8), (0.9, 1.6)])
def test_known_expected_passes(alpha, passes):
    assert fused(alpha, 7).passes == pytest.approx(passes)


@given(alphas, st.integers(1, 32))
def test_each_wrong_token_costs_one_pass(alpha, tokens):
    assert fused(alpha, tokens).passes == pytest.approx(1 + (tokens - 1) * (1 - alpha))


@given(alphas, st.integers(1, 32), gammas)
def test_never_more_passes_than_tokens(alpha, tokens, gamma):
    assert 1 <= fused(alpha, tokens, gamma).passes <= tokens + 1e-9


@given(gammas, st.floats(0.0, 0.99))
def test_break_even_is_where_nothing_is_won(gamma, c):
    alpha = break_even(gamma, c)
    assert alpha is not None
    assert speedup(alpha, gamma, c) == pytest.approx(1.0, abs=1e-6)


def test_a_draft_as_dear_as_the_target_never_pays():
    assert break_even(6, 1.0) is None
    assert speedup(1.0, 6, 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize(("c", "alpha"), [(1 / 13.5, 0.31), (5.49 / 17.2, 0.68)])
def test_known_break_even(c, alpha):
    assert break_even(6, c) == pytest.approx(alpha, abs=0.005)


def test_a_perfect_free_draft_gains_gamma_tokens():
    assert speedup(1.0, 6, 0.0) == 7.0
    assert speedup(0.0, 6, 0.1) == pytest.approx(1 / 1.6)


def test_the_best_draft_grows_with_acceptance():
    lengths = [best_gamma(a, 0.074, 6) for a in (0.0, 0.275, 0.5, 0.7, 0.9)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 0


def test_the_landscape_rises_with_alpha_and_falls_with_c():
    gain = landscape(6, np.linspace(0, 1, 11).tolist(), np.linspace(0, 1, 5).tolist())
    assert gain.shape == (5, 11)
    assert (np.diff(gain, axis=1) > 0).all()
    assert (np.diff(gain, axis=0) < 0).all()


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(alpha):
    with pytest.raises(ValueError, match="0 to 1"):
        expected_tokens(alpha, 6)
