"""Acceptance at its edges: what the rules promise one by one, on logits made for it."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from support.engine import CPU, TEXTS, engine_of, play, stream, tiny
from vla_ros.engine import EngineOptions
from vla_ros.engine.decoding.acceptance import (
    Acceptance,
    Exact,
    Relaxed,
    Sampling,
    follow,
    make_acceptance,
)
from vla_ros.engine.decoding.drafters import Draft
from vla_ros.engine.io.tokens import ActionTokens

#: ten action tokens, 20 ... 29, behind twenty of text
ACTIONS = ActionTokens(30, 10)
#: three children of the root; behind the second two more; behind the last of them one
PARENTS = (-1, -1, -1, 1, 1, 4)


def seen(own: list[int], peak: float = 5.0) -> tuple[torch.Tensor, torch.Tensor]:
    """What a greedy rule sees of a target that says this."""
    return torch.tensor(own), torch.full((len(own),), peak)


def draft(tokens: list[int], parents: tuple[int, ...] | None = None) -> Draft:
    return Draft(torch.tensor(tokens, dtype=torch.long), parents=parents)


def relaxed(bins: int = 2, dim: int = 3) -> Relaxed:
    return Relaxed(ACTIONS, bins, dim)


@pytest.mark.parametrize("rule", [Exact(), relaxed()])
def test_the_newest_token_is_where_the_verdict_ends_for_any_draft(rule: Acceptance) -> None:
    """It never leaves the device: a row of what was seen."""
    for own in product((21, 24, 27), repeat=3):
        for tokens in product((21, 24, 27), repeat=2):
            shown = seen([*own])
            verdict = rule.accept(shown, draft([*tokens]), 0)
            newest = rule.newest(shown, verdict)
            assert newest is not None
            assert newest.tolist() == [verdict.tokens[-1]]


def test_the_newest_token_of_a_tree_is_behind_the_last_node_of_its_path() -> None:
    tree = draft([21, 24, 27, 22, 25, 26], PARENTS)
    for wanted, path in (
        ([29, 1, 2, 3, 4, 5, 6], ()),
        ([27, 1, 2, 28, 4, 5, 6], (2,)),
        ([24, 1, 22, 3, 28, 5, 6], (1, 3)),
        ([24, 1, 25, 3, 4, 26, 28], (1, 4, 5)),
    ):
        shown = seen(wanted)
        verdict = Exact().accept(shown, tree, 0)
        newest = Exact().newest(shown, verdict)
        assert verdict.path == path
        assert newest is not None
        assert newest.tolist() == [verdict.tokens[-1]]


def test_a_rule_that_samples_has_no_newest_token_on_the_device() -> None:
    rule = Sampling(ACTIONS, 1.0, 0, CPU)
    shown = (torch.zeros(2, 10),)
    assert rule.newest(shown, rule.accept(shown, draft([21]), 0)) is None


def test_only_a_relaxed_rule_reaches_further_than_the_token_itself() -> None:
    assert [relaxed(4).tolerance(place) for place in range(7)] == [4, 4, 0, 4, 4, 0, 4]
    for rule in (Exact(), Sampling(ACTIONS, 1.0, 0, CPU)):
        assert [rule.tolerance(place) for place in range(7)] == [0] * 7
        assert [rule.matches(24, other, 0) for other in (23, 24, 25)] == [False, True, False]


def test_relaxed_compares_action_tokens_only() -> None:
    """A text token beside the bins is near by its number alone."""
    rule = relaxed()
    assert rule.matches(20, 22, 0) and rule.matches(22, 20, 0)
    assert not rule.matches(20, 23, 0)
    assert not rule.matches(19, 20, 0)
    assert not rule.matches(20, 19, 0)
    assert not rule.matches(29, 30, 0)
    assert not rule.matches(18, 19, 0)
    assert rule.matches(19, 19, 0)  # unless it is what the target says


@pytest.mark.parametrize("start", range(7))
def test_the_gripper_is_told_by_its_place_in_the_action(start: int) -> None:
    """Two places of every three relax, wherever in the action a draft begins."""
    verdict = relaxed().accept(seen([24] * 5), draft([25] * 4), start)
    gripper = next(n for n in range(4) if (start + n) % 3 == 2)
    assert verdict.tokens == (*[25] * gripper, 24)
    assert verdict.accepted == gripper
    tree = draft([25] * 4, (-1, 0, 1, 2))
    assert relaxed().accept(seen([24] * 5), tree, start).accepted == gripper


def test_of_children_equally_near_the_first_is_followed() -> None:
    assert relaxed().accept(seen([24, 1, 2]), draft([25, 23], (-1, -1)), 0).path == (0,)
    assert relaxed().accept(seen([24, 1, 2]), draft([26, 23], (-1, -1)), 0).path == (1,)
    assert relaxed().accept(seen([24, 1, 2]), draft([22, 25], (-1, -1)), 0).path == (1,)


def test_a_tree_that_ends_short_names_the_first_child_that_did_not_stand() -> None:
    tree = draft([21, 24, 27, 22, 25, 26], PARENTS)
    verdict = Exact().accept(seen([24, 1, 29, 3, 4, 5, 6]), tree, 0)
    assert (verdict.draft, verdict.accepted) == ((24, 22), 1)
    assert Exact().accept(seen([29, 1, 2, 3, 4, 5, 6]), tree, 0).draft == (21,)
    assert Exact().accept(seen([27, 1, 2, 28, 4, 5, 6]), tree, 0).draft == (27,)


def test_a_path_knows_whether_all_that_was_seen_was_finite() -> None:
    for finite in (True, False):
        assert follow([24, 25], [24], [-1], 0, lambda d, o, p: d == o, finite).finite is finite


@pytest.mark.parametrize("broken", [None, 0, 3])
@pytest.mark.parametrize("parents", [None, (-1, 0, 0)])
def test_one_broken_row_is_enough(parents: tuple[int, ...] | None, broken: int | None) -> None:
    """Of a chain and of a tree, greedy or drawn, though the row be of no token that stood."""
    choices, maxima = seen([24, 24, 24, 24])
    logits = torch.randn(4, 10)
    if broken is not None:
        maxima[broken] = logits[broken, 4] = float("nan")
    offered = draft([24, 24, 24], parents)
    for rule, shown in (
        (Exact(), (choices, maxima)),
        (relaxed(), (choices, maxima)),
        (Sampling(ACTIONS, 1.0, 0, CPU), (logits,)),
    ):
        assert rule.accept(shown, offered, 0).finite is (broken is None)


def test_a_certain_target_is_sampled_as_greedy_decoding_would_say() -> None:
    """One token has all the chance: drafts stand or fall by it, whatever is drawn."""
    rule = Sampling(ACTIONS, 0.5, 3, CPU)
    logits = torch.full((4, 10), -1e4)
    for row, token in enumerate((23, 20, 29, 25)):
        logits[row, token - 20] = 1e4
    exact = seen([23, 20, 29, 25])
    for tokens in ([23, 20, 29], [23, 20, 28], [23, 21, 29], [24, 20, 29], [23, 20], [23], [29]):
        rows = len(tokens) + 1
        wanted = Exact().accept(tuple(part[:rows] for part in exact), draft(tokens), 0)
        got = rule.accept((logits[:rows],), draft(tokens), 0)
        assert (got.tokens, got.own, got.draft) == (wanted.tokens, wanted.tokens, wanted.draft)
        assert (got.accepted, got.finite, got.path) == (wanted.accepted, True, ())
    for tokens in ([23, 24, 20], [23, 24, 21], [24, 25, 20]):
        tree = draft(tokens, (-1, -1, 0))
        assert rule.accept((logits,), tree, 0) == Exact().accept(exact, tree, 0)


@pytest.mark.parametrize("certain", [True, False])
def test_a_draft_that_agrees_with_the_target_always_stands(certain: bool) -> None:
    """Where nothing is left to draw instead, none is drawn."""
    torch.manual_seed(0)
    logits = torch.randn(3, 10)
    if certain:
        logits = torch.full((3, 10), -1e4)
        logits[:, 4] = 1e4
    rule, target = Sampling(ACTIONS, 1.0, 0, CPU), logits.softmax(-1)
    for _ in range(50):
        tokens = 20 + torch.multinomial(target[:2], 1)[:, 0]
        offered = Draft(tokens, None if certain else target[:2])
        assert rule.accept((logits,), offered, 0).accepted == 2


def test_what_replaces_a_refused_draft_is_another_token() -> None:
    """A certain draft that fell is not drawn again; nor one its distribution made too likely."""
    rule, logits = Sampling(ACTIONS, 1.0, 0, CPU), torch.zeros(2, 10)
    sure = torch.zeros(1, 10)
    sure[0, 4] = 1.0
    fallen = 0
    for probabilities in (None, sure):
        for _ in range(60):
            verdict = rule.accept((logits,), Draft(torch.tensor([24]), probabilities), 0)
            if not verdict.accepted:
                fallen += 1
                assert verdict.tokens[0] != 24
    assert 80 < fallen < 119


def test_draws_follow_the_seed() -> None:
    """The same seed says the same; another does not; and it goes on, it does not repeat."""

    def said(seed: int) -> list[int]:
        rule = Sampling(ACTIONS, 1.0, seed, CPU)
        out = []
        for _ in range(20):
            out += rule.accept((torch.zeros(3, 10),), draft([24, 25]), 0).tokens
            out += rule.plain((torch.zeros(1, 10),))[0].tolist()
        return out

    assert said(5) == said(5) != said(6)
    assert len(set(said(5))) == 10


def test_a_temperature_sharpens_or_flattens() -> None:
    """Two tokens, one of e times the chance of the other at temperature 1."""
    logits = torch.full((1, 10), -1e4)
    logits[0, :2] = torch.tensor([1.0, 0.0])
    shares = []
    for temperature in (0.2, 1.0, 5.0):
        rule = Sampling(ACTIONS, temperature, 0, CPU)
        drawn = [int(rule.plain((logits,))[0]) for _ in range(400)]
        assert set(drawn) == {20, 21}
        shares.append(drawn.count(20) / 400)
    assert shares == pytest.approx([0.993, 0.731, 0.550], abs=0.06)


def test_logits_in_bfloat16_are_sampled_in_full_precision() -> None:
    rule = Sampling(ACTIONS, 0.7, 0, CPU)
    logits = torch.randn(3, 10, dtype=torch.bfloat16)
    assert len(rule.accept((logits,), draft([24, 25]), 0).tokens) >= 1
    token, peak = rule.plain((logits[:1],))
    assert token.shape == (1,)
    assert peak.tolist() == logits[:1].amax(-1).tolist()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, Exact),
        ({"acceptance": "exact"}, Exact),
        ({"acceptance": "relaxed", "relaxed_distance": 3}, Relaxed),
        ({"acceptance": "sampling", "temperature": 0.1, "seed": 7}, Sampling),
    ],
)
def test_options_name_the_rule(options: dict[str, object], kind: type[Acceptance]) -> None:
    asked = EngineOptions("memory", decoding="speculative", **options)  # type: ignore[arg-type]
    rule = make_acceptance(asked, ACTIONS, 3, CPU)
    assert type(rule) is kind
    assert rule.lossless is (kind is Exact)
    if isinstance(rule, Relaxed):
        assert [rule.tolerance(place) for place in range(4)] == [3, 3, 0, 3]
        assert rule.matches(20, 23, 0) and not rule.matches(19, 20, 0)
    if isinstance(rule, Sampling):
        assert rule.window == range(20, 30)
        same = Sampling(ACTIONS, 0.1, 7, CPU)
        logits = torch.randn(1, 10) / 5
        drawn = [[int(each.plain((logits,))[0]) for _ in range(30)] for each in (rule, same)]
        assert drawn[0] == drawn[1]
    else:
        assert rule.window is None


@pytest.mark.parametrize(
    "options",
    [
        {"acceptance": "exact"},
        {"acceptance": "relaxed", "relaxed_distance": 0},
        {"acceptance": "exact", "drafter": "temporal_tree"},
    ],
    ids=str,
)
def test_a_rule_that_gives_nothing_away_says_what_generate_says(options: dict[str, object]) -> None:
    """Whether the device is asked with a prompt, with a draft behind it, or with a draft alone."""
    checkpoint, events = tiny(seed=6, dim=4), stream(8, {0: TEXTS[0]}, seed=6)
    wanted = play(engine_of(checkpoint, "generate"), events)
    engine = engine_of(checkpoint, "speculative", adaptive_draft=False, gamma=2, **options)
    answers = play(engine, events)
    assert {s: a.tokens for s, a in answers.items()} == {s: a.tokens for s, a in wanted.items()}
    assert any(a.target_passes < 4 for a in answers.values())  # drafts stood
    assert any(a.target_passes > 1 for a in answers.values())  # and fell


def test_a_token_without_any_chance_is_no_damage_a_row_without_any_token_is() -> None:
    """Minus infinity masks a token; where it masks them all, there is nothing to draw."""
    rule, logits = Sampling(ACTIONS, 1.0, 0, CPU), torch.zeros(3, 10)
    logits[:, 4] = float("-inf")
    for _ in range(30):
        verdict = rule.accept((logits,), draft([24, 25]), 0)
        assert verdict.finite
        assert 24 not in verdict.tokens
    logits[1] = float("-inf")
    assert not rule.accept((logits,), draft([25, 25]), 0).finite
    assert not rule.accept((logits,), draft([25, 26], (-1, -1)), 0).finite
