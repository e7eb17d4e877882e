"""Draft head: a small network that reads the target's hidden states and drafts its next tokens.

It reads the outputs of three of the target's layers (*taps*) where the target chose its newest
token, and that token's embedding (EAGLE-3, Li et al. 2025). One narrow transformer layer names the
next token; its output takes the place of the target's taps one token on, so that the head can be
asked again (section 3). Where the target has run, its own taps take the place of such guesses. The
head is also given what earlier answers let one expect (:mod:`.temporal_prediction`, of FAST tokens
:mod:`.fast_drafter`); where bins are in order that is joined with what it reads off the taps, as
logits, so that both must agree. :mod:`vla_ros_lab.train.head` trains it.

Its context are the tokens of this answer and the prompt's last state, not the whole prompt. That,
its narrowness (``width`` less than the target's C) and the expectation are ours. *Position* j is
where token j of the answer was chosen; there the head guesses token j + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

Embed = Callable[[torch.Tensor], torch.Tensor]  # token ids -> the target's embeddings

LEVELS = 12  # of recursive drafts: EAGLE-3's 8, and what HeteroSpec adds at most
RANKED = 16  # candidates of a token that a tree may hold
MODES = 4  # ways to lie around what is expected that are weighed against each other
_CREPT = 16.0  # bins of change that count as one


@dataclass(frozen=True, slots=True)
class RecursiveConfig:
    """``layers`` of the target are read, of ``hidden`` numbers each; an answer has ``tokens`` of
    ``bins``, every action ``dim`` of them; ``width`` and ``heads`` are the head's own.
    ``ordered``: neighboring bins are neighboring values."""

    layers: tuple[int, ...]
    hidden: int
    tokens: int
    dim: int
    bins: int = 256
    width: int = 128
    heads: int = 4
    ordered: bool = True

    @property
    def places(self) -> int:
        """Number of tokens that it guesses: all but the first and the last."""
        return self.tokens - 2


def recursive_width(hidden: int) -> int:
    """Width of a head for a target so wide: 128 for the small one, 1024 for a 7B's 4096."""
    return max(128, hidden // 4)


def heads_for(width: int) -> int:
    """Number of attention heads of a width: each of 32 numbers, of 64 where it is wide."""
    return max(1, width // (32 if width < 512 else 64))


@dataclass(frozen=True, slots=True)
class Expected:
    """Expectation of the tokens that are guessed: bins int64 [...], ``last`` and those a step
    ``before``; -1 where unknown or no bin. ``places`` int64 [...]."""

    places: torch.Tensor
    last: torch.Tensor
    before: torch.Tensor


class RecursiveHead(nn.Module):
    """Guesses token after token, each from its own state one token back.

    ``chances`` [places, LEVELS, RANKED]: with s + 1 tokens known, how often the candidate of each
    rank was right on each level, given that all before it were; counted after training, 0 beyond
    the answer, before it falling with the rank.
    """

    chances: torch.Tensor

    def __init__(self, config: RecursiveConfig) -> None:
        super().__init__()
        self.config = config
        width, inner = config.width, config.width * 11 // 4
        self.taps = nn.Linear(len(config.layers) * config.hidden, width, bias=False)
        self.token = nn.Linear(config.hidden, width, bias=False)
        self.place = nn.Embedding(config.tokens, width)
        self.norm_token, self.norm_state = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(2 * width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_inner = nn.RMSNorm(width)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.norm = nn.RMSNorm(width)
        self.wide = nn.Linear(width, config.hidden, bias=False)
        self.bins = nn.Linear(config.hidden, config.bins, bias=False)
        self.past = nn.Linear(3, width)
        if config.ordered:
            self.gate = nn.Linear(width, MODES)
            self.moves = nn.Parameter(_modes(config.bins).repeat(config.dim, 1, 1))
        else:
            self.trust = nn.Parameter(torch.zeros(width))
        chances = _falling().repeat(config.places, LEVELS, 1)
        self.register_buffer("chances", chances * reachable(config.places)[:, :, None])

    def seen(self, taps: torch.Tensor) -> torch.Tensor:
        """The target's taps [..., layers * C] -> a state [..., width]."""
        config = self.config
        parts = taps.unflatten(-1, (len(config.layers), config.hidden))
        state: torch.Tensor = self.taps(F.rms_norm(parts, (config.hidden,), eps=1e-6).flatten(-2))
        return state

    def project(
        self, state: torch.Tensor, token: torch.Tensor, expected: Expected, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """State [..., width] and the token's embedding [..., C] -> q, k, v [..., heads, D]."""
        config = self.config
        word = self.token(F.rms_norm(token, (config.hidden,), eps=1e-6))
        moved = torch.stack(_movement(expected.last, expected.before, config.bins), -1)
        word = word + self.place(expected.places) + self.past(moved.to(word.dtype))
        both = torch.cat((self.norm_token(word), self.norm_state(state)), -1)
        q, k, v = self.qkv(both).unflatten(-1, (3, config.heads, -1)).unbind(-3)
        return _turned(q, positions), _turned(k, positions), v

    def finish(self, state: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of the layer: attention's result [..., heads, D] -> a state one token on."""
        x = state + self.out(attended.flatten(-2))
        gate, up = self.gate_up(self.norm_inner(x)).chunk(2, -1)
        after: torch.Tensor = x + self.down(F.silu(gate) * up)
        return after

    def logits(self, state: torch.Tensor, expected: Expected) -> torch.Tensor:
        """Logits of the bins [..., bins] at the expected indices."""
        x = self.norm(state)
        logits: torch.Tensor = self.bins(self.wide(x))
        if self.config.ordered:
            return logits + self._around(x, expected)
        # no bin lies beside another: what is expected is likelier, or less likely, and it alone
        more = (x @ self.trust + 1.0) * (expected.last >= 0)
        return logits.scatter_add(-1, expected.last.clamp_min(0)[..., None], more[..., None])

    def _around(self, x: torch.Tensor, expected: Expected) -> torch.Tensor:
        """Logits of every bin by its distance from what is expected [..., bins]."""
        config = self.config
        weights = F.softplus(self.gate(x))
        # [.., bins] of each mode, cut out of the dimension's table by what is expected
        start = config.bins - 1 - expected.last.clamp_min(0)
        index = start[..., None] + torch.arange(config.bins, device=x.device)
        table = self.moves[expected.places % config.dim]  # [..., MODES, 2 bins - 1]
        index = index[..., None, :].expand(*table.shape[:-1], config.bins)
        found = (weights[..., None] * table.gather(-1, index)).sum(-2)
        return found * (expected.last >= 0)[..., None]


def _modes(bins: int) -> torch.Tensor:
    """[MODES, 2 bins - 1]: logits by the distance from a bin, from even to steep; trained on."""
    far = torch.arange(1 - bins, bins).abs().float()
    return torch.stack([-0.5 * mode * far.log1p() for mode in range(MODES)])


def _falling() -> torch.Tensor:
    """[RANKED]: chances of the candidates before any were counted."""
    ranks = (1.0 + torch.arange(RANKED)) ** -1.5
    return ranks / ranks.sum()


def _movement(
    last: torch.Tensor, before: torch.Tensor, bins: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Movement of bins [...], -1: unknown: where the last lies in -1 to 1, how far it had moved
    from the one before, and whether it is known."""
    there = last >= 0
    both = there & (before >= 0)
    where = (2.0 * last / (bins - 1) - 1.0) * there
    moved = ((last - before) / _CREPT).clamp(-4.0, 4.0) * both
    return where, moved, there.float()


def reachable(places: int) -> torch.Tensor:
    """[known - 1, level]: 1 where a draft of that level is still of the answer, and not its last
    token."""
    known, level = torch.arange(places)[:, None], torch.arange(LEVELS)
    return (known + level < places).float()


def _turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions: [..., J, heads, D] at int64 [J] or [N] of the same rows."""
    half = x.shape[-1] // 2
    inverse = 10_000.0 ** -(torch.arange(half, device=x.device) / half)
    angles = positions[:, None] * inverse
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    one, two = x[..., :half], x[..., half:]
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)
