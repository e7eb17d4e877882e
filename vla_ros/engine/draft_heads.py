"""The one-shot draft head: from what a target has just thought, what it may say in the rest.

It sees the target's hidden states (``layers`` of them) where the newest token was chosen, that
token, how many are known, and the last two actions; and gives at once the chances of the bins for
every token that is left but the last (which comes with its predecessor's pass). One product of
small matrices a round and no recursion. Where the bins are in order, what it reads off the hidden
states is joined with where tokens go from the last action: as logits, so that both must agree.

The hidden states of three layers, the token in hand and the loss (:mod:`vla_ros.train.head`) are
EAGLE-3's (Li et al. 2025); one shot in place of its recursion is ours, for short actions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

ONE_SHOT = "one_shot"
RANKED = 16  # alternatives of a token that a tree may hold
MODES = 4  # ways to go on from the last action that are weighed against each other
_CREPT = 16.0  # bins of change that count as one


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """``layers`` of the target are read, of ``hidden`` numbers each; an action has ``tokens`` of
    ``bins``; ``width`` and ``blocks`` are the head's own. ``ordered``: neighbouring bins are
    neighbouring values."""

    layers: tuple[int, ...]
    hidden: int
    tokens: int
    bins: int = 256
    width: int = 256
    blocks: int = 1
    ordered: bool = True
    kind: str = ONE_SHOT

    @property
    def places(self) -> int:
        """Tokens that it guesses: all but the first, which no draft precedes, and the last."""
        return self.tokens - 2


def width_for(hidden: int) -> int:
    """Of a head for a target of that size: small beside a pass of it."""
    return max(256, hidden // 4)


class OneShotHead(nn.Module):
    """See above. ``chances`` [places, places, RANKED]: with s + 1 tokens known, how often the
    alternative of each rank at place p was right; counted after training, 0 where p < s, and
    before it falling with the rank."""

    chances: torch.Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        width, places = config.width, config.places
        self.states = nn.Linear((len(config.layers) + 1) * config.hidden, width)
        self.known = nn.Embedding(config.tokens, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(config.blocks))
        self.norm = nn.RMSNorm(width)
        self.bins = nn.Linear(width, places * config.bins)
        ranks = (1.0 + torch.arange(RANKED)) ** -1.5
        self.register_buffer("chances", (ranks / ranks.sum()).repeat(places, places, 1))
        if config.ordered:
            self.past = nn.Linear(3 * config.tokens, width)
            self.gate = nn.Linear(width, places * MODES)
            far = torch.arange(1 - config.bins, config.bins).abs().float()
            modes = torch.stack([-0.5 * mode * far.log1p() for mode in range(MODES)])
            self.moves = nn.Parameter(modes.repeat(places, 1, 1))

    def forward(self, taps: torch.Tensor, newest: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        """Logits [N, places, bins].

        ``taps`` [N, layers * C]; ``newest`` [N, C], the newest token's embedding in the target;
        ``past`` int64 [N, 1 + 2 tokens]: how many tokens are known, then the bins of the last
        action and of the one before it, -1 where there is none or it is no bin.
        """
        config = self.config
        parts = taps.unflatten(1, (len(config.layers), config.hidden))
        parts = torch.cat((parts, newest[:, None]), 1)
        x = self.states(F.rms_norm(parts, (config.hidden,), eps=1e-6).flatten(1))
        x = x + self.known(past[:, 0])
        last, before = past[:, 1:].split(config.tokens, 1)
        if config.ordered:
            x = x + self.past(self._moved(last, before).to(x.dtype))
        for block in self.blocks:
            x = x + block(x)
        x = self.norm(x)
        logits: torch.Tensor = self.bins(x).unflatten(1, (config.places, config.bins))
        return logits + self._onward(x, last) if config.ordered else logits

    def _moved(self, last: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Where the last action was and how it had changed: [N, 3 tokens]."""
        there = last >= 0
        both = there & (before >= 0)
        where = (2.0 * last / (self.config.bins - 1) - 1.0) * there
        moved = ((last - before) / _CREPT).clamp(-4.0, 4.0) * both
        return torch.cat((where, moved, there.float()), 1)

    def _onward(self, x: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Of every bin, by its distance from the last action's: [N, places, bins]."""
        config = self.config
        weights = F.softplus(self.gate(x)).unflatten(1, (config.places, MODES))
        moves = torch.einsum("npm,pmd->npd", weights, self.moves)
        old = last[:, 1:-1, None]
        bins = torch.arange(config.bins, device=x.device)
        found = moves.gather(2, bins - old.clamp_min(0) + config.bins - 1)
        return found * (old >= 0)


class _Block(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.RMSNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )
