"""Looking at an engine at work without changing what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from vla_ros.engine.packed.attention import Attention
from vla_ros.engine.packed.kernels.rope_write import Heads


@dataclass(slots=True)
class Turned:
    """The rotary rows [T, 2 D] (cos beside sin) that reached the attention of the first layer."""

    rows: list[torch.Tensor] = field(default_factory=list)


class WatchedAttention(Attention):
    """An attention that notes the rotary rows it is given, and otherwise is the one within."""

    def __init__(self, within: Attention, turned: Turned) -> None:
        self._within, self._turned = within, turned

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        return self._within(layer, q, k, v, scale)

    def from_qkv(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        heads: Heads,
        scale: float,
    ) -> torch.Tensor:
        if layer == 0:
            self._turned.rows.append(torch.cat((cos, sin), 1).float().cpu())
        return self._within.from_qkv(layer, qkv, cos, sin, heads, scale)


@contextmanager
def watch_positions(tower: nn.Module, prefix: int = 0) -> Iterator[list[torch.Tensor]]:
    """The position embeddings [patches, C] as they were added to the patches of a vision tower, one
    entry an image: what went into the first block less what came out of the patch embedding.

    ``prefix``: rows in front of the patches.
    """
    patches: list[torch.Tensor] = []
    found: list[torch.Tensor] = []

    def keep(module: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        patches.append(out.detach().float().cpu())

    def enter(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        added = given[0].detach().float().cpu()[:, prefix:] - patches[-1]
        found.extend(added.unbind(0))

    embed, blocks = tower.get_submodule("patch_embed"), tower.get_submodule("blocks")
    hooks = (embed.register_forward_hook(keep),
             blocks.get_submodule("0").register_forward_pre_hook(enter))  # fmt: skip
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
