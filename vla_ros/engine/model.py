"""A loaded model: vision, decoder and the cached prompt, on one device.

``forward`` is the only way into the decoder: it runs one pack. Everything that schedules
share (KV ring, plans, CUDA graphs) is made by ``new_ring`` and hangs on a :class:`Lane`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_ros.engine.attention import PackedAttention
from vla_ros.engine.checkpoint import Checkpoint
from vla_ros.engine.config import ModelConfig
from vla_ros.engine.decoder import Decoder
from vla_ros.engine.packed import PackLayout, Plan, Planner
from vla_ros.engine.ring import Ring
from vla_ros.engine.tokens import ActionTokens
from vla_ros.engine.vision import Vision


@dataclass(slots=True)
class Prompt:
    """A tokenised instruction on the device: ids before and behind the image."""

    first: torch.Tensor  # embeddings [1, C]
    rest: torch.Tensor  # embeddings [n, C]
    ids: tuple[int, ...]


class VLAModel:
    """Vision tower, projector and decoder of one checkpoint. Inference only."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self.config: ModelConfig = checkpoint.config
        self.device, self.dtype = device, dtype
        self.tensors = checkpoint.tensors
        self.actions = ActionTokens(self.config.action_vocab, self.config.bins)
        self.vision = _vision(self.config, checkpoint.tensors)
        self.decoder = Decoder(self.config.text, checkpoint.tensors)

    def features(self, pixels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Pixels per tower [images, 3, s, s] -> features [patches, sum of widths]."""
        with torch.inference_mode():
            return self.vision.features(pixels)

    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Features -> embeddings [patches, C]."""
        with torch.inference_mode():
            return self.vision.projector(features)

    def prompt(self, ids: list[int]) -> Prompt:
        """Embed the fixed parts of a prompt once."""
        with torch.inference_mode():
            embedded = self.decoder.embed(torch.tensor(ids, device=self.device))
        return Prompt(embedded[:1], embedded[1:], tuple(ids))

    def sequence(self, prompt: Prompt, patches: torch.Tensor) -> torch.Tensor:
        """[first token][patches][rest of the text] -> embeddings [n, C]."""
        return torch.cat((prompt.first, patches, prompt.rest))

    def lane(self, slots: int, slot_length: int) -> Lane:
        """A KV ring with its planner."""
        text = self.config.text
        ring = Ring(
            text.layers, slots, slot_length, text.kv_heads, text.head_dim, self.dtype, self.device
        )
        return Lane(self, ring)


class Lane:
    """One KV ring of a model and the passes over it."""

    def __init__(self, model: VLAModel, ring: Ring) -> None:
        self.model, self.ring = model, ring
        mask_dtype = torch.float32 if model.device.type == "cpu" else model.dtype
        self.planner = Planner(ring, mask_dtype)

    def logits(
        self, layout: PackLayout, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        """Run one pack: prompt embeddings [n, C], then tokens int64 [t] -> logits [R, V].

        The tokens are the last of the prefill (a draft behind its prompt) and the whole tail,
        in the layout's order.
        """
        plan = self.planner.plan(layout)
        with torch.inference_mode():
            return self._eager(plan, prompt, tokens)

    def _eager(
        self, plan: Plan, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        decoder = self.model.decoder
        parts = [] if prompt is None else [prompt]
        if tokens is not None:
            parts.append(decoder.embed(tokens))
        x = parts[0] if len(parts) == 1 else torch.cat(parts)
        attention = PackedAttention(self.ring, plan)
        return decoder.logits(x, plan.positions, attention, plan.rows)


def _vision(config: ModelConfig, tensors: dict[str, torch.Tensor]) -> Vision:
    with torch.device("meta"):
        vision = Vision(config)
    own = {n: tensors[n] for n in vision.state_dict()}
    vision.load_state_dict(own, assign=True)
    return vision.requires_grad_(False).eval()
