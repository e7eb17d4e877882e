"""A corrector in training: the residual between what a chunk says and what the expert would do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from vla_ros.core.errors import UserError
from vla_ros.engine.models.corrector import Corrector, CorrectorConfig
from vla_ros_lab.train.corrector.examples import Examples

_LONG = 60.0  # examples of an episode that count in full: of one that is stuck the rest are alike
_TURN, _GRIP = 0.5, 0.5  # weights of rotation and gripper beside 2 of the position
_PLACE = 2.0


@dataclass(frozen=True, slots=True)
class CorrectorOptions:
    """``steps`` with demonstrations alone and again after each of ``rounds`` of ``round_episodes``
    episodes of the policy's own. ``mixed``: share of a batch whose action is another example's, so
    that the head does not rely on it. ``own_weight``: how much more often than a demonstration's an
    own episode's example is drawn. ``delays``, ``executed``: chunks of the own episodes come so
    many steps late, each episode by another, and at least so many actions of each are executed.
    ``nudge_m``: the cube is moved by so much on the way in them. ``expert_share`` of their steps
    are the expert's own."""

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

    def __init__(self, examples: Examples, own: int, options: CorrectorOptions) -> None:
        if not len(examples):
            raise UserError("there is nothing to learn from: the data have no frames")
        self._examples, self._options = examples, options
        self._generator = torch.Generator().manual_seed(options.seed)
        _, of, counts = torch.tensor(examples.episode).unique(
            return_inverse=True, return_counts=True
        )
        weights = (_LONG / counts[of].float()).clamp(max=1.0) * options.own_weight
        weights[:own] = 1.0
        self._weights = weights

    def draw(self) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """What the corrector is given, the arguments of its ``forward``, and labels [B, D]."""
        options, examples, draw = self._options, self._examples, self._generator
        drawn = torch.multinomial(self._weights, options.batch, replacement=True, generator=draw)
        which = drawn.tolist()
        turns = torch.rand(len(which), generator=draw).tolist()
        places = [int(t * len(examples.bases[n])) for n, t in zip(which, turns, strict=True)]
        pairs = list(zip(which, places, strict=True))
        actions = torch.stack([examples.bases[n][p] for n, p in pairs])
        labels = torch.stack([examples.labels[n][p] for n, p in pairs])
        indices = torch.stack([examples.indices[n][p] for n, p in pairs])
        ahead = torch.stack([examples.ahead[n][p] for n, p in pairs])
        other = torch.rand(len(which), generator=draw) < options.mixed
        shuffled = actions[torch.randperm(len(which), generator=draw)]
        actions = torch.where(other[:, None], shuffled, actions)
        rows = [examples.rows[n] for n in which]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(r) for r in rows])
        state = torch.stack([examples.state[n] for n in which])
        return (padded, lengths, state, actions, indices, ahead), labels


def train_corrector(
    config: CorrectorConfig,
    options: CorrectorOptions,
    examples: Examples,
    own: int,
    begin: Corrector | None,
    step_done: Callable[[int, float], None],
    stop: Callable[[], bool],
) -> Corrector:
    """Train from ``begin``, or from nothing, for ``options.steps``; ``step_done`` hears of each
    step and its loss. Examples from number ``own`` on are of the policy's own episodes."""
    torch.manual_seed(options.seed)
    corrector = Corrector(config) if begin is None else begin
    corrector.requires_grad_(True).train()
    batches = CorrectorBatches(examples, own, options)
    optimizer = torch.optim.AdamW(
        corrector.parameters(), options.learning_rate, (0.9, 0.98),
        weight_decay=options.weight_decay,
    )  # fmt: skip
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = options.rate(step)
        given, labels = batches.draw()
        with torch.autocast("cpu", torch.bfloat16):
            added = corrector(*given)
        wrong = (given[3] + added.float() - labels).abs()
        loss = (
            _PLACE * wrong[:, :3].mean() + _TURN * wrong[:, 3:6].mean() + _GRIP * wrong[:, 6].mean()
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(corrector.parameters(), options.clip)
        optimizer.step()
        step_done(step + 1, float(loss.detach()))
        if stop():
            break
    return corrector.requires_grad_(False).eval()
