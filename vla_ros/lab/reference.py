"""Reference: the cross-frame pipeline without a ring.

The same packs as ActionFlow, but every request keeps its own K/V tensors, which grow by
concatenation, are gathered into a padded batch in every layer of every pass, and the host
reads the tokens after every pass. Kept to be measured against; exact all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from vla_ros.engine.model import VLAModel
from vla_ros.engine.packed.attention import Attention, prefill
from vla_ros.engine.quantised.matrices import linear
from vla_ros.engine.request import Decoded, Request
from vla_ros.engine.schedules.base import Schedule


@dataclass(slots=True)
class Growing:
    """A request with its own K/V per layer, [Hkv, length, D]."""

    request: Request
    length: int
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finite: bool = True


class GatheredAttention(Attention):
    """Concatenates and pads every live request's K/V anew, in every layer."""

    def __init__(self, fresh: Growing, older: list[Growing]) -> None:
        self._fresh, self._older = fresh, older

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        n = self._fresh.length
        self._fresh.keys.append(k[:n].transpose(0, 1).contiguous())
        self._fresh.values.append(v[:n].transpose(0, 1).contiguous())
        out = prefill(q[:n], k[:n], v[:n], scale, causal=True)
        if not self._older:
            return out
        for row, request in enumerate(self._older, start=n):
            request.keys[layer] = torch.cat((request.keys[layer], k[row][:, None]), dim=1)
            request.values[layer] = torch.cat((request.values[layer], v[row][:, None]), dim=1)
        keys, values, mask = self._gather(layer, q)
        behind = F.scaled_dot_product_attention(
            q[n:, :, None], keys, values, attn_mask=mask, scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        return torch.cat((out, behind[:, :, 0]))

    def _gather(
        self, layer: int, q: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        lengths = [r.keys[layer].shape[1] for r in self._older]
        longest = max(lengths)
        mask = torch.zeros(len(lengths), 1, 1, longest, dtype=q.dtype)
        for row, length in enumerate(lengths):
            mask[row, ..., length:] = float("-inf")
        keys = [F.pad(r.keys[layer], (0, 0, 0, longest - n)) for r, n in self._with(lengths)]
        values = [F.pad(r.values[layer], (0, 0, 0, longest - n)) for r, n in self._with(lengths)]
        return torch.stack(keys), torch.stack(values), mask.to(q.device)

    def _with(self, lengths: list[int]) -> list[tuple[Growing, int]]:
        return list(zip(self._older, lengths, strict=True))


class NaivePipe(Schedule):
    """One pass a call, as ActionFlow."""

    def __init__(self, model: VLAModel, tokens: int, max_prompt: int) -> None:
        super().__init__(model, tokens, max_prompt)
        self._older: list[Growing] = []

    @property
    def depth(self) -> int:
        return self.count

    def step(self, request: Request) -> Decoded | None:
        fresh = Growing(request, len(request.prompt))
        for each in self._older:  # since its last pass it has only waited for this frame
            each.request.stages.mark("queue")
        with torch.inference_mode():
            choices, finite = self._pass(fresh)
        request.stages.mark("prefill")
        for each in self._older:
            each.request.stages.mark("decode")
        for each, token, good in zip((fresh, *self._older), choices, finite, strict=True):
            each.tokens.append(token)
            each.finite &= good
        self._older.append(fresh)
        if len(self._older[0].tokens) < self.count:
            return None
        done = self._older.pop(0)
        return done.request.answer(done.tokens, self.count, finite=done.finite)

    def _pass(self, fresh: Growing) -> tuple[list[int], list[bool]]:
        decoder, device, older = self.model.decoder, self.model.device, self._older
        tokens = torch.tensor([r.tokens[-1] for r in older], dtype=torch.long, device=device)
        x = torch.cat((fresh.request.prompt, decoder.embed(tokens)))
        ends = [r.length + len(r.tokens) - 1 for r in older]
        positions = torch.tensor([*range(fresh.length), *ends], device=device)
        rows = torch.arange(fresh.length - 1, len(x), device=device)
        states = decoder.hidden(x, positions, GatheredAttention(fresh, older), rows)
        logits = linear(states, decoder.head)
        values, choices = logits.max(dim=-1)
        return choices.tolist(), values.isfinite().tolist()

    def forget(self, damaged: bool = False) -> None:
        self._older.clear()
