"""Training of a corrector: the residual between a chunk's action and the expert's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vla_ros.core.errors import UserError
from vla_ros.engine.models.corrector import Corrector, CorrectorConfig
from vla_ros_lab.train.corrector.examples import Example
from vla_ros_lab.train.loop import Loop, Losses
from vla_ros_lab.train.optimizer import adamw

_LONG = 60.0  # examples of an episode that count in full: of one that is stuck the rest are alike
_TURN, _GRIP = 0.5, 0.5  # weights of rotation and gripper beside 2 of the position
_PLACE = 2.0


@dataclass(frozen=True, slots=True)
class CorrectorOptions:
    """Recipe of a corrector: ``steps`` with demonstrations alone and again after each of ``rounds``
    of ``round_episodes`` episodes of the policy's own. ``mixed``: share of a batch whose action is
    another example's, so that the head does not rely on it. ``own_weight``: how much more often
    than a demonstration's an own episode's example is drawn. ``delays``, ``executed``: chunks of
    the own episodes come so many steps late, each episode by another, and at least so many actions
    of each are executed. ``nudge_m``: the cube is moved by so much on the way in them.
    ``expert_share`` of their steps are the expert's own."""

    steps: int = 2_500
    batch: int = 256
    learning_rate: float = 1.5e-3
    warmup: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    mixed: float = 0.15
    own_weight: float = 3.0
    rounds: int = 3
    round_episodes: int = 80
    delays: tuple[int, ...] = (4, 8)
    executed: int = 4
    nudge_m: float = 0.04
    expert_share: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.round_episodes) < 1 or self.rounds < 0:
            raise UserError("steps, batch and episodes must be at least 1, rounds at least 0")

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear warm-up, then along a cosine to 3 %."""
        fall = 0.03 + 0.97 * (0.5 + 0.5 * math.cos(math.pi * step / self.steps))
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * fall


class CorrectorBatches:
    """Draws batches of examples; those of own episodes begin at number ``own``."""

    def __init__(self, examples: Sequence[Example], own: int, options: CorrectorOptions) -> None:
        if not examples:
            raise UserError("there is nothing to learn from: the data have no frames")
        self._examples, self._options = examples, options
        self._generator = torch.Generator().manual_seed(options.seed)
        _, of, counts = torch.tensor([one.episode for one in examples]).unique(
            return_inverse=True, return_counts=True
        )
        weights = (_LONG / counts[of].float()).clamp(max=1.0) * options.own_weight
        weights[:own] = 1.0
        self._weights = weights

    def draw(self) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Arguments of the corrector's ``forward``, and labels [B, D]."""
        options, draw = self._options, self._generator
        drawn = torch.multinomial(self._weights, options.batch, replacement=True, generator=draw)
        found = [self._examples[number] for number in drawn.tolist()]
        turns = torch.rand(len(found), generator=draw).tolist()
        pairs = [(one, int(t * len(one.bases))) for one, t in zip(found, turns, strict=True)]
        actions, labels, indices, ahead = (
            torch.stack([getattr(one, name)[at] for one, at in pairs])
            for name in ("bases", "labels", "indices", "ahead")
        )
        other = torch.rand(len(found), generator=draw) < options.mixed
        shuffled = actions[torch.randperm(len(found), generator=draw)]
        actions = torch.where(other[:, None], shuffled, actions)
        padded = torch.nn.utils.rnn.pad_sequence([one.rows for one in found], batch_first=True)
        lengths = torch.tensor([len(one.rows) for one in found])
        state = torch.stack([one.state for one in found])
        return (padded, lengths, state, actions, indices, ahead), labels


def train_corrector(
    config: CorrectorConfig,
    options: CorrectorOptions,
    examples: Sequence[Example],
    own: int,
    begin: Corrector | None,
    step_done: Callable[[int, float], None],
    stop: Callable[[], bool],
) -> Corrector:
    """Train from ``begin``, or from nothing, for ``options.steps``; ``step_done`` gets each
    step and its loss. Examples from number ``own`` on are of the policy's own episodes."""
    torch.manual_seed(options.seed)
    corrector = Corrector(config) if begin is None else begin
    corrector.requires_grad_(True).train()
    batches = CorrectorBatches(examples, own, options)

    def losses(_: int) -> Losses:
        inputs, labels = batches.draw()
        with torch.autocast("cpu", torch.bfloat16):
            added = corrector(*inputs)
        wrong = (inputs[3] + added.float() - labels).abs()
        return Losses(
            _PLACE * wrong[:, :3].mean() + _TURN * wrong[:, 3:6].mean() + _GRIP * wrong[:, 6].mean()
        )

    loop = Loop(corrector, adamw(corrector, (0.9, 0.98), options.weight_decay), options, losses)
    # Never before the first step: a round that is stopped leaves a corrector that has learned.
    loop.run(
        options.steps,
        lambda entry: step_done(entry.step + 1, entry.loss),
        lambda: loop.step > 0 and stop(),
    )
    return corrector.requires_grad_(False).eval()
