"""The losses: soft bins over the action tokens, and which object is centred in which patch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.tokens import ActionTokens
from vla_ros.train.data.places import NOWHERE

_BACKGROUND = 0.05  # weight of patches without an object's centre: nearly all of them


@dataclass(frozen=True, slots=True)
class Losses:
    """Of one batch: of the actions, of the two auxiliary heads, and the error (see Entry)."""

    action: torch.Tensor
    patch: torch.Tensor
    place: torch.Tensor
    error: torch.Tensor


class SoftBins:
    """Cross-entropy against a Gaussian over the bins: a near miss costs less than a far one.

    ``sigma`` in bins; 0 is the hard cross-entropy (which stays at chance on little data).
    """

    def __init__(self, actions: ActionTokens, sigma: float, device: torch.device) -> None:
        self.actions = actions
        self._first, self._end = actions.first, actions.vocab
        bins = torch.arange(actions.bins, device=device, dtype=torch.float32)
        if sigma > 0:
            weights = torch.exp(-0.5 * ((bins[:, None] - bins[None]) / sigma) ** 2)
        else:
            weights = torch.eye(actions.bins, device=device)
        self._weights = weights / weights.sum(1, keepdim=True)

    def __call__(
        self, logits: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Logits [..., V] over the whole vocabulary, action tokens [...] and their weights
        [...] -> the weighted mean loss."""
        chances = logits.float().log_softmax(-1)[..., self._first : self._end]
        each = -(self._weights[tokens - self._first] * chances).sum(-1)
        return (each * weights).sum() / weights.sum()


def token_error(logits: torch.Tensor, tokens: torch.Tensor, actions: ActionTokens) -> torch.Tensor:
    """Mean distance of the likeliest action token from the right one, in units of [-1, 1]."""
    likeliest = logits[..., actions.first : actions.vocab].argmax(-1) + actions.first
    return (likeliest - tokens).abs().float().mean() * 2 / (actions.bins - 1)


def patch_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Logits [B, P, K + 1], labels int64 [B, P] with 0 for no object -> the mean loss."""
    weight = torch.ones(logits.shape[-1], device=logits.device)
    weight[0] = _BACKGROUND
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), weight=weight)


def place_loss(logits: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Logits [B, K, 3, 2 P] of two patches, places int64 [B, K, 2], NOWHERE for none -> the mean.

    At the end of the sentence both are asked for, at the word for a thing that thing alone.
    """
    end, first, second = logits.float().unflatten(-1, (2, -1)).unbind(2)
    each = torch.stack((end[:, :, 0], end[:, :, 1], first[:, :, 0], second[:, :, 1]), 2)
    wanted = torch.cat((places, places), -1)
    return F.cross_entropy(each.flatten(0, 2), wanted.flatten(), ignore_index=NOWHERE)
