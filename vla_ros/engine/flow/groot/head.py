"""GR00T's action head: a diffusion transformer over state and actions, crossing to a context.

Source: NVIDIA/Isaac-GR00T ``gr00t_n1d7.py`` and ``modules/dit.py`` (``AlternateVLDiT``, ``DiT``).
What a context gives is computed once a chunk, straight into buffers that never move: the keys and
values of every crossing block, which the authors' code makes anew in every step.

The context's rows come as [images | text]. Nothing in the head knows their order, since it has no
positions for them, so a block that reads the text alone, or the images alone, reads one piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.flow.buffers import MASKED
from vla_ros.engine.flow.groot.blocks import Block, plain_norm, read_block
from vla_ros.engine.flow.groot.encoders import Encoders, Modulation, RowWeights
from vla_ros.engine.flow.groot.shapes import HeadConfig
from vla_ros.engine.flow.matrices import Map
from vla_ros.engine.flow.suffix import read_linear

BASE = "action_head."


@dataclass(frozen=True, slots=True)
class Context:
    """Views for ``images`` rows of images and ``length`` rows in all, with padding at the end.

    ``keys`` and ``values`` [heads, S, d] per crossing block, S what it reads; ``masks`` [1, S] are
    added to its scores, ``mask`` [1, length] to those of all rows.
    """

    images: int
    length: int
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    masks: tuple[torch.Tensor, ...]
    mask: torch.Tensor


class ActionHead:
    """One embodiment's head in the dtype and on the device of ``like``, one thread.

    ``longest`` is the most rows of a context; ``padded`` says that contexts may have padding behind
    them, which :meth:`hide` declares.
    """

    def __init__(
        self,
        config: HeadConfig,
        weights: RowWeights,
        embodiment: int,
        like: torch.Tensor,
        longest: int,
        padded: bool = False,
        base: str = BASE,
    ) -> None:
        if not 0 <= embodiment < config.embodiments:
            raise ValueError(f"embodiment {embodiment} of {config.embodiments}")
        self.config, self.dtype, self.padded = config, like.dtype, padded
        self._blocks: list[Block] = []
        self._remade: list[Map] = []
        for number in range(config.layers):
            block, remade = read_block(
                weights, f"{base}model.transformer_blocks.{number}.", config.heads, like,
                crossing=number % 2 == 0, norms=False,
            )  # fmt: skip
            self._blocks.append(block)
            if remade is not None:
                self._remade.append(remade)
        self._norm = None
        if config.context_norm:
            self._norm = read_linear(weights, f"{base}vlln").to(like)
        self._context = [
            read_block(weights, f"{base}vl_self_attention.transformer_blocks.{i}.",
                       config.context_heads, like, crossing=False, norms=True)[0]
            for i in range(config.context_layers)
        ]  # fmt: skip
        self._modulation = Modulation(config, weights, f"{base}model.", like)
        self._encoders = Encoders(config, weights, base, embodiment, like.device)
        self._future = like.new_zeros(config.future, config.width)
        if config.future:
            self._future.copy_(weights.take(f"{base}future_tokens.weight"))
        entry = (len(config.crossing), config.heads, longest, config.head_dim)
        self._keys, self._values = like.new_zeros(entry), like.new_zeros(entry)
        self._mask = like.new_zeros(1, longest)
        self._state = like.new_zeros(1, config.width)
        self._contexts: dict[tuple[int, int], Context] = {}

    def context(self, images: int, length: int) -> Context:
        """The views for a context of ``length`` rows whose first ``images`` are images."""
        found = self._contexts.get((images, length))
        if found is None:
            if not 0 <= images < length <= self._mask.shape[1]:
                raise ValueError(
                    f"a context has at most {self._mask.shape[1]} rows and some of text, wanted"
                    f" {length} with {images} of images"
                )
            pieces = {None: slice(0, length), False: slice(0, images), True: slice(images, length)}
            reads = [pieces[self.config.reads_text(layer)] for layer in self.config.crossing]
            found = Context(
                images,
                length,
                tuple(k[:, r] for k, r in zip(self._keys, reads, strict=True)),
                tuple(v[:, r] for v, r in zip(self._values, reads, strict=True)),
                tuple(self._mask[:, r] for r in reads),
                self._mask[:, :length],
            )
            self._contexts[images, length] = found
        return found

    def hide(self, context: Context, count: int) -> None:
        """Declare all rows but the first ``count`` padding."""
        context.mask[:, :count] = 0.0
        context.mask[:, count:] = MASKED

    def refine(self, context: Context, rows: torch.Tensor) -> torch.Tensor:
        """Rows [length, S] of a language model -> what the blocks cross to."""
        if self._norm is not None:
            width = (rows.shape[-1],)
            rows = F.layer_norm(rows, width, self._norm.weight, self._norm.bias)
        mask = context.mask if self.padded else None
        for block in self._context:
            rows = block.mlp(block.attend_itself(rows, plain_norm(rows), mask))
        return rows

    def cross(self, context: Context, rows: torch.Tensor) -> None:
        """Write the keys and values of refined rows [length, S]; once a chunk."""
        pieces = {None: rows, False: rows[: context.images], True: rows[context.images :]}
        for layer, remade, keys, values in zip(
            self.config.crossing, self._remade, context.keys, context.values, strict=True
        ):
            made = remade(pieces[self.config.reads_text(layer)])
            k, v = made.view(len(made), 2, self.config.heads, -1).permute(1, 2, 0, 3)
            keys.copy_(k)
            values.copy_(v)

    def begin(self, state: torch.Tensor) -> None:
        """Take on the state [state_width] of a chunk, float32."""
        self._state.copy_(self._encoders.state(state))

    def velocity(self, context: Context, x: torch.Tensor, step: int) -> torch.Tensor:
        """x [H, D] -> velocity [H, D], float32, in the authors' time: from noise at 0 to
        actions at 1."""
        config = self.config
        actions = self._encoders.actions(x, step).to(self.dtype)
        rows = torch.cat((self._state, self._future, actions))
        for number, block in enumerate(self._blocks):
            scale, shift = self._modulation.layers[step, number]
            normed = torch.addcmul(shift, plain_norm(rows), scale)
            if number % 2:
                rows = block.attend_itself(rows, normed)
            else:
                place = number // 2
                mask = self._visible(context, place)
                rows = block.attend_to(
                    rows, normed, context.keys[place], context.values[place], mask
                )
            rows = block.mlp(rows)
        scale, shift = self._modulation.final[step]
        last = plain_norm(rows[-config.horizon :].float(), 1e-6)
        return self._encoders.velocity(torch.addcmul(shift, last, scale))

    def _visible(self, context: Context, place: int) -> torch.Tensor | None:
        """The mask of a crossing block; None where nothing that it reads is padding."""
        images_alone = self.config.reads_text(self.config.crossing[place]) is False
        return context.masks[place] if self.padded and not images_alone else None
