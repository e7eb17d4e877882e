"""The recursive draft head: one narrow layer that guesses token after token, EAGLE-3's.

It stands where the target chose its newest token, and is told that token and what the target
thought there: the outputs of three of its layers (*taps*). What it makes of them says the next
token, and stands for what the target would have thought one token on, so it can be asked again
(Li et al. 2025, section 3). Where the target has run, its own taps take the place of such guesses.

Here it is narrow (``width`` < the target's C) and has a product of its own for the action bins,
which begins as the target's rows of them. Its context are the tokens of this answer and the
prompt's last state, where the first one was chosen; not the whole prompt. Besides it is told what
the token is expected to be by what was said before (:mod:`vla_ros.engine.trees.expecting`), and
where bins are in order that is joined with what it thinks, as logits. Narrow, its context and the
expectation are ours.

*Position* j is where token j of the answer was chosen; there it guesses the token of place j + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

RECURSIVE = "recursive"
LEVELS = 12  # of drafts: EAGLE-3's 8, and what HeteroSpec adds at most
RANKED = 16  # alternatives of a token that a tree may hold
MODES = 4  # ways to lie around what is expected that are weighed against each other
_CREPT = 16.0  # bins of change that count as one

Embed = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class RecursiveConfig:
    """``layers`` of the target are read, of ``hidden`` numbers each; an answer has ``tokens`` of
    ``bins``, every action ``dim`` of them; ``width`` and ``heads`` are the head's own.
    ``ordered``: neighbouring bins are neighbouring values."""

    layers: tuple[int, ...]
    hidden: int
    tokens: int
    dim: int
    bins: int = 256
    width: int = 128
    heads: int = 4
    ordered: bool = True
    kind: str = RECURSIVE

    @property
    def places(self) -> int:
        """Tokens that it guesses: all but the first, which no draft precedes, and the last."""
        return self.tokens - 2


def width_for(hidden: int) -> int:
    """Of a head for a target of that size: 128 for the small one, 1024 for a 7B's 4096."""
    return max(128, hidden // 4)


def heads_for(width: int) -> int:
    """Of so many numbers: heads of 32, of 64 where it is wide."""
    return max(1, width // (32 if width < 512 else 64))


@dataclass(frozen=True, slots=True)
class Told:
    """What is expected at the places that are guessed: bins int64 [...], ``last`` and what stood a
    step ``before``; -1 where nobody knows or it is no bin. ``places`` int64 [...]."""

    places: torch.Tensor
    last: torch.Tensor
    before: torch.Tensor


class RecursiveHead(nn.Module):
    """See above. ``chances`` [places, LEVELS, RANKED]: with s + 1 tokens known, how often the
    alternative of each rank was right on each level, given that all before it were; counted after
    training, 0 beyond the answer, and before it falling with the rank."""

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
            far = torch.arange(1 - config.bins, config.bins).abs().float()
            modes = torch.stack([-0.5 * mode * far.log1p() for mode in range(MODES)])
            self.moves = nn.Parameter(modes.repeat(config.dim, 1, 1))
        ranks = (1.0 + torch.arange(RANKED)) ** -1.5
        chances = (ranks / ranks.sum()).repeat(config.places, LEVELS, 1)
        self.register_buffer("chances", chances * reachable(config.places)[:, :, None])

    # ------------------------------------------------------------------ one position

    def seen(self, taps: torch.Tensor) -> torch.Tensor:
        """What the target thought [..., layers * C] -> a state [..., width]."""
        config = self.config
        parts = taps.unflatten(-1, (len(config.layers), config.hidden))
        state: torch.Tensor = self.taps(F.rms_norm(parts, (config.hidden,), eps=1e-6).flatten(-2))
        return state

    def project(
        self, state: torch.Tensor, token: torch.Tensor, told: Told, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """State [..., width] and the token's embedding [..., C] -> q, k, v [..., heads, D]."""
        config = self.config
        word = self.token(F.rms_norm(token, (config.hidden,), eps=1e-6))
        word = word + self.place(told.places) + self.past(self._moved(told).to(word.dtype))
        both = torch.cat((self.norm_token(word), self.norm_state(state)), -1)
        q, k, v = self.qkv(both).unflatten(-1, (3, config.heads, -1)).unbind(-3)
        return _turned(q, positions), _turned(k, positions), v

    def finish(self, state: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest of the layer: attention's result [..., heads, D] -> a state one token on."""
        x = state + self.out(attended.flatten(-2))
        gate, up = self.gate_up(self.norm_inner(x)).chunk(2, -1)
        after: torch.Tensor = x + self.down(F.silu(gate) * up)
        return after

    def logits(self, state: torch.Tensor, told: Told) -> torch.Tensor:
        """Of the bins [..., bins] at the places told."""
        x = self.norm(state)
        logits: torch.Tensor = self.bins(self.wide(x))
        return logits + self._around(x, told) if self.config.ordered else logits

    def _moved(self, told: Told) -> torch.Tensor:
        """Where it is expected and how that had changed [..., 3]."""
        there = told.last >= 0
        both = there & (told.before >= 0)
        where = (2.0 * told.last / (self.config.bins - 1) - 1.0) * there
        moved = ((told.last - told.before) / _CREPT).clamp(-4.0, 4.0) * both
        return torch.stack((where, moved, there.float()), -1)

    def _around(self, x: torch.Tensor, told: Told) -> torch.Tensor:
        """Of every bin, by its distance from what is expected [..., bins]."""
        config = self.config
        weights = F.softplus(self.gate(x))
        # [.., bins] of each mode, cut out of the dimension's table by what is expected
        start = config.bins - 1 - told.last.clamp_min(0)
        index = start[..., None] + torch.arange(config.bins, device=x.device)
        table = self.moves[told.places % config.dim]  # [..., MODES, 2 bins - 1]
        index = index[..., None, :].expand(*table.shape[:-1], config.bins)
        found = (weights[..., None] * table.gather(-1, index)).sum(-2)
        return found * (told.last >= 0)[..., None]

    # ------------------------------------------------------------------ whole answers

    def unrolled(
        self,
        taps: torch.Tensor,
        tokens: torch.Tensor,
        last: torch.Tensor,
        before: torch.Tensor,
        steps: int,
        embed: Embed,
        follow: int | None = None,
    ) -> list[torch.Tensor]:
        """Drafts of so many ``steps`` from behind every token, all at once ("training-time test").

        taps [B, J, layers * C] and tokens int64 [B, J] of the positions j = 0 ... J - 1; last,
        before int64 [B, J, >= steps]: expected of place j + 1 + i by what was known at j. Returns
        of every step i logits [B, J, bins]: at j of place j + 1, drafted i tokens behind what is
        known, which is the position j - i; before position i they mean nothing. What was drafted
        on the way are the tokens that were said or, with ``follow`` the token of bin 0, the
        likeliest.
        """
        count = tokens.shape[1]
        position = torch.arange(count, device=tokens.device)
        state, found = self.seen(taps), list[torch.Tensor]()
        keys, values = list[torch.Tensor](), list[torch.Tensor]()
        causal = position[None, :] <= position[:, None]
        for step in range(steps):
            if step:
                state = _later(state)  # its own of one position before, in place of the target's
                if follow is not None:
                    tokens = _later(found[-1].argmax(-1)[..., None])[..., 0] + follow
            base = (position - step).clamp_min(0)
            told = Told(
                (position + 1).expand_as(tokens), last[:, base, step], before[:, base, step]
            )
            q, k, v = self.project(state, embed(tokens), told, position)
            keys.append(k)
            values.append(v)
            seen = causal & (position[None, :] <= position[:, None] - step)
            seen = seen | (position[:, None] < step)[:, :1]  # no row of nothing
            known = torch.einsum("bqhd,bkhd->bhqk", q, keys[0])
            scores = [known.masked_fill(~seen, float("-inf"))]
            branch = [_later(part, step - one) for one, part in enumerate(keys) if one]
            scores += [(q * part).sum(-1).transpose(1, 2)[..., None] for part in branch]
            weights = (torch.cat(scores, -1) * q.shape[-1] ** -0.5).softmax(-1)
            out = torch.einsum("bhqk,bkhd->bqhd", weights[..., :count], values[0])
            for one in range(1, step + 1):
                weight = weights[..., count + one - 1].transpose(1, 2)[..., None]
                out = out + weight * _later(values[one], step - one)
            state = self.finish(state, out)
            found.append(self.logits(state, told))
        return found


def reachable(places: int) -> torch.Tensor:
    """[known - 1, level]: 1 where a draft of that level is still of the answer, and not its last
    token."""
    known, level = torch.arange(places)[:, None], torch.arange(LEVELS)
    return (known + level < places).float()


def _later(x: torch.Tensor, by: int = 1) -> torch.Tensor:
    """[B, J, ...]: everything so many positions later; what comes in at the front means nothing."""
    return x if by == 0 else torch.cat((x[:, :by], x[:, :-by]), 1)[:, : x.shape[1]]


def _turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions: [..., J, heads, D] at int64 [J] or [N] of the same rows."""
    half = x.shape[-1] // 2
    inverse = 10_000.0 ** -(torch.arange(half, device=x.device) / half)
    angles = positions[:, None] * inverse
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    one, two = x[..., :half], x[..., half:]
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)
