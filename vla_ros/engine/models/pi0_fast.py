"""pi0-FAST: PaliGemma that writes the DCT of a chunk, token by token.

Source: lerobot 0.6.1 ``modeling_pi0_fast.py`` (openpi's model). Images, prompt and a BOS behind
it are a prefix whose tokens all see each other; its answer is causal. The head is a matrix
of its own: LeRobot unties it from the embedding, and both are trained.
"""

from __future__ import annotations

from copy import copy

import torch

from vla_ros.engine.io.fast_tokens import FastTokens
from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros.engine.io.quantize import VISION, mapped
from vla_ros.engine.io.tensors import shapes
from vla_ros.engine.io.weights import Expected, Weights
from vla_ros.engine.layers.backends import choose_backend
from vla_ros.engine.layers.devices import upload
from vla_ros.engine.layers.graphs import Capture, CountedCapture
from vla_ros.engine.layers.kernels.fused import Heads
from vla_ros.engine.layers.runner import Pools, TokenNetwork
from vla_ros.engine.models.base import GraphedFunctions
from vla_ros.engine.models.language.gemma import GemmaDecoder
from vla_ros.engine.models.pi0 import LM_HEAD, PROJECTOR, TEXT, TOWER
from vla_ros.engine.models.siglip import SigLip, read_siglip
from vla_ros.engine.models.vlm_with_expert import vlm_table


class Pi0Fast(TokenNetwork):
    """Vision tower, projector and decoder of one checkpoint. Inference only; a
    :class:`~vla_ros.engine.decoding.base.TokenModel`.

    ``views``: the cameras that there are, of those that the checkpoint knows.
    """

    causal = False

    def __init__(
        self,
        config: FlowConfig,
        weights: Weights,
        positions: torch.Tensor,
        like: torch.Tensor,
        capture: Capture | None,
        actions: FastTokens,
    ) -> None:
        self.config, self.device, self.dtype = config, like.device, like.dtype
        self.actions = actions
        self.ends: int | None = actions.end
        self.capture = None if capture is None else CountedCapture(capture)
        self.views = len(config.cameras)
        self.text = text = config.shapes.text
        self.tower: SigLip = read_siglip(weights, TOWER, config.shapes.vision, positions, like)
        self._projector = mapped(weights, PROJECTOR, VISION, like)
        # A draft may reach beyond the last token, before it is cut.
        longest = config.longest + config.max_tokens + 128
        self.decoder = GemmaDecoder(text, weights, TEXT, LM_HEAD, like, longest)
        heads = Heads(text.heads, text.kv_heads)
        self.attention = choose_backend(self.device, self.dtype, text.head_dim, heads=heads)
        self.captured = GraphedFunctions(self.capture)
        self._pixels: dict[int, torch.Tensor] = {}
        self._begin = torch.tensor([actions.bos], device=self.device)

    def uncaptured(self) -> Pi0Fast:
        """The model without CUDA graphs, as :meth:`VLAModel.uncaptured`."""
        other = copy(self)
        other.capture, other.pools = None, Pools()
        return other

    @property
    def patches(self) -> int:
        """Tokens of a frame's images."""
        return self.views * self.config.view_tokens

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [V, 3, s, s] of the cameras that are there -> embeddings [n, C], in memory that
        the next call of any graph may use."""
        views = len(pixels)
        if views not in self._pixels:
            self._pixels[views] = torch.zeros(pixels.shape, device=self.device, dtype=self.dtype)
        buffer = self._pixels[views]
        buffer.copy_(upload(pixels, self.device))
        with torch.inference_mode():
            return self.captured(
                ("images", views), lambda: self._projector(self.tower(buffer)).flatten(0, 1)
            )

    def sequence(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[images][prompt][BOS] -> embeddings [n, C]."""
        with torch.inference_mode():
            return torch.cat((features, self.decoder.embed(torch.cat((ids, self._begin)))))


def pi0_fast_expected(config: FlowConfig) -> Expected:
    """The tensors of a checkpoint. LeRobot 0.4 tied the head to the embedding and saved the one or
    the other."""
    vision, text = config.shapes.vision, config.shapes.text
    table = {**vlm_table(config, TOWER, TEXT), PROJECTOR: (vision.width, text.hidden_size)}
    must, embedding = shapes(table), TEXT + "embed_tokens.weight"
    must[LM_HEAD] = must[embedding]
    return Expected(must, {}, {embedding: LM_HEAD, LM_HEAD: embedding})
