"""Eagle: the vision and language half of GR00T N1.5 and N1.6.

Sources: NVIDIA/Isaac-GR00T n1.5 ``eagle2_hg_model/modeling_eagle2_5_vl.py`` and n1.6
``Eagle-Block2A-2B-v2/modeling_eagle3_vl.py``, ``modeling_siglip2.py``, ``eagle_backbone.py``.
A SigLIP tower, a connector and the first layers of Qwen3-1.7B with its last norm. N1.5 sees
squares of 224 pixels, a token a patch. N1.6 sees larger ones, for which the table of positions is
stretched (once, at load; the authors' code does it for every picture), and joins 2 x 2 patches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from vla_ros.engine.checkpoints.config import SIGLIP_SO400M, TextConfig, TowerConfig
from vla_ros.engine.flow.buffers import MASKED
from vla_ros.engine.flow.groot.interpolation import stretched
from vla_ros.engine.flow.groot.qwen3 import (
    Qwen3Layer,
    qwen3_layer_shapes,
    read_qwen3_layer,
    run_layer,
)
from vla_ros.engine.flow.layers import Rope, rope
from vla_ros.engine.flow.matrices import VISION, Map, Take, as_it_is, mapped
from vla_ros.engine.flow.siglip import SigLip, read_siglip, siglip_shapes
from vla_ros.engine.flow.smolvla import shuffled
from vla_ros.engine.flow.suffix import Linear, linear_shapes
from vla_ros.engine.flow.weights import Expected, Shape, Weights

IMAGE_TOKEN = 151669  # <IMG_CONTEXT>
QWEN3_1B7 = TextConfig("qwen3", 151680, 2048, 6144, 28, 16, 8, 128, 1e6, 1e-6, tied=True)
_EPS = 1e-5  # torch's LayerNorm, in front of N1.6's connector


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """``base`` opens the names of its tensors; ``text.layers`` counts the layers that are used.

    ``vision.image_size`` is the side of a picture, ``table`` that of the stored table of positions
    in patches. ``shuffle`` x ``shuffle`` patches become one token, through a norm and two linear
    maps (N1.6), or with 1 each through one (N1.5).
    """

    base: str
    vision: TowerConfig
    text: TextConfig
    table: int = 16
    shuffle: int = 1
    image_token: int = IMAGE_TOKEN

    @property
    def view_tokens(self) -> int:
        """Tokens of one camera."""
        return self.vision.patches // self.shuffle**2


def eagle_n15(layers: int = 12) -> EagleConfig:
    """The published sizes of N1.5."""
    return EagleConfig("backbone.eagle_model.", SIGLIP_SO400M, _first(layers))


def eagle_n16(layers: int = 16, side: int = 252) -> EagleConfig:
    """The published sizes of N1.6, for pictures of ``side`` pixels."""
    vision = TowerConfig(1152, 27, 16, 4304, image_size=side)
    return EagleConfig("backbone.model.", vision, _first(layers), shuffle=2)


def _first(layers: int) -> TextConfig:
    return replace(QWEN3_1B7, layers=layers)


class Eagle:
    """Loaded, in the dtype and on the device of ``like``; one thread, inference only."""

    def __init__(
        self, config: EagleConfig, weights: Weights, like: torch.Tensor, longest: int
    ) -> None:
        self.config, text = config, config.text
        self.image_token, self.width = config.image_token, text.hidden_size
        tower, words = (
            f"{config.base}vision_model.vision_model.",
            f"{config.base}language_model.model.",
        )
        positions = torch.arange(config.vision.patches)
        self._tower = read_siglip(
            _Stretched(config, weights), tower, config.vision, positions, like
        )
        self._connector = _read_connector(config, weights, like)
        self._embedding = weights.take(f"{words}embed_tokens.weight").to(like)
        self._layers: list[Qwen3Layer] = [
            read_qwen3_layer(weights, f"{words}layers.{i}.", text, like) for i in range(text.layers)
        ]
        self._norm = weights.take(f"{words}norm.weight").to(like)
        self._rope = rope(text, longest, like.device)
        self._mask = like.new_full((longest, longest), MASKED).triu_(1)

    @property
    def tower(self) -> SigLip:
        """The vision tower, for those who look on."""
        return self._tower

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """See Backbone; the rows that stand in the prompt and nothing else."""
        x = self._tower(pixels)
        if self.config.shuffle > 1:
            x = shuffled(x, self.config.shuffle)
            x = F.layer_norm(x, (x.shape[-1],), None, None, _EPS)
        first, *last = self._connector
        x = first(x)
        if last:
            x = last[0](F.gelu(x))
        return x.flatten(0, 1)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """See Backbone."""
        return F.embedding(ids, self._embedding)

    def lay(self, ids: list[int], length: int) -> None:
        """See Backbone: places count from 0, whatever stands at them."""

    def read(self, x: torch.Tensor, features: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """See Backbone."""
        count, text = len(x), self.config.text
        turn = Rope(self._rope.cos[:count], self._rope.sin[:count])
        mask = self._mask[:count, :count]
        for layer in self._layers:
            x = run_layer(x, layer, text, turn, mask)
        return F.rms_norm(x, (x.shape[-1],), self._norm, text.rms_eps)


class _Stretched:
    """A checkpoint's tower as :func:`read_siglip` knows it: a convolution, and one row of the
    table for every patch of a picture."""

    def __init__(self, config: EagleConfig, weights: Weights) -> None:
        self._config, self.within = config, weights

    def take(self, name: str) -> torch.Tensor:
        tensor, vision = self.within.take(name), self._config.vision
        if name.endswith("position_embedding.weight"):
            return stretched(tensor, vision.image_size // vision.patch)
        if name.endswith("patch_embedding.weight") and tensor.dim() == 2:
            grid = tensor.view(len(tensor), vision.patch, vision.patch, 3)
            return grid.permute(0, 3, 1, 2).contiguous()
        return tensor


def _read_connector(config: EagleConfig, weights: Weights, like: torch.Tensor) -> list[Map]:
    """The linear maps, the first with the norm in front of it and for columns (y, x, C) of the
    patches that are joined; the authors' are (C, y, x), ``pixel_unshuffle``."""
    base = f"{config.base}mlp1."
    if config.shuffle == 1:
        return [mapped(weights, f"{base}0", VISION, like, as_it_is(f"{base}0"))]

    def joined(take: Take) -> Linear:
        norm, first = as_it_is(f"{base}0")(take), as_it_is(f"{base}1")(take)
        made, bias = first.weight * norm.weight, first.bias + first.weight @ norm.bias
        columns = made.view(len(made), config.vision.width, -1).transpose(1, 2)
        return Linear(columns.flatten(1), bias)

    return [mapped(weights, f"{base}joined", VISION, like, joined),
            mapped(weights, f"{base}3", VISION, like, as_it_is(f"{base}3"))]  # fmt: skip


def eagle_expected(config: EagleConfig) -> Expected:
    """Its tensors; the pooling head and the head of words, which nothing uses, may be missing."""
    vision, text = config.vision, config.text
    tower, words = f"{config.base}vision_model.vision_model.", f"{config.base}language_model."
    must: dict[str, Shape] = siglip_shapes(tower, vision)
    must[f"{tower}embeddings.position_embedding.weight"] = (config.table**2, vision.width)
    if config.shuffle > 1:
        patch = 3 * vision.patch**2
        must[f"{tower}embeddings.patch_embedding.weight"] = (vision.width, patch)
        wide = vision.width * config.shuffle**2
        must |= {f"{config.base}mlp1.0.{kind}": (wide,) for kind in ("weight", "bias")}
        must |= linear_shapes(f"{config.base}mlp1.1", wide, text.hidden_size)
        must |= linear_shapes(f"{config.base}mlp1.3", text.hidden_size, text.hidden_size)
    else:
        must |= linear_shapes(f"{config.base}mlp1.0", vision.width, text.hidden_size)
    must[f"{words}model.embed_tokens.weight"] = (text.vocab_size, text.hidden_size)
    must[f"{words}model.norm.weight"] = (text.hidden_size,)
    for number in range(text.layers):
        must |= qwen3_layer_shapes(f"{words}model.layers.{number}.", text)
    spare = _pooling_shapes(f"{tower}head.", vision)
    spare[f"{words}lm_head.weight"] = (text.vocab_size, text.hidden_size)
    return Expected(must, spare)


def _pooling_shapes(base: str, vision: TowerConfig) -> dict[str, Shape]:
    width = vision.width
    shapes: dict[str, Shape] = {
        "probe": (1, 1, width),
        "attention.in_proj_weight": (3 * width, width),
        "attention.in_proj_bias": (3 * width,),
        **linear_shapes("attention.out_proj", width, width),
        **{f"layernorm.{kind}": (width,) for kind in ("weight", "bias")},
        **linear_shapes("mlp.fc1", width, vision.mlp),
        **linear_shapes("mlp.fc2", vision.mlp, width),
    }
    return {base + name: shape for name, shape in shapes.items()}
