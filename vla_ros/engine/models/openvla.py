"""OpenVLA's network: vision towers, projector and decoder of one checkpoint, on one device.

MiniVLA, OpenVLA-OFT and BitVLA are it with other towers, heads or languages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import torch

from vla_ros.core.types import Observation
from vla_ros.engine.io.checkpoint import Checkpoint
from vla_ros.engine.io.config import ModelConfig, TextConfig
from vla_ros.engine.io.images.preprocessor import Preprocessor
from vla_ros.engine.io.streamed import Kept, size_of
from vla_ros.engine.layers.backends import choose_backend, choose_between
from vla_ros.engine.layers.graphs import Capture, CountedCapture, CudaCapture, GraphedVision
from vla_ros.engine.layers.kernels.fused import Heads
from vla_ros.engine.layers.linear import LowBit, prepack_linear, replace_linear
from vla_ros.engine.layers.prepacked import Prepacked, can_prepack, has_wide_products
from vla_ros.engine.layers.runner import Decoder, Pools, TokenNetwork
from vla_ros.engine.layers.tuner import Tuner, choose_tuner
from vla_ros.engine.models.cameras import WRIST
from vla_ros.engine.models.language.bitnet import BitNetDecoder
from vla_ros.engine.models.language.llama import LlamaDecoder
from vla_ros.engine.models.minivla import action_tokens
from vla_ros.engine.models.towers import Vision
from vla_ros.engine.options import EngineOptions

#: a language model's config, all tensors that are not quantized, and those that are -> a decoder
MakeDecoder = Callable[[TextConfig, Mapping[str, torch.Tensor], Mapping[str, LowBit]], Decoder]


@dataclass(frozen=True, slots=True)
class Prompt:
    """An instruction on the device: embeddings before ([f, C]) and behind the image ([n, C])."""

    first: torch.Tensor
    rest: torch.Tensor


_CACHES = 64 << 20  # bytes: no core has as much


class VLAModel(TokenNetwork):
    """Vision tower, projector and decoder of one checkpoint. Inference only.

    ``capture`` overrides how graphs are captured (tests; of a draft model, its target's),
    ``make_decoder`` which decoder runs the language model. Without ``pack_vision`` the towers'
    matrices stay as they are stored on every CPU.
    """

    causal = True
    ends: int | None = None  # every answer has as many tokens

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        options: EngineOptions | None = None,
        capture: Capture | None = None,
        *,
        make_decoder: MakeDecoder | None = None,
        pack_vision: bool = True,
    ) -> None:
        self.options = options = options or EngineOptions()
        self.config: ModelConfig = checkpoint.config
        self.device, self.dtype = device, dtype
        #: without what is packed; see :meth:`unpacked`
        tensors = Kept(checkpoint.tensors)
        self.tensors: MutableMapping[str, torch.Tensor] = tensors
        self.directory = checkpoint.directory
        self.actions = action_tokens(self.config, self.tensors)
        #: parameters in fewer bits, which are not among ``tensors``
        self.quantized, self.quantized_bytes = size_of(checkpoint.quantized)
        #: of OFT's head of actions
        self.quantized_head: dict[str, LowBit] = {
            n: checkpoint.quantized[n] for n in checkpoint.quantized if n.startswith("action_head.")
        }
        self.text = text = self.config.text
        self.capture = _capture(device, options, capture)
        #: chooses the kernels of the decoder's products in captured passes; None: torch's
        self.tuner: Tuner | None = None
        ours = make_decoder is None and not text.ternary
        if self.capture is not None and ours and options.gemm == "auto":
            self.tuner = choose_tuner(device, dtype)
        # Decoding generate is transformers' and takes the matrices plain.
        prepack = options.decoding != "generate" and can_prepack(device, dtype)
        sizes = text.hidden_size, text.intermediate_size
        pack_vision = pack_vision and has_wide_products(device, dtype)
        self.vision, self._packed_vision = _vision(
            self.config, tensors, checkpoint.quantized, pack_vision
        )
        self.decoder: Decoder
        if make_decoder is not None:
            tensors.finish()
            self.decoder = make_decoder(text, self.tensors, checkpoint.quantized)
        elif text.ternary:
            self.decoder = BitNetDecoder(text, checkpoint)
        else:
            self.decoder = LlamaDecoder(
                text, self.tensors, quantized=checkpoint.quantized,
                prepack=prepack and self.tuner is None,
                tuner=self.tuner,
                between=choose_between(device, dtype, *sizes),
            )  # fmt: skip
        tensors.finish()
        packed = list(self._packed_vision.values())
        if isinstance(self.decoder, LlamaDecoder):
            packed += self.decoder.packed
        count = sum(matrix.values.numel() for matrix in packed)
        self.parameters = self.quantized + count + sum(t.numel() for t in self.tensors.values())
        plain = count * dtype.itemsize + sum(t.nbytes for t in self.tensors.values())
        self.nbytes = self.quantized_bytes + plain
        heads = Heads(text.heads, text.kv_heads)
        self.attention = choose_backend(device, dtype, text.head_dim, options.attention, heads)
        self.vision_function: Callable[[tuple[torch.Tensor, ...]], torch.Tensor] = (
            self.vision.features
        )
        if self.capture is not None:
            self.vision_function = GraphedVision(self.vision.features, self.capture)

    def prepare_one_row(self) -> None:
        """Lay the decoder's weights out for passes of a single token. Where a core's caches hold
        the weights it gains nothing (``shipped:tabletop``: 18.8 ms an action before 19.0)."""
        if isinstance(self.decoder, LlamaDecoder) and self.nbytes > _CACHES:
            self.decoder.prepare_one_row()

    @property
    def patches(self) -> int:
        """Tokens of an observation's images."""
        return self.config.patches

    def uncaptured(self) -> VLAModel:
        """The same weights for several sessions: passes are not captured, and KV caches of one slot
        lie in pools."""
        other = copy(self)
        other.options, other.capture = replace(self.options, cuda_graphs=False), None
        other.pools = Pools()
        other.vision_function = self.vision.features
        return other

    def unpacked(self) -> dict[str, torch.Tensor]:
        """All tensors that are not quantized; those that a CPU has packed are made anew."""
        packed = self.decoder.unpacked() if isinstance(self.decoder, LlamaDecoder) else {}
        vision = {name: matrix.whole() for name, matrix in self._packed_vision.items()}
        return {**self.tensors, **packed, **vision}

    def towers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The vision towers' tensors that are not quantized, by name, one at a time."""
        packed = self._packed_vision
        for name in sorted({*self.tensors, *packed}):
            if name.startswith("vision_backbone."):
                yield name, packed[name].whole() if name in packed else self.tensors[name]

    def _captures_passes(self) -> Capture | None:
        if self.capture is None or self.tuner is None:
            return self.capture
        return self.tuner.while_capturing(self.capture)

    def features(self, pixels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Pixels per tower [images, 3, s, s] -> features [patches, sum of widths]."""
        with torch.inference_mode():
            return self.vision_function(pixels)

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


def _capture(
    device: torch.device, options: EngineOptions, capture: Capture | None
) -> CountedCapture | None:
    """The capture of the passes, which counts them; None: they run as they are."""
    if capture is None and device.type == "cuda" and options.cuda_graphs:
        capture = CudaCapture(device)
    if capture is None or isinstance(capture, CountedCapture):
        return capture
    return CountedCapture(capture)


def _vision(
    config: ModelConfig, tensors: Kept, quantized: Mapping[str, LowBit], pack: bool
) -> tuple[Vision, dict[str, Prepacked]]:
    """Towers and projector, and those of their matrices that are laid out as a CPU multiplies."""
    with torch.device("meta"):
        vision = Vision(config)
    parts = ("vision_backbone.", "projector.")
    few = {n: quantized[n] for n in quantized if n.startswith(parts)}
    replace_linear(vision, few, tensors)
    packed: dict[str, Prepacked] = {}
    if pack:
        packed = prepack_linear(vision, lambda name: tensors.taken([name])[0], tensors.__getitem__)
    vision.load_state_dict({n: tensors[n] for n in vision.state_dict()}, assign=True)
    return vision.requires_grad_(False).eval(), packed


@dataclass(frozen=True, slots=True)
class ImageEncoding:
    """Pixels [images, 3, s, s] per tower that are to become features and embeddings [patches, C];
    a :class:`~vla_ros.engine.layers.pieces.Piece`."""

    model: VLAModel
    pixels: tuple[torch.Tensor, ...]

    @property
    def kin(self) -> Hashable:
        encode = self.model.vision_function
        return None if isinstance(encode, GraphedVision) else (encode, len(self.pixels[0]))

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.model.features(self.pixels)
        return features, self.model.project(features)

    def together(self, others: Sequence[ImageEncoding]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        every = (self, *others)
        towers = zip(*(each.pixels for each in every), strict=True)
        features = self.model.features(tuple(torch.cat(each) for each in towers))
        patches = self.model.project(features)
        both = features.chunk(len(every)), patches.chunk(len(every))
        return list(zip(*both, strict=True))


def camera_pixels(
    preprocess: Preprocessor, observation: Observation, cameras: int, more: tuple[str, ...] = ()
) -> tuple[torch.Tensor, ...]:
    """Pixels [cameras, 3, s, s] for every tower: the main image, the wrist's, those of the roles
    ``more``.

    Raises ValueError when one of them is needed and the observation has none.
    """
    views = [preprocess(observation.image)]
    for role in (WRIST, *more)[: cameras - 1]:
        image = observation.wrist_image if role == WRIST else observation.more_images.get(role)
        if image is None:
            raise ValueError(f"this checkpoint needs a {role} image, the observation has none")
        views.append(preprocess(image))
    if len(views) == 1:
        return views[0]
    return tuple(torch.cat(per_tower) for per_tower in zip(*views, strict=True))
