"""A loaded model: vision, decoder and the cached prompt, on one device.

Every schedule makes itself a :class:`~vla_ros.engine.packed.lane.Lane` of it, and running a pack
on a lane is the only way into the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.checkpoints.openvla import Checkpoint
from vla_ros.engine.codes import action_tokens
from vla_ros.engine.compiled import compiled
from vla_ros.engine.decoders.base import Decoder, Hidden, Tapped
from vla_ros.engine.decoders.bitnet import BitNetDecoder
from vla_ros.engine.decoders.hugging_face import TransformersDecoder
from vla_ros.engine.decoders.llama import LlamaDecoder
from vla_ros.engine.gemm.choose import choose_tuner
from vla_ros.engine.gemm.tuner import Tuner
from vla_ros.engine.packed.backends import choose_backend, choose_between
from vla_ros.engine.packed.graphs import Capture, CountedCapture, CudaCapture, GraphedVision
from vla_ros.engine.packed.kernels.between import PLAIN
from vla_ros.engine.packed.kernels.rope_write import Heads
from vla_ros.engine.packed.lane import BUCKET, Lane
from vla_ros.engine.packed.ring import Ring
from vla_ros.engine.packed.streams import SideBySide
from vla_ros.engine.quantised.matrices import Quantised, replace_linear
from vla_ros.engine.quantised.prepacked import can_prepack
from vla_ros.engine.vision.towers import Both, Vision, fused

See = Callable[[tuple[torch.Tensor, ...]], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Prompt:
    """An instruction on the device: embeddings before ([f, C]) and behind the image ([n, C])."""

    first: torch.Tensor
    rest: torch.Tensor


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is run. ``capture`` overrides the way graphs are captured (tests).

    ``prepack``: on a CPU the decoder's matrices are laid out for it once. ``vision_streams``: on
    CUDA two towers run beside each other; ``both`` overrides the way in which (tests). ``gemm``:
    who multiplies in captured passes."""

    backend: str = "own"
    cuda_graphs: bool = True
    compile: tuple[str, ...] = ()
    attention: str = "auto"
    capture: Capture | None = None
    prepack: bool = True
    vision_streams: bool = True
    both: Both | None = None
    gemm: str = "auto"


class VLAModel:
    """Vision tower, projector and decoder of one checkpoint. Inference only."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        options: ModelOptions | None = None,
    ) -> None:
        self.options = options = options or ModelOptions()
        self.config: ModelConfig = checkpoint.config
        self.device, self.dtype = device, dtype
        #: without what is packed; see :meth:`unpacked`
        self.tensors, self.directory = dict(checkpoint.tensors), checkpoint.directory
        self.actions = action_tokens(self.config, self.tensors)
        #: parameters in fewer bits, which are not among ``tensors``
        self.quantised = sum(m.parameters for m in checkpoint.quantised.values())
        self.quantised_bytes = sum(m.nbytes for m in checkpoint.quantised.values())
        if self.quantised and options.backend != "own":
            raise ValueError(f"backend {options.backend!r} has no quantised weights: give own")
        #: of OFT's head of actions
        self.quantised_head: dict[str, Quantised] = {
            n: m for n, m in checkpoint.quantised.items() if n.startswith("action_head.")
        }
        self.vision = _vision(self.config, checkpoint)
        self.parameters = self.quantised + sum(t.numel() for t in self.tensors.values())
        text = self.config.text
        self.capture = _capture(device, options)
        # torch.compile lays weights out itself, and fuses.
        compiles = "decoder" in options.compile
        #: what says how the decoder's products are done in captured passes; None: torch does them
        self.tuner: Tuner | None = None
        ours = options.backend == "own" and not (compiles or text.ternary)
        if self.capture is not None and ours and options.gemm == "auto":
            self.tuner = choose_tuner(device, dtype)
        prepack = options.prepack and not compiles and can_prepack(device, dtype)
        sizes = text.hidden_size, text.intermediate_size
        self.decoder: Decoder
        if text.ternary:
            self.decoder = BitNetDecoder(text, checkpoint)
        elif options.backend == "transformers":
            self.decoder = TransformersDecoder(text, self.tensors)
        else:
            self.decoder = LlamaDecoder(
                text, self.tensors, quantised=checkpoint.quantised,
                prepack=prepack and self.tuner is None,
                tuner=self.tuner,
                between=PLAIN if compiles else choose_between(device, dtype, *sizes),
            )  # fmt: skip
        heads = Heads(text.heads, text.kv_heads)
        self.attention = choose_backend(device, dtype, text.head_dim, options.attention, heads)
        self._see = _eyes(self.vision, device, options)
        self._hidden: Hidden = self.decoder.hidden
        self._tapped: Tapped = self.decoder.tapped
        if "decoder" in options.compile:
            self._hidden = compiled(self._hidden)
            self._tapped = compiled(self._tapped)  # compiled at its first call, if any
        if self.capture is not None:
            self._see = GraphedVision(self._see, self.capture.apart())

    @property
    def captures(self) -> int:
        """Graphs that were captured so far, a draft model's too."""
        return 0 if self.capture is None else self.capture.count

    def unpacked(self) -> dict[str, torch.Tensor]:
        """All tensors that are not quantised, those that a CPU has packed made anew."""
        packed = self.decoder.unpacked() if isinstance(self.decoder, LlamaDecoder) else {}
        return {**self.tensors, **packed}

    def _captures_passes(self) -> Capture | None:
        if self.capture is None or self.tuner is None:
            return self.capture
        return self.tuner.while_capturing(self.capture)

    def features(self, pixels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Pixels per tower [images, 3, s, s] -> features [patches, sum of widths]."""
        with torch.inference_mode():
            return self._see(pixels)

    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Features -> embeddings [patches, C]."""
        with torch.inference_mode():
            projected: torch.Tensor = self.vision.projector(features)
            return projected

    def prompt(self, ids: list[int], front: int = 1) -> Prompt:
        """Embed the fixed parts of a prompt once; ``front`` ids go before the image."""
        with torch.inference_mode():
            embedded = self.decoder.embed(torch.tensor(ids, device=self.device))
        return Prompt(embedded[:front], embedded[front:])

    def sequence(self, prompt: Prompt, patches: torch.Tensor) -> torch.Tensor:
        """[first tokens][patches][rest of the text] -> embeddings [n, C]."""
        return torch.cat((prompt.first, patches, prompt.rest))

    def lane(
        self,
        slots: int,
        slot_length: int,
        window: range | None = None,
        taps: tuple[int, ...] = (),
    ) -> Lane:
        """A KV ring of its own; ``window`` names the tokens to choose among, None all of them.

        ``taps``: layers whose outputs its passes keep, see :class:`Lane`.
        """
        text = self.config.text
        page = 1 if self.capture is None else BUCKET
        length = -(-slot_length // page) * page
        ring = Ring(
            text.layers, slots, length, text.kv_heads, text.head_dim, self.dtype, self.device
        )
        return Lane(
            self.decoder, self._hidden, ring, self.attention, self._captures_passes(), window,
            taps, self._tapped,
        )  # fmt: skip


def _eyes(vision: Vision, device: torch.device, options: ModelOptions) -> See:
    """Pixels -> features [patches, sum of widths]: each tower compiled, or not; two of them on two
    streams."""
    towers: list[Callable[[torch.Tensor], torch.Tensor]] = list(vision.vision_backbone.towers)
    if "vision" in options.compile:
        # Each by itself: a stream is chosen between them, which is nothing that dynamo traces.
        towers = [compiled(tower) for tower in towers]
    both = options.both
    if both is None and device.type == "cuda" and options.vision_streams and len(towers) > 1:
        both = SideBySide(device)
    return lambda pixels: fused(towers, pixels, both).flatten(0, 1)


def _capture(device: torch.device, options: ModelOptions) -> CountedCapture | None:
    """What captures the passes, and counts that; a draft model's options have its target's."""
    capture = options.capture
    if capture is None and device.type == "cuda" and options.cuda_graphs:
        capture = CudaCapture(device)
    if capture is None or isinstance(capture, CountedCapture):
        return capture
    return CountedCapture(capture)


def _vision(config: ModelConfig, checkpoint: Checkpoint) -> Vision:
    tensors = checkpoint.tensors
    with torch.device("meta"):
        vision = Vision(config)
    parts = ("vision_backbone.", "projector.")
    few = {n: m for n, m in checkpoint.quantised.items() if n.startswith(parts)}
    replace_linear(vision, few, tensors)
    vision.load_state_dict({n: tensors[n] for n in vision.state_dict()}, assign=True)
    return vision.requires_grad_(False).eval()
