"""The training loop: what passes it for every kind of training."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from vla_ros.core.errors import UserError
from vla_ros_lab.train.loop import Loop, Losses


@dataclass
class Recorder:
    """An optimizer that takes no step: norms of the gradients that it was given, and rates."""

    network: torch.nn.Module
    norms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def step(self, rate: float) -> None:
        grads = [p.grad for p in self.network.parameters() if p.grad is not None]
        self.norms.append(float(torch.stack([g.norm() for g in grads]).norm()))
        self.rates.append(rate)
        self.network.zero_grad()


@dataclass(frozen=True)
class Recipe:
    clip: float = 0.5

    def rate(self, step: int) -> float:
        return 0.1 / (1 + step)


def loop_of(scale: float, weights: tuple[float, float] = (0.0, 0.0)) -> tuple[Loop, Recorder]:
    network = torch.nn.Linear(3, 1)
    recorder = Recorder(network)

    def losses(step: int) -> Losses:
        out = network(torch.ones(1, 3)).sum()
        return Losses(out * scale, patch=out * 0.1, place=out * 0.1)

    return Loop(network, recorder, Recipe(), losses, weights), recorder


def test_gradients_are_clipped_to_the_recipe_s_norm_and_small_ones_left() -> None:
    for scale, norm in ((1000.0, 0.5), (0.1, 0.2)):  # the gradient of sum(w) + b at ones: norm 2
        loop, recorder = loop_of(scale)
        loop.run(2, lambda entry: None, lambda: False)
        assert recorder.norms == pytest.approx([norm, norm], rel=1e-4)
        assert recorder.rates == [0.1, 0.05]


def test_losses_beside_the_actions_count_by_their_weights() -> None:
    loop, recorder = loop_of(0.1, weights=(0.5, 0.25))
    loop.train_step()
    assert recorder.norms == pytest.approx([0.2 * 1.75], rel=1e-4)


def test_a_loss_that_is_no_number_ends_it_in_one_line() -> None:
    loop, _ = loop_of(float("nan"))
    with pytest.raises(UserError, match="the loss of step 0 is no number: lower --learning-rate"):
        loop.train_step()
