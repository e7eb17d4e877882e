"""torch.compile over parts of a token policy: the ablation of `vla-ros bench --compile-ablation`.

The engine has none of it: its own kernels and graphs run the parts. What is compiled has its
matrices as they are stored, since torch.compile lays them out itself, and fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import torch

from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.layers.linear import LowBit, Weight
from vla_ros.engine.models.language.llama import LlamaDecoder
from vla_ros.engine.models.openvla import VLAModel

VISION, DECODER = "vision", "decoder"
PIECES = 64

P = ParamSpec("P")
R = TypeVar("R")


def compiled_model(parts: Sequence[str]) -> Callable[..., VLAModel]:
    """Builder of a network whose ``parts`` are compiled when they are first called."""

    def make(*args: Any) -> VLAModel:
        decoder = CompiledDecoder if DECODER in parts else None
        model = VLAModel(*args, make_decoder=decoder, pack_vision=VISION not in parts)
        if VISION in parts:
            _make_room()
            for tower in model.vision.vision_backbone.towers:
                tower.compile()
        return model

    return make


class CompiledDecoder:
    """A :class:`~vla_ros.engine.layers.runner.Decoder`: Llama's or Qwen2's layers, compiled."""

    def __init__(
        self,
        config: TextConfig,
        tensors: Mapping[str, torch.Tensor],
        quantized: Mapping[str, LowBit],
    ) -> None:
        self._decoder = LlamaDecoder(config, tensors, quantized=quantized)
        self.hidden = compiled(self._decoder.hidden)
        self.tapped = compiled(self._decoder.tapped)

    @property
    def head(self) -> Weight:
        return self._decoder.head

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._decoder.embed(tokens)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, compiled when it is called, with room for all shapes that a decoding has."""
    _make_room()
    return torch.compile(function)


def _make_room() -> None:
    """Let dynamo keep more pieces of code.

    Dynamo compiles a second shape for sizes that vary, so the 13 shapes of speculation take 4
    pieces of code. Attentions, trees and taps take some more; past its limit (8) dynamo would run
    the rest eagerly, with one warning in its own log. So the limit is raised.
    """
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, PIECES)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 4 * PIECES)
