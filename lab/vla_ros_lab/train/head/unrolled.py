"""Training-time test (EAGLE-3): drafts of the recursive head from behind every token, all at once.

Apart because training, its evaluation and the tests of the drafter's own growth all use it.
"""

from __future__ import annotations

import torch

from vla_ros.engine.decoding.draft_heads import Embed, Expected, RecursiveHead


def unroll(
    head: RecursiveHead,
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
    state, found = head.seen(taps), list[torch.Tensor]()
    keys, values = list[torch.Tensor](), list[torch.Tensor]()
    causal = position[None, :] <= position[:, None]
    for step in range(steps):
        if step:
            state = _later(state)  # its own of one position before, in place of the target's
            if follow is not None:
                tokens = _later(found[-1].argmax(-1)[..., None])[..., 0] + follow
        base = (position - step).clamp_min(0)
        expected = Expected(
            (position + 1).expand_as(tokens), last[:, base, step], before[:, base, step]
        )
        q, k, v = head.project(state, embed(tokens), expected, position)
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
        state = head.finish(state, out)
        found.append(head.logits(state, expected))
    return found


def _later(x: torch.Tensor, by: int = 1) -> torch.Tensor:
    """[B, J, ...]: everything so many positions later; what comes in at the front means nothing."""
    return x if by == 0 else torch.cat((x[:, :by], x[:, :-by]), 1)[:, : x.shape[1]]
