import math

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from vla_ros.engine.io.tokens import ActionTokens
from vla_ros_lab.train.network import SoftBins, patch_loss, place_loss, token_error

ACTIONS = ActionTokens(960)
CPU = torch.device("cpu")
ONE = torch.ones(1, 1)


def confident(token, vocab=1024):
    logits = torch.full((1, 1, vocab), -10.0)
    logits[0, 0, token] = 10.0
    return logits


def test_without_softness_it_is_the_cross_entropy():
    torch.manual_seed(0)
    logits = torch.randn(3, 7, 1024)
    tokens = torch.randint(ACTIONS.first, ACTIONS.vocab, (3, 7))
    hard = SoftBins(ACTIONS, 0.0, CPU)(logits, tokens, torch.ones(3, 7))
    assert torch.allclose(hard, F.cross_entropy(logits.flatten(0, 1), tokens.flatten()))


def test_a_near_miss_costs_less_than_a_far_one():
    soft = SoftBins(ACTIONS, 2.0, CPU)
    right = torch.tensor([[800]])
    cost = [soft(confident(token), right, ONE).item() for token in (800, 801, 804, 850)]
    assert cost == sorted(cost) and cost[0] < cost[-1]


def test_a_word_is_as_wrong_as_can_be():
    soft = SoftBins(ACTIONS, 2.0, CPU)
    right = torch.tensor([[800]])
    assert soft(confident(5), right, ONE) > soft(confident(800), right, ONE)


def test_a_weight_says_how_much_a_token_counts():
    soft = SoftBins(ACTIONS, 2.0, CPU)
    logits = torch.cat((confident(800), confident(850)), 1)
    right = torch.tensor([[800, 800]])
    both = soft(logits, right, torch.tensor([[3.0, 1.0]]))
    alone = [soft(logits, right, torch.eye(2)[n : n + 1]) for n in range(2)]
    assert torch.allclose(both, 0.75 * alone[0] + 0.25 * alone[1])


def test_the_error_is_in_action_units_and_looks_at_action_tokens_alone():
    logits = confident(ACTIONS.vocab - 1)
    logits[0, 0, 5] = 100.0  # a word
    far = token_error(logits, torch.tensor([[ACTIONS.first]]), ACTIONS)
    near = token_error(logits, torch.tensor([[ACTIONS.vocab - 2]]), ACTIONS)
    assert math.isclose(far, 2.0) and math.isclose(near, 2 / 255, rel_tol=1e-5)


def test_at_the_edge_nothing_is_lost():
    logits = torch.zeros(1, 1, 1024)
    for token in (ACTIONS.first, ACTIONS.vocab - 1, 800):
        loss = SoftBins(ACTIONS, 2.0, CPU)(logits, torch.tensor([[token]]), ONE)
        assert math.isclose(loss.item(), math.log(1024), rel_tol=1e-5)


def test_pointing_is_asked_for_at_the_end_and_at_each_word():
    def pointing(end, first, second):
        logits = torch.zeros(1, 1, 3, 2, 16)
        for row, (one, other) in enumerate((end, first, second)):
            logits[0, 0, row, 0, one] = logits[0, 0, row, 1, other] = 20.0
        return place_loss(logits.flatten(3), torch.tensor([[[5, 9]]])).item()

    right = pointing((5, 9), (5, 0), (0, 9))  # at a word the other thing is not asked for
    assert right < 1e-6
    wrong = [((4, 9), (5, 9), (5, 9)), ((5, 9), (4, 9), (5, 9)), ((5, 9), (5, 9), (5, 8))]
    assert all(pointing(*rows) > 4.0 for rows in wrong)


def test_patches_without_an_object_weigh_little():
    logits = torch.zeros(1, 2, 3)
    logits[0, 0, 1] = 5.0  # right about the object, wrong about the background
    logits[0, 1, 1] = 5.0
    assert patch_loss(logits, torch.tensor([[1, 0]])) < 0.5
