"""Qwen3's layers, and Qwen3-VL as GR00T N1.7 uses it: vision tower, first layers of the language
model.

Sources: NVIDIA/Isaac-GR00T ``qwen3_backbone.py``, transformers 4.57 ``modeling_qwen3.py`` and
``modeling_qwen3_vl.py``. Rows of images have three positions (moment, row, column), words one in
all three, and the first layers add what the tower's deepstack mergers made. The rows that come out
are those behind the last layer used, in front of the language model's norm, which is not even read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import QWEN3_TEXT, QWEN3_VL_VISION
from vla_ros.engine.io.linear import Linear, behind_norm
from vla_ros.engine.io.quantize import DECODER, VISION, Take, as_it_is, mapped, read_table
from vla_ros.engine.io.tensors import Matrix, Plain, Table, read_map, shapes
from vla_ros.engine.io.weights import Expected, Weights
from vla_ros.engine.layers.kernels.fused import rotate
from vla_ros.engine.layers.linear import linear, linear_gelu
from vla_ros.engine.models.base import MASKED
from vla_ros.engine.models.towers import attend_all
from vla_ros.engine.models.transformer import (
    Rope,
    attend,
    layer_table,
    mlp,
    norm,
    read_layer,
    rope,
)

BASE = "backbone.model."
VISUAL, LANGUAGE = f"{BASE}model.visual.", f"{BASE}model.language_model."
IMAGE_TOKEN = 151655  # <|image_pad|>
IMAGE_PAD = "<|image_pad|>"
#: The vision-language models of N1.7, all of the same sizes.
QWENS = ("nvidia/Cosmos-Reason2-2B", "Qwen/Qwen3-VL-2B-Instruct")
_LAYERS = 28  # of the whole language model
_TEXT = TextConfig("qwen3", 151936, 2048, 6144, 16, 16, 8, 128, 5e6, 1e-6, tied=True)
_EPS = 1e-6  # of the tower's norms
_THETA = 10000.0  # of the tower's rotations
_MOMENTS = 2  # of the patch embedding: an image is one moment, shown twice


class Qwen3Layer:
    """A causal layer with a norm of each head's Q and K in front of the rotation, batch of one."""

    def __init__(self, weights: Weights, base: str, config: TextConfig, like: torch.Tensor) -> None:
        self._config = config
        q, k = (weights.take(f"{base}self_attn.{n}_norm.weight").to(like.device) for n in "qk")
        scales = [q * config.head_dim**-0.5] * config.heads + [k] * config.kv_heads
        self._scales = torch.stack(scales)[:, None]  # float32, Q's with the scale of the scores
        self._plain = read_layer(weights, base, layer_table(config), like, DECODER)

    def __call__(self, x: torch.Tensor, rope: Rope, mask: torch.Tensor) -> torch.Tensor:
        """Rows [n, C] -> [n, C]; ``rope`` holds the n positions, ``mask`` [n, n] is added to
        scores."""
        config, plain = self._config, self._plain
        count, turned = len(x), config.heads + config.kv_heads
        qkv = linear(norm(x, config.rms_eps), plain.qkv)
        heads = qkv.view(count, turned + config.kv_heads, -1).transpose(0, 1)
        qk = norm(heads[:turned].float(), config.rms_eps) * self._scales
        qk = rotate(qk, rope.cos, rope.sin).to(x.dtype)
        out = attend(qk[: config.heads], qk[config.heads :], heads[turned:], mask)
        x = x + linear(out, plain.out)
        return x + mlp(norm(x, config.rms_eps), plain, config)


class Qwen3:
    """The first layers of a Qwen3 over a prompt with images, in the dtype and on the device of
    ``like``.

    A prompt is ids in which ``image_token`` holds the position of every row of an image; it has at
    most ``longest`` rows. ``base`` opens the names of its tensors. One thread, inference only.
    """

    def __init__(
        self,
        text: TextConfig,
        weights: Weights,
        base: str,
        like: torch.Tensor,
        longest: int,
        last_norm: bool = False,
    ) -> None:
        self.text, self.width = text, text.hidden_size
        self._embed_tokens = read_table(weights, f"{base}embed_tokens.weight", like)
        self._layers = [
            Qwen3Layer(weights, f"{base}layers.{i}.", text, like) for i in range(text.layers)
        ]
        self._norm = weights.take(f"{base}norm.weight").to(like) if last_norm else None
        self._rope = rope(text, longest, like.device)
        self._mask = like.new_full((longest, longest), MASKED).triu_(1)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids int64 [n] -> rows [n, C]."""
        return F.embedding(ids, self._embed_tokens)

    def set_prompt(self, ids: list[int]) -> None:
        """Take on a new prompt: what depends on its positions alone, here nothing."""

    def forward(
        self, x: torch.Tensor, features: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Rows [length, C], causal, -> those behind the last layer [length, C].

        ``features`` [n, W] of images stand at ``positions`` int64 [n]: their first C values in
        ``x``, each C that follow are added behind one more of the first layers.
        """
        count = len(x)
        turn = Rope(self._rope.cos[:count], self._rope.sin[:count])
        mask = self._mask[:count, :count]
        deepstack = features.split(self.width, -1)[1:]
        for number, layer in enumerate(self._layers):
            x = layer(x, turn, mask)
            if number < len(deepstack):
                x = x.index_add(0, positions, deepstack[number])
        if self._norm is None:
            return x
        return F.rms_norm(x, (x.shape[-1],), self._norm, self.text.rms_eps)


def qwen3_table(config: TextConfig) -> Table:
    """Embedding, layers, last norm."""
    norms = {f"self_attn.{n}_norm.weight": Plain((config.head_dim,)) for n in "qk"}
    return {
        "embed_tokens.weight": Plain((config.vocab_size, config.hidden_size)),
        "layers": [{**layer_table(config), **norms}] * config.layers,
        "norm.weight": Plain((config.hidden_size,)),
    }


@dataclass(frozen=True, slots=True)
class Qwen3VLVisionConfig:
    """``vision_config`` in transformers' words, for images of ``image_size`` pixels on a side.

    ``num_grid_per_side`` positions on a side of the table of positions; behind the blocks
    ``deepstack_visual_indexes`` features are taken for the first layers of the language model,
    ``out_hidden_size`` wide like the tokens.
    """

    hidden_size: int = 1024
    depth: int = 24
    num_heads: int = 16
    intermediate_size: int = 4096
    out_hidden_size: int = 2048
    image_size: int = 256
    patch_size: int = 16
    spatial_merge_size: int = 2
    num_grid_per_side: int = 48
    deepstack_visual_indexes: tuple[int, ...] = (5, 11, 17)

    @property
    def side(self) -> int:
        """Patches on a side of an image."""
        return self.image_size // self.patch_size

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return self.side**2

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class Qwen3VLConfig:
    """``text.layers`` counts the layers that are used; ``mrope_section``: how many of a head's
    frequencies follow the moment, the row and the column of an image, in turn."""

    vision: Qwen3VLVisionConfig = field(default_factory=Qwen3VLVisionConfig)
    text: TextConfig = _TEXT
    mrope_section: tuple[int, ...] = (24, 20, 20)
    image_token: int = IMAGE_TOKEN

    @property
    def view_tokens(self) -> int:
        """Tokens of one camera."""
        return self.vision.patches // self.vision.spatial_merge_size**2

    def build(self, weights: Weights, like: torch.Tensor, longest: int) -> Qwen3VL:
        """The model, for prompts of at most ``longest`` rows."""
        return Qwen3VL(self, weights, like, longest)

    def expected(self) -> Expected:
        """Its tensors. The last norm and the head of words are there and unused; an embedding that
        is tied may be there under its other name."""
        must = shapes({VISUAL: vision_table(self.vision), LANGUAGE: qwen3_table(self.text)})
        embedding, head = f"{LANGUAGE}embed_tokens.weight", f"{BASE}lm_head.weight"
        return Expected(must, {head: must[embedding]}, {embedding: head})

    def discrete(self) -> dict[str, list[int]]:
        """The integers of the gate: rows of the table of positions, positions of a prompt of
        images."""
        probe = [0, *[self.image_token] * self.view_tokens, 0]
        probe = [one + (one == 0 == self.image_token) for one in probe]
        return {
            "table_rows": fast_pos_embed_interpolate(self.vision)[0].flatten().tolist(),
            "frequency_axes": frequency_axes(self),
            "positions": get_rope_index(self, probe).flatten().tolist(),
        }

    def shapes_json(self) -> dict[str, Any]:
        """``shapes`` of a config.json that :func:`parse_qwen3_vl` reads back."""
        sizes = {
            "num_position_embeddings": self.vision.num_grid_per_side**2,
            "deepstack_visual_indexes": list(self.vision.deepstack_visual_indexes),
        }
        words = QWEN3_TEXT.write(self.text, {"num_hidden_layers": max(_LAYERS, self.text.layers)})
        rope = {"mrope_section": list(self.mrope_section), "mrope_interleaved": True}
        return {
            "image_token_id": self.image_token,
            "vision_config": QWEN3_VL_VISION.write(self.vision, sizes),
            "text_config": {**words, "attention_bias": False, "rope_scaling": rope},
        }


def parse_qwen3_vl(fields: Fields, image_size: int) -> Qwen3VLConfig:
    """The vision-language model of an N1.7's config.json and the layers of it that are used.

    A checkpoint names its model and does not have its config: the published one is known here. One
    key is this project's own: ``shapes``, for models of other sizes, in transformers' words
    ({"vision_config", "text_config", "image_token_id"}). CheckpointError.
    """
    fields.only("reproject_vision", False)
    layers = fields.whole("select_layer", 16)
    name = fields.text("model_name", QWENS[0])
    if fields.raw.get("shapes") is not None:
        config = _parse_shapes(fields.part("shapes"), image_size)
    elif name in QWENS:
        config = Qwen3VLConfig(Qwen3VLVisionConfig(image_size=image_size))
    else:
        raise CheckpointError(
            f"model_name is {name!r}, of which this engine knows no sizes: it knows"
            f" {' and '.join(QWENS)}"
        )
    vision, text = config.vision, config.text
    if not layers <= text.layers:
        raise fields.wrong("select_layer", f"at most {text.layers} layers")
    if fields.whole("backbone_embedding_dim", 2048) != text.hidden_size:
        raise fields.wrong("backbone_embedding_dim", f"{text.hidden_size}, as of {QWENS[0]}")
    block = vision.patch_size * vision.spatial_merge_size
    if vision.image_size % block:
        raise CheckpointError(
            f"images of {vision.image_size} pixels do not divide into blocks of {block}"
        )
    if vision.out_hidden_size != text.hidden_size or len(vision.deepstack_visual_indexes) > layers:
        raise CheckpointError("the tower's tokens or taps do not fit the language model's layers")
    if sum(config.mrope_section) != text.head_dim // 2:
        raise CheckpointError(
            f"mrope_section {list(config.mrope_section)} of heads of {text.head_dim}"
        )
    return replace(config, text=replace(text, layers=layers))


def _parse_shapes(shapes: Fields, image_size: int) -> Qwen3VLConfig:
    """``shapes``: what is left out is as in the published model."""
    sizes, words, known = shapes.part("vision_config"), shapes.part("text_config"), Qwen3VLConfig()
    table = sizes.whole("num_position_embeddings", known.vision.num_grid_per_side**2)
    side = round(table**0.5)
    if side * side != table:
        raise sizes.wrong("num_position_embeddings", "a square number")
    vision = Qwen3VLVisionConfig(
        image_size=image_size,
        num_grid_per_side=side,
        deepstack_visual_indexes=_wholes(
            sizes, "deepstack_visual_indexes", known.vision.deepstack_visual_indexes
        ),
        **QWEN3_VL_VISION.parse(sizes, known.vision),
    )
    text = replace(known.text, **QWEN3_TEXT.parse(words, known.text))
    rope = words.part("rope_scaling")
    sections = _wholes(rope, "mrope_section", known.mrope_section)
    if len(sections) != 3:
        raise rope.wrong("mrope_section", "three whole numbers")
    token = shapes.whole("image_token_id", IMAGE_TOKEN, least=0)
    return Qwen3VLConfig(vision, text, sections, token)


def _wholes(fields: Fields, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    if fields.raw.get(name) is None:
        return default
    found = fields.items(name)
    if any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in found):
        raise fields.wrong(name, "whole numbers")
    return tuple(found)


def qwen_prompt(text: str, views: int, tokens: int) -> str:
    """One message of a user in Qwen3-VL's chat template, without an answer begun.

    Source: ``Gr00tN1d7Processor._apply_vlm_processing`` and ``Qwen3VLProcessor.__call__``, which
    gives an image as many positions as it has ``tokens``.
    """
    image = f"<|vision_start|>{IMAGE_PAD * tokens}<|vision_end|>"
    return f"<|im_start|>user\n{image * views}{text}<|im_end|>\n"


class _Block:
    """Attention and MLP with a layer norm in front of each, which is folded into the map behind it;
    a patch is rotated by its row and its column."""

    def __init__(
        self, weights: Weights, base: str, config: Qwen3VLVisionConfig, like: torch.Tensor
    ) -> None:
        def qkv(take: Take) -> Linear:
            made = behind_norm(take, f"{base}norm1", as_it_is(f"{base}attn.qkv")(take))
            scale = torch.ones(3, config.hidden_size, 1)
            scale[0] = config.head_dim**-0.5
            flat = scale.flatten().to(made.weight.device)
            return Linear(made.weight * flat[:, None], made.bias * flat)

        self._heads = config.num_heads
        self._qkv = mapped(weights, f"{base}attn.query_key_value", VISION, like, qkv)
        self._proj, self._fc1, self._fc2 = (
            read_map(weights, base, block_table(config), name, VISION, like)
            for name in ("attn.proj", "mlp.up", "mlp.linear_fc2")
        )

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[V, patches, C] -> the same."""
        views, count, width = x.shape
        qkv = self._qkv(_plain_norm(x))
        heads = qkv.view(views, count, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        qk = rotate(heads[:2].float(), cos, sin).to(x.dtype)
        out = attend_all(qk[0], qk[1], heads[2], 1.0)
        x = x + self._proj(out.transpose(1, 2).reshape(views, count, width))
        return x + self._fc2(linear_gelu(self._fc1, _plain_norm(x), "tanh"))


class _PatchMerger:
    """A block of patches -> a token, as :func:`merger_table` has it."""

    def __init__(
        self,
        weights: Weights,
        base: str,
        config: Qwen3VLVisionConfig,
        like: torch.Tensor,
        use_postshuffle_norm: bool = False,
    ) -> None:
        table = merger_table(config, use_postshuffle_norm)
        self._wide = config.hidden_size * config.spatial_merge_size**2
        self._use_postshuffle_norm = use_postshuffle_norm
        self._fc1, self._fc2 = (
            read_map(weights, base, table, name, VISION, like) for name in ("up", "linear_fc2")
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._use_postshuffle_norm:
            x = _plain_norm(x.reshape(-1, self._wide))
        else:
            x = _plain_norm(x).reshape(-1, self._wide)
        return self._fc2(linear_gelu(self._fc1, x))


def _plain_norm(x: torch.Tensor) -> torch.Tensor:
    """A layer norm, whose weights are in the map behind it."""
    return F.layer_norm(x, (x.shape[-1],), None, None, _EPS)


class Qwen3VLVisionModel:
    """The tower for squares of one size, in the dtype and on the device of ``like``.

    All that depends on the images' size is made once at load. Patches come in blocks of
    ``spatial_merge_size`` squared, as the authors' processor orders them, since a block becomes one
    token. Inference only.
    """

    def __init__(self, config: Qwen3VLVisionConfig, weights: Weights, like: torch.Tensor) -> None:
        self.config = config
        kernel = weights.take(f"{VISUAL}patch_embed.proj.weight").sum(2)  # both moments are equal
        bias = weights.take(f"{VISUAL}patch_embed.proj.bias")
        self._patch_embed = Linear(kernel.flatten(1), bias).to(like)
        order = block_order(config)
        rows, shares = fast_pos_embed_interpolate(config)
        table = weights.take(f"{VISUAL}pos_embed.weight")
        positions = (table[rows] * shares[:, :, None]).sum(0)
        self._pos_embed = positions[order].to(like)
        angles = rot_pos_emb(config)[order]
        self._cos, self._sin = angles.cos().to(like.device), angles.sin().to(like.device)
        self._blocks = [
            _Block(weights, f"{VISUAL}blocks.{i}.", config, like) for i in range(config.depth)
        ]
        self._merger = _PatchMerger(weights, f"{VISUAL}merger.", config, like)
        self._deepstack_mergers = {
            tap: _PatchMerger(weights, f"{VISUAL}deepstack_merger_list.{i}.", config, like, True)
            for i, tap in enumerate(config.deepstack_visual_indexes)
        }

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [V, 3, s, s] in [-1, 1] -> [V * tokens, (1 + taps) * out]: tokens, then what the
        deepstack mergers made."""
        x = self._patch_embed(self._cut(pixels)) + self._pos_embed
        deepstack: list[torch.Tensor] = []
        for number, block in enumerate(self._blocks):
            x = block(x, self._cos, self._sin)
            if number in self._deepstack_mergers:
                deepstack.append(self._deepstack_mergers[number](x))
        return torch.cat((self._merger(x), *deepstack), -1)

    def _cut(self, pixels: torch.Tensor) -> torch.Tensor:
        """[V, 3, s, s] -> [V, patches, 3 p p] in blocks."""
        config, views = self.config, len(pixels)
        merge, patch = config.spatial_merge_size, config.patch_size
        blocks = config.side // merge
        cut = pixels.view(views, 3, blocks, merge, patch, blocks, merge, patch)
        return cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(views, config.patches, -1)


def block_order(config: Qwen3VLVisionConfig) -> torch.Tensor:
    """Places of patches, counted by rows, in the order of blocks: int64 [patches]."""
    blocks, merge = config.side // config.spatial_merge_size, config.spatial_merge_size
    grid = torch.arange(config.patches).view(blocks, merge, blocks, merge)
    return grid.transpose(1, 2).flatten()


def fast_pos_embed_interpolate(config: Qwen3VLVisionConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The four rows of the table of positions that each patch reads, by rows of patches, and their
    shares: int64 and float32 [4, patches]."""
    positions = torch.linspace(0, config.num_grid_per_side - 1, config.side)
    low = positions.int()
    high = (low + 1).clip(max=config.num_grid_per_side - 1)
    rest = positions - low
    rows, shares = [], []
    for row, row_share in ((low, 1 - rest), (high, rest)):
        for column, column_share in ((low, 1 - rest), (high, rest)):
            rows.append((row[:, None] * config.num_grid_per_side + column).flatten())
            shares.append((row_share[:, None] * column_share).flatten())
    return torch.stack(rows).long(), torch.stack(shares)


def rot_pos_emb(config: Qwen3VLVisionConfig) -> torch.Tensor:
    """Angles of every patch, by rows: [patches, head_dim], row's then column's, twice."""
    half, side = config.head_dim // 2, config.side
    frequencies = 1.0 / _THETA ** (torch.arange(0, half, 2, dtype=torch.float32) / half)
    line = torch.outer(torch.arange(side, dtype=torch.float32), frequencies)
    grid = (line[:, None].expand(side, side, -1), line[None].expand(side, side, -1))
    both = torch.cat(grid, -1).flatten(0, 1)
    return torch.cat((both, both), -1)


def vision_table(config: Qwen3VLVisionConfig) -> Table:
    """The tower."""
    width, patch = config.hidden_size, config.patch_size
    return {
        "patch_embed.proj.weight": Plain((width, 3, _MOMENTS, patch, patch)),
        "patch_embed.proj.bias": Plain((width,)),
        "pos_embed.weight": Plain((config.num_grid_per_side**2, width)),
        "blocks": [block_table(config)] * config.depth,
        "merger": merger_table(config),
        "deepstack_merger_list": [merger_table(config, use_postshuffle_norm=True)]
        * len(config.deepstack_visual_indexes),
    }


def block_table(config: Qwen3VLVisionConfig) -> Table:
    """A block of the tower."""
    width, middle = config.hidden_size, config.intermediate_size
    return {
        "norm1": width,
        "norm2": width,
        "attn.qkv": (width, 3 * width),
        "attn.proj": (width, width),
        "mlp.up": Matrix({"mlp.linear_fc1": (width, middle)}, norm="norm2"),
        "mlp.linear_fc2": (middle, width),
    }


def merger_table(config: Qwen3VLVisionConfig, use_postshuffle_norm: bool = False) -> Table:
    """The map from a block of patches to a token; ``use_postshuffle_norm``: its norm goes over the
    whole block, not over each patch."""
    count = config.spatial_merge_size**2
    wide, times = count * config.hidden_size, 1 if use_postshuffle_norm else count
    return {
        "norm": wide // times,
        "up": Matrix({"linear_fc1": (wide, wide)}, norm="norm", times=times),
        "linear_fc2": (wide, config.out_hidden_size),
    }


class Qwen3VL(Qwen3):
    """Tower and language model, for prompts of ``longest`` rows at most."""

    def __init__(
        self, config: Qwen3VLConfig, weights: Weights, like: torch.Tensor, longest: int
    ) -> None:
        self.config = config
        self.visual = Qwen3VLVisionModel(config.vision, weights, like)
        super().__init__(config.text, weights, LANGUAGE, like, longest)
        self.features_width = self.width * (1 + len(config.vision.deepstack_visual_indexes))

    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [V, 3, s, s] in [-1, 1] -> features [n, W]; the first C values of each are the row
        that stands in the prompt."""
        return self.visual(pixels)

    def set_prompt(self, ids: list[int]) -> None:
        """Rows of images have three positions."""
        angles = word_angles(self.config, get_rope_index(self.config, ids))
        self._rope.cos[: len(ids)].copy_(angles.cos())
        self._rope.sin[: len(ids)].copy_(angles.sin())


def get_rope_index(config: Qwen3VLConfig, ids: list[int]) -> torch.Tensor:
    """Moment, row and column of every position of a prompt: int64 [3, n].

    An image counts as its rows; what follows goes on behind its last.
    """
    side = config.vision.side // config.vision.spatial_merge_size
    grid = torch.arange(side * side)
    in_picture = torch.stack((torch.zeros_like(grid), grid // side, grid % side))
    parts: list[torch.Tensor] = []
    position = begin = 0
    while position < len(ids):
        if ids[position] == config.image_token:
            parts.append(in_picture + begin)
            position, begin = position + len(grid), begin + side
        else:
            parts.append(torch.full((3, 1), begin))
            position, begin = position + 1, begin + 1
    return torch.cat(parts, 1)


def word_angles(config: Qwen3VLConfig, positions: torch.Tensor) -> torch.Tensor:
    """Angles [n, head_dim] of positions [3, n]: frequencies follow the three in turn."""
    text = config.text
    steps = torch.arange(0, text.head_dim, 2, dtype=torch.float64)
    frequencies = text.rope_theta ** (-steps / text.head_dim)
    follows = torch.tensor(frequency_axes(config))
    angles = positions.double()[follows].T * frequencies
    return torch.cat((angles, angles), -1).float()


def frequency_axes(config: Qwen3VLConfig) -> list[int]:
    """Which of moment (0), row (1) and column (2) each frequency of a head follows."""
    axes = [0] * (config.text.head_dim // 2)
    for axis in (1, 2):
        for position in range(axis, 3 * config.mrope_section[axis], 3):
            axes[position] = axis
    return axes
