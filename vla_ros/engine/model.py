"""A loaded model: vision, decoder and the cached prompt, on one device.

A :class:`Lane` is a KV ring with the passes over it; every schedule has its own, and running
one pack on a lane is the only way into the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from vla_ros.engine.checkpoints.config import ModelConfig, TextConfig
from vla_ros.engine.checkpoints.openvla import Checkpoint
from vla_ros.engine.codes import action_tokens
from vla_ros.engine.decoders.hugging_face import TransformersDecoder
from vla_ros.engine.decoders.llama import Decoder
from vla_ros.engine.packed.attention import Attention, PackedAttention, choose_rope_write
from vla_ros.engine.packed.graphs import Capture, CudaCapture, GraphCache, GraphedVision
from vla_ros.engine.packed.pack import PackLayout, Plan
from vla_ros.engine.packed.planner import Planner
from vla_ros.engine.packed.ring import Ring
from vla_ros.engine.packed.varlen import PAGE, VarlenAttention, choose_varlen
from vla_ros.engine.vision.towers import Vision

SPAN = 32  # on a GPU, a tail looks at a multiple of this many ring entries
BUCKET = 16  # with graphs, prefills are padded to a multiple, so few lengths need a graph


class DecoderLike(Protocol):
    """What a decoder backend offers; see :class:`~vla_ros.engine.decoders.llama.Decoder`."""

    config: TextConfig

    def embed(self, tokens: torch.Tensor) -> torch.Tensor: ...

    def hidden(
        self, x: torch.Tensor, positions: torch.Tensor, attention: Attention, rows: torch.Tensor
    ) -> torch.Tensor: ...

    def logits(
        self, x: torch.Tensor, positions: torch.Tensor, attention: Attention, rows: torch.Tensor
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """An instruction on the device: embeddings before ([1, C]) and behind the image ([n, C])."""

    first: torch.Tensor
    rest: torch.Tensor
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is run. ``capture`` overrides the way graphs are captured (tests)."""

    backend: str = "own"
    cuda_graphs: bool = True
    compile: tuple[str, ...] = ()
    attention: str = "sdpa"
    capture: Capture | None = None


class VLAModel:
    """Vision tower, projector and decoder of one checkpoint. Inference only."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        options: ModelOptions | None = None,
    ) -> None:
        options = options or ModelOptions()
        self.config: ModelConfig = checkpoint.config
        self.device, self.dtype = device, dtype
        self.tensors = checkpoint.tensors
        self.actions = action_tokens(self.config, checkpoint.tensors)
        self.vision = _vision(self.config, checkpoint.tensors)
        self.decoder: DecoderLike = _decoder(options.backend, self.config.text, self.tensors)
        self.rope_write = choose_rope_write(device, self.config.text.head_dim)
        varlen = options.attention == "varlen"
        self.varlen = choose_varlen(device, dtype) if varlen else None
        self.capture = options.capture
        if device.type == "cuda" and options.cuda_graphs:
            self.capture = CudaCapture()
        self._see: Callable[[tuple[torch.Tensor, ...]], torch.Tensor] = self.vision.features
        self.run_logits = self.decoder.logits
        if "vision" in options.compile:
            self._see = torch.compile(self._see)
        self.compiled = "decoder" in options.compile
        if self.compiled:
            self.run_logits = torch.compile(self.run_logits)
        if self.capture is not None:
            self._see = GraphedVision(self._see, self.capture)

    def features(self, pixels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Pixels per tower [images, 3, s, s] -> features [patches, sum of widths]."""
        with torch.inference_mode():
            return self._see(pixels)

    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Features -> embeddings [patches, C]."""
        with torch.inference_mode():
            projected: torch.Tensor = self.vision.projector(features)
            return projected

    def prompt(self, ids: list[int]) -> Prompt:
        """Embed the fixed parts of a prompt once."""
        with torch.inference_mode():
            embedded = self.decoder.embed(torch.tensor(ids, device=self.device))
        return Prompt(embedded[:1], embedded[1:], tuple(ids))

    def sequence(self, prompt: Prompt, patches: torch.Tensor) -> torch.Tensor:
        """[first token][patches][rest of the text] -> embeddings [n, C]."""
        return torch.cat((prompt.first, patches, prompt.rest))

    def lane(self, slots: int, slot_length: int) -> Lane:
        """A KV ring of its own."""
        text = self.config.text
        bucket = 1 if self.capture is None else BUCKET
        page = PAGE if self.varlen is not None and self.device.type == "cuda" else bucket
        length = _round_up(slot_length, page)
        ring = Ring(
            text.layers, slots, length, text.kv_heads, text.head_dim, self.dtype, self.device
        )
        return Lane(self, ring, bucket)


class Lane:
    """One KV ring of a model and the passes over it."""

    def __init__(self, model: VLAModel, ring: Ring, bucket: int = 1) -> None:
        self.model, self.ring, self._bucket = model, ring, bucket
        mask_dtype = torch.float32 if model.device.type == "cpu" else model.dtype
        cpu = model.device.type == "cpu"
        self.planner = Planner(
            ring,
            mask_dtype,
            None if cpu else SPAN,
            varlen=model.varlen is not None,
            host_slots=not model.compiled,
        )
        self._run = self._logits
        if model.capture is not None:
            self._run = GraphCache(self._logits, model.capture)

    def fit(self, entries: int) -> None:
        """Tell the lane how many entries the coming requests need.

        On a CPU, where tails read whole slots, the ring then takes a shape that wastes little.
        With graphs its shape is fixed.
        """
        wanted = min(_round_up(entries, SPAN // 2), self.ring.longest)
        if self._bucket > 1 or wanted == self.ring.slot_length or self.ring.live:
            return
        self.ring.resize(wanted)
        self.planner.forget()

    def logits(
        self, layout: PackLayout, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        """Run one pack: prompt embeddings [n, C], then tokens int64 [t] -> logits [R, V].

        The tokens are the end of the prefill (a draft behind its prompt) and then the tail,
        in the layout's order.
        """
        if layout.prefill and layout.causal and self._bucket > 1:
            layout = replace(layout, pad=-layout.prefill % self._bucket)
        plan = self.planner.plan(layout)
        with torch.inference_mode():
            return self._run(plan, self._embed(layout, prompt, tokens))

    def hidden(self, layout: PackLayout, x: torch.Tensor) -> torch.Tensor:
        """Run one pack of embeddings [T, C] -> hidden states [R, C] (heads other than tokens)."""
        plan = self.planner.plan(layout)
        with torch.inference_mode():
            attention = self._attention(plan)
            return self.model.decoder.hidden(x, plan.positions, attention, plan.rows)

    def _embed(
        self, layout: PackLayout, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> torch.Tensor:
        parts = [] if prompt is None else [prompt]
        behind = None if tokens is None else self.model.decoder.embed(tokens)
        if layout.pad:
            draft = layout.prefill - sum(len(p) for p in parts)
            if behind is not None and draft:
                parts.append(behind[:draft])
                behind = behind[draft:] if len(behind) > draft else None
            parts.append(parts[0].new_zeros(layout.pad, parts[0].shape[1]))
        if behind is not None:
            parts.append(behind)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _logits(self, plan: Plan, x: torch.Tensor) -> torch.Tensor:
        return self.model.run_logits(x, plan.positions, self._attention(plan), plan.rows)

    def _attention(self, plan: Plan) -> Attention:
        varlen = self.model.varlen
        if varlen is not None:
            return VarlenAttention(self.ring, plan, varlen, self.model.rope_write)
        return PackedAttention(self.ring, plan, self.model.rope_write)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _decoder(backend: str, config: TextConfig, tensors: dict[str, torch.Tensor]) -> DecoderLike:
    if backend == "transformers":
        return TransformersDecoder(config, tensors)
    return Decoder(config, tensors)


def _vision(config: ModelConfig, tensors: dict[str, torch.Tensor]) -> Vision:
    with torch.device("meta"):
        vision = Vision(config)
    vision.load_state_dict({n: tensors[n] for n in vision.state_dict()}, assign=True)
    return vision.requires_grad_(False).eval()
