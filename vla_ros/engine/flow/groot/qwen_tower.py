"""Qwen3-VL's vision tower for squares of one size: patches, a stretched table of positions, two
rotations a patch, and taps on the way (deepstack).

Source: transformers 4.57 ``modeling_qwen3_vl.py`` (``Qwen3VLVisionModel``). All that depends on the
pictures' size is made once at load. A picture is one moment, shown twice: the two moments of
the patch embedding are added up. Patches come in blocks of ``merge`` x ``merge``, as the authors'
processor orders them, since a block becomes one token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.engine.flow.matrices import VISION, Map, Take, as_it_is, mapped
from vla_ros.engine.flow.suffix import Linear, linear_shapes
from vla_ros.engine.flow.weights import Shape, Weights
from vla_ros.engine.packed.kernels.rope_write import rotate

EPS = 1e-6
MOMENTS = 2  # of the patch embedding
_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class QwenTowerConfig:
    """``image_size`` pixels on a side; ``table`` places on a side of the table of positions;
    ``taps``: the blocks behind which features are taken for the first layers of the language model,
    ``out`` wide like the tokens."""

    width: int = 1024
    depth: int = 24
    heads: int = 16
    mlp: int = 4096
    out: int = 2048
    image_size: int = 256
    patch: int = 16
    merge: int = 2
    table: int = 48
    taps: tuple[int, ...] = (5, 11, 17)

    @property
    def side(self) -> int:
        """Patches on a side of a picture."""
        return self.image_size // self.patch

    @property
    def patches(self) -> int:
        """Patches of a picture."""
        return self.side**2

    @property
    def tokens(self) -> int:
        """Tokens of a picture."""
        return self.patches // self.merge**2

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        return self.width // self.heads


@dataclass(frozen=True, slots=True)
class _Block:
    qkv: Map
    out: Map
    up: Map
    down: Map


@dataclass(frozen=True, slots=True)
class _Merger:
    """``joined``: its norm goes over a whole block of patches, and not over each."""

    up: Map
    down: Map
    joined: bool


class QwenTower:
    """The tower at ``base`` in the dtype and on the device of ``like``. Inference only."""

    def __init__(
        self, config: QwenTowerConfig, weights: Weights, base: str, like: torch.Tensor
    ) -> None:
        self.config = config
        kernel = weights.take(f"{base}patch_embed.proj.weight").sum(2)  # both moments are the same
        bias = weights.take(f"{base}patch_embed.proj.bias")
        self._patches = Linear(kernel.flatten(1), bias).to(like)
        order = block_order(config)
        rows, shares = stretched_rows(config)
        table = weights.take(f"{base}pos_embed.weight")
        positions = (table[rows] * shares[:, :, None]).sum(0)
        self._positions = positions[order].to(like)
        angles = patch_angles(config)[order]
        self._cos, self._sin = angles.cos().to(like.device), angles.sin().to(like.device)
        self._blocks = [
            _read_block(weights, f"{base}blocks.{i}.", config, like) for i in range(config.depth)
        ]
        self._merger = _read_merger(weights, f"{base}merger.", like, config, joined=False)
        self._taps = [
            _read_merger(weights, f"{base}deepstack_merger_list.{i}.", like, config, joined=True)
            for i in range(len(config.taps))
        ]

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [V, 3, s, s] in [-1, 1] -> [V * tokens, (1 + taps) * out]: tokens, then taps."""
        x = self._patches(self._cut(pixels)) + self._positions
        parts: list[torch.Tensor] = []
        for number, block in enumerate(self._blocks):
            x = self._run(x, block)
            if number in self.config.taps:
                parts.append(self._merge(x, self._taps[len(parts)]))
        return torch.cat((self._merge(x, self._merger), *parts), -1)

    def _cut(self, pixels: torch.Tensor) -> torch.Tensor:
        """[V, 3, s, s] -> [V, patches, 3 p p] in blocks."""
        config = self.config
        views, blocks = len(pixels), config.side // config.merge
        cut = pixels.view(
            views, 3, blocks, config.merge, config.patch, blocks, config.merge, config.patch
        )
        return cut.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(views, config.patches, -1)

    def _run(self, x: torch.Tensor, block: _Block) -> torch.Tensor:
        config = self.config
        views, count, width = x.shape
        qkv = block.qkv(F.layer_norm(x, (width,), None, None, EPS))
        heads = qkv.view(views, count, 3, config.heads, -1).permute(2, 0, 3, 1, 4)
        qk = rotate(heads[:2].float(), self._cos, self._sin).to(x.dtype)
        out = F.scaled_dot_product_attention(qk[0], qk[1], heads[2], scale=1.0)
        x = x + block.out(out.transpose(1, 2).reshape(views, count, width))
        h = block.up(F.layer_norm(x, (width,), None, None, EPS))
        return x + block.down(F.gelu(h, approximate="tanh"))

    def _merge(self, x: torch.Tensor, merger: _Merger) -> torch.Tensor:
        wide = self.config.width * self.config.merge**2
        if merger.joined:
            x = F.layer_norm(x.reshape(-1, wide), (wide,), None, None, EPS)
        else:
            x = F.layer_norm(x, (x.shape[-1],), None, None, EPS).reshape(-1, wide)
        return merger.down(F.gelu(merger.up(x)))


def block_order(config: QwenTowerConfig) -> torch.Tensor:
    """Places of patches, counted by rows, in the order of blocks: int64 [patches]."""
    blocks = config.side // config.merge
    grid = torch.arange(config.patches).view(blocks, config.merge, blocks, config.merge)
    return grid.transpose(1, 2).flatten()


def stretched_rows(config: QwenTowerConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the table of positions the four rows that each patch reads, by rows of patches, and their
    shares: int64 and float32 [4, patches].

    Source: ``fast_pos_embed_interpolate``.
    """
    places = torch.linspace(0, config.table - 1, config.side)
    low = places.int()
    high = (low + 1).clip(max=config.table - 1)
    rest = places - low
    rows, shares = [], []
    for row, row_share in ((low, 1 - rest), (high, rest)):
        for column, column_share in ((low, 1 - rest), (high, rest)):
            rows.append((row[:, None] * config.table + column).flatten())
            shares.append((row_share[:, None] * column_share).flatten())
    return torch.stack(rows).long(), torch.stack(shares)


def patch_angles(config: QwenTowerConfig) -> torch.Tensor:
    """Angles of every patch, by rows: [patches, head_dim], row's then column's, twice."""
    half = config.head_dim // 2
    frequencies = 1.0 / _THETA ** (torch.arange(0, half, 2, dtype=torch.float32) / half)
    line = torch.outer(torch.arange(config.side, dtype=torch.float32), frequencies)
    side = config.side
    both = torch.cat(
        (line[:, None].expand(side, side, -1), line[None].expand(side, side, -1)), -1
    ).flatten(0, 1)
    return torch.cat((both, both), -1)


def qwen_tower_shapes(config: QwenTowerConfig, base: str) -> dict[str, Shape]:
    """Its tensors."""
    width, wide = config.width, config.width * config.merge**2
    kernel = (width, 3, MOMENTS, config.patch, config.patch)
    shapes: dict[str, Shape] = {
        "patch_embed.proj.weight": kernel,
        "patch_embed.proj.bias": (width,),
    }
    shapes["pos_embed.weight"] = (config.table**2, width)
    for number in range(config.depth):
        block = f"blocks.{number}."
        shapes |= _norm_shapes(f"{block}norm1", width) | _norm_shapes(f"{block}norm2", width)
        shapes |= linear_shapes(f"{block}attn.qkv", width, 3 * width)
        shapes |= linear_shapes(f"{block}attn.proj", width, width)
        shapes |= linear_shapes(f"{block}mlp.linear_fc1", width, config.mlp)
        shapes |= linear_shapes(f"{block}mlp.linear_fc2", config.mlp, width)
    mergers = {"merger.": width}
    mergers |= {f"deepstack_merger_list.{i}.": wide for i in range(len(config.taps))}
    for name, normed in mergers.items():
        shapes |= _norm_shapes(f"{name}norm", normed)
        shapes |= linear_shapes(f"{name}linear_fc1", wide, wide)
        shapes |= linear_shapes(f"{name}linear_fc2", wide, config.out)
    return {base + name: shape for name, shape in shapes.items()}


def _norm_shapes(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _read_block(weights: Weights, base: str, config: QwenTowerConfig, like: torch.Tensor) -> _Block:
    def qkv(take: Take) -> Linear:
        made = _behind_norm(take, f"{base}norm1", f"{base}attn.qkv", 1)
        scale = torch.ones(3, config.width, 1)
        scale[0] = config.head_dim**-0.5
        flat = scale.flatten().to(made.weight.device)
        return Linear(made.weight * flat[:, None], made.bias * flat)

    def up(take: Take) -> Linear:
        return _behind_norm(take, f"{base}norm2", f"{base}mlp.linear_fc1", 1)

    out, down = f"{base}attn.proj", f"{base}mlp.linear_fc2"
    return _Block(
        mapped(weights, f"{base}attn.query_key_value", VISION, like, qkv),
        mapped(weights, out, VISION, like, as_it_is(out)),
        mapped(weights, f"{base}mlp.up", VISION, like, up),
        mapped(weights, down, VISION, like, as_it_is(down)),
    )


def _read_merger(
    weights: Weights, base: str, like: torch.Tensor, config: QwenTowerConfig, *, joined: bool
) -> _Merger:
    times = 1 if joined else config.merge**2

    def up(take: Take) -> Linear:
        return _behind_norm(take, f"{base}norm", f"{base}linear_fc1", times)

    down = f"{base}linear_fc2"
    return _Merger(
        mapped(weights, f"{base}up", VISION, like, up),
        mapped(weights, down, VISION, like, as_it_is(down)),
        joined,
    )


def _behind_norm(take: Take, norm: str, name: str, times: int) -> Linear:
    """A map with the scale and shift of the norm in front of it, which repeats ``times`` over its
    inputs."""
    scale, shift = (take(f"{norm}.{kind}").repeat(times) for kind in ("weight", "bias"))
    after = as_it_is(name)(take)
    return Linear(after.weight * scale, after.bias + after.weight @ shift)
