"""Rejection sampling keeps the distribution; relaxed keeps its bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from support.engine import (
    CLOCK,
    CPU,
    TEXTS,
    engine_of,
    noted,
    observation,
    play,
    stream,
    tiny,
    tiny_config,
)
from vla_ros.core.types import Timeline
from vla_ros.engine import InvalidAction
from vla_ros.engine.decoding.acceptance import Exact, Relaxed, Sampling, Verification
from vla_ros.engine.decoding.drafters import Draft
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.engine.layers.pack import PackLayout, prefill_layout

V = 12
ALL = ActionTokens(V, V)  # every token is an action token


def draft(tokens: list[int], probabilities: torch.Tensor | None = None) -> Draft:
    return Draft(torch.tensor(tokens, dtype=torch.long), probabilities)


def logits_for(tokens: list[int], vocab: int = V) -> torch.Tensor:
    out = torch.zeros(len(tokens), vocab)
    out[range(len(tokens)), tokens] = 5.0
    return out


def test_exact_keeps_the_matching_prefix_and_one_token_more() -> None:
    verdict = Exact().accept(seen(logits_for([3, 4, 9, 6])), draft([3, 4, 5]), 0)
    assert verdict == Verification((3, 4, 9), (3, 4, 9), (3, 4, 5), 2, True)
    assert Exact().accept(seen(logits_for([3, 4])), draft([3]), 0).tokens == (3, 4)  # the bonus


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("rule", [Exact(), Sampling(ALL, 1.0, 0, CPU)])
def test_a_broken_logit_is_reported(rule: Exact | Sampling, value: float) -> None:
    logits = logits_for([3, 4])
    logits[1, 0] = value
    shown = seen(logits) if isinstance(rule, Exact) else (logits,)
    assert not rule.accept(shown, draft([3]), 0).finite
    assert not rule.plain(tuple(rows[1:] for rows in shown))[1].isfinite()


def test_relaxed_keeps_near_drafts_but_not_a_gripper() -> None:
    rule = Relaxed(ALL, bins=2, action_dim=3)
    verdict = rule.accept(seen(logits_for([3, 4, 9, 6])), draft([5, 4, 8]), 0)
    assert verdict.tokens == (5, 4, 9)  # position 2 is the gripper: 8 is not 9
    assert verdict.own == (3, 4, 9)
    assert rule.accept(seen(logits_for([3, 4])), draft([6]), 0).tokens == (3,)  # 3 bins off
    assert not rule.lossless


def tree(tokens: list[int], parents: tuple[int, ...]) -> Draft:
    return Draft(torch.tensor(tokens), parents=parents)


#: two children of the root, 3 and 4; behind 4 again 4 and 6; behind that 6 an 8
TREE = tree([3, 4, 4, 6, 8], (-1, -1, 1, 1, 3))


def test_of_a_tree_the_path_stands_that_the_target_says() -> None:
    """Rows: behind the root, behind node 0, 1, ..."""
    verdict = Exact().accept(seen(logits_for([4, 0, 6, 0, 9, 0])), TREE, 0)
    assert verdict == Verification((4, 6, 9), (4, 6, 9), (4, 6, 8), 2, True, (1, 3))
    whole = Exact().accept(seen(logits_for([4, 0, 6, 0, 8, 2])), TREE, 0)
    assert whole == Verification((4, 6, 8, 2), (4, 6, 8, 2), (4, 6, 8), 3, True, (1, 3, 4))
    none = Exact().accept(seen(logits_for([5, 0, 0, 0, 0, 0])), TREE, 0)
    assert none == Verification((5,), (5,), (3,), 0, True, ())


def test_of_near_children_the_exact_one_is_followed_and_the_gripper_is_exact() -> None:
    rule = Relaxed(ALL, bins=2, action_dim=3)
    # 5 at the root: 4 is nearer than 3; behind it 4 is said and offered, 6 would do too.
    verdict = rule.accept(seen(logits_for([5, 0, 4, 7, 0, 0])), TREE, 0)
    assert (verdict.tokens, verdict.own, verdict.path) == ((4, 4, 7), (5, 4, 7), (1, 2))
    # 5 and 6 are both one bin off 4 ... and one is the gripper's place: nothing is near enough.
    assert rule.accept(seen(logits_for([5, 0, 0, 0, 0, 0])), TREE, 2).path == ()
    # Behind 6 comes the gripper: 8 is not 9.
    assert rule.accept(seen(logits_for([4, 0, 6, 0, 9, 0])), TREE, 0).tokens == (4, 6, 9)


def test_sampling_over_a_tree_draws_the_targets_distribution() -> None:
    """First and second token of many walks, whatever the tree holds."""
    torch.manual_seed(0)
    actions = ActionTokens(20 + V, V)
    rule = Sampling(actions, 0.7, 1, CPU)
    first_row, behind = torch.randn(V) * 1.5, torch.randn(V, V) * 1.5  # behind every first token
    likely = [20 + int(t) for t in first_row.topk(3).indices]
    below = [20 + int(behind[t - 20].argmax()) for t in likely]
    offered = tree([*likely, *below], (-1, -1, -1, 0, 1, 2))
    rows = torch.stack([first_row, *(behind[t - 20] for t in likely), *torch.randn(3, V)])
    first, second = np.zeros(V), np.zeros(V)
    for _ in range(4_000):
        out = rule.accept((rows,), offered, 0).tokens
        first[out[0] - 20] += 1
        if out[0] == likely[0]:
            second[out[1] - 20] += 1
    assert chi_square(first, torch.softmax(first_row / 0.7, -1).numpy()) > 1e-3
    wanted = torch.softmax(behind[likely[0] - 20] / 0.7, -1).numpy()
    assert second.sum() > 500
    assert chi_square(second, wanted) > 1e-3


def test_only_exact_acceptance_says_what_greedy_decoding_says() -> None:
    assert Exact().lossless
    assert not Sampling(ALL, 1.0, 0, CPU).lossless
    assert engine_of(tiny(), "speculative").decoder.decoding.lossless
    assert not engine_of(tiny(), "speculative", acceptance="sampling").decoder.decoding.lossless


def seen(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a greedy rule sees of logits."""
    maxima, choices = logits.max(-1)
    return choices, maxima


def chi_square(counts: np.ndarray, chances: np.ndarray) -> float:
    """p-value, cells of fewer than 5 expected draws put together."""
    expected = chances * counts.sum()
    order = np.argsort(expected)
    small = order[np.cumsum(expected[order]) < 5]
    rest = np.setdiff1d(order, small)
    observed, wanted = counts[rest], expected[rest]
    if len(small):
        observed = np.append(observed, counts[small].sum())
        wanted = np.append(wanted, expected[small].sum())
    wanted = wanted * observed.sum() / wanted.sum()
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    half_freedom = torch.tensor((len(observed) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_freedom, torch.tensor(statistic / 2).double()))


@pytest.mark.parametrize("certain", [True, False])
def test_sampling_draws_the_targets_distribution_whatever_the_draft(certain: bool) -> None:
    torch.manual_seed(0)
    actions = ActionTokens(20 + V, V)
    rule, generator = Sampling(actions, 0.7, 1, CPU), torch.Generator().manual_seed(2)
    logits = torch.randn(3, V) * 1.5  # of the action tokens, which begin with number 20
    wanted = torch.softmax(logits / 0.7, -1).numpy()
    guess = torch.softmax(torch.randn(2, V), -1)
    likely = 20 + logits[:2].argmax(-1)
    first, second = np.zeros(V), np.zeros((V, V))
    for _ in range(4_000):
        tokens = 20 + torch.multinomial(guess, 1, generator=generator)[:, 0]
        offered = Draft(likely, None) if certain else Draft(tokens, guess)
        out = [t - 20 for t in rule.accept((logits,), offered, 0).tokens]
        first[out[0]] += 1
        if len(out) > 1:
            second[out[0], out[1]] += 1
    assert chi_square(first, wanted[0]) > 1e-3
    # Given that the first draft stood, the second place has its own distribution.
    after = second.sum(0)
    assert after.sum() > 500
    assert chi_square(after, wanted[1]) > 1e-3


def test_sampling_without_a_draft_draws_the_same() -> None:
    torch.manual_seed(0)
    rule, logits = Sampling(ActionTokens(20 + V, V), 0.7, 1, CPU), torch.randn(1, V) * 1.5
    counts = np.zeros(V)
    for _ in range(4_000):
        token, peak = rule.plain((logits,))
        counts[int(token) - 20] += 1
    assert peak == logits.max()
    assert chi_square(counts, torch.softmax(logits[0] / 0.7, -1).numpy()) > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("drafter", ["temporal", "temporal_tree", "model"])
def test_sampled_actions_follow_the_models_distribution(
    drafter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The whole loop on a small model: the two tokens of many actions of one frame."""
    directory = tmp_path_factory.mktemp("draft")
    write_random(directory, tiny_config("qwen2_tied"), seed=9)
    checkpoint = tiny(seed=5, dim=2)
    engine = engine_of(
        checkpoint, "speculative", acceptance="sampling", temperature=0.25, drafter=drafter,
        draft_checkpoint=str(directory), adaptive_draft=False, seed=3,
    )  # fmt: skip
    frame = stream(1, {0: TEXTS[0]})
    play(engine, frame)
    request = engine.encode(observation(0, frame[0].image), Timeline(0), CLOCK)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(1_200):
        tokens = engine.decoder.decoding.step(request).tokens  # type: ignore[union-attr]
        counts[tokens] = counts.get(tokens, 0) + 1
    runner, length, actions = engine.model.runner(1, 300), len(request.prompt), engine.model.actions
    first = runner.logits(prefill_layout(length, (length - 1,)), request.prompt, None)[0]
    one = torch.softmax(first[actions.first : actions.vocab] / 0.25, -1)
    observed, chances = [], []
    for place in one.topk(4).indices.tolist():
        token, layout = actions.first + place, PackLayout((length,), length + 1)
        behind = runner.logits(layout, request.prompt, torch.tensor([token]))[0]
        two = torch.softmax(behind[actions.first : actions.vocab] / 0.25, -1)
        for other in two.topk(4).indices.tolist():
            observed.append(counts.get((token, actions.first + other), 0))
            chances.append(float(one[place] * two[other]))
    total = sum(counts.values())
    observed.append(total - sum(observed))
    chances.append(1 - sum(chances))
    assert chances[0] < 0.9  # not a foregone conclusion
    assert chi_square(np.array(observed, float), np.array(chances)) > 1e-3


@pytest.mark.parametrize("drafter", ["temporal", "temporal_tree", "model"])
def test_a_text_token_is_never_drawn(drafter: str, tmp_path: Path) -> None:
    """However loud it is; greedy decoding would say it, and refuse it."""
    write_random(tmp_path, tiny_config("qwen2_tied"), seed=9)
    checkpoint = tiny(seed=5)
    head = checkpoint.tensors["language_model.lm_head.weight"]
    head[100] = head[900] * 50
    head[101] = -head[100]
    engine = engine_of(
        checkpoint, "speculative", acceptance="sampling", drafter=drafter,
        draft_checkpoint=str(tmp_path),
    )  # fmt: skip
    answers = play(engine, stream(12, {0: TEXTS[0]}))
    assert all(engine.model.actions.is_action(t) for a in answers.values() for t in a.tokens)
    with pytest.raises(InvalidAction, match="is no action token"):
        play(engine_of(checkpoint), stream(12, {0: TEXTS[0]}))


@pytest.mark.parametrize("bins", [0, 2, 9])
def test_relaxed_stays_within_its_bounds_over_an_episode(bins: int) -> None:
    checkpoint = tiny(seed=6)
    events = stream(60, {0: TEXTS[0], 30: TEXTS[1]}, seed=6)
    engine = engine_of(
        checkpoint, "speculative", acceptance="relaxed", relaxed_distance=bins, adaptive_draft=False
    )
    exact = play(engine_of(checkpoint), events)
    seen = noted(engine.decoder.decoding)
    answers = play(engine, events)
    distances = [[abs(t - o) for t, o in zip(d.tokens, d.own, strict=True)] for d in seen]
    assert max(max(row) for row in distances) <= bins
    assert all(row[6] == 0 for row in distances)  # the gripper is the target's own
    if bins == 0:
        assert all(a.tokens == exact[s].tokens for s, a in answers.items())
    else:
        assert any(max(row) > 0 for row in distances)  # it does relax
        # Drift: drafts come from the target's own choices, so no error is carried on: the
        # last third of an episode is no further from exact than the first, within noise.
        drift = [
            float(np.abs(answers[s].actions - exact[s].actions).mean()) for s in sorted(answers)
        ]
        assert np.mean(drift[20:30]) <= np.mean(drift[:10]) + 0.35
