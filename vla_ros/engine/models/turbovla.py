"""TurboVLA: DINOv3 and BERT side by side, six layers of exchange, and a chunk in one pass.

No language model is in between. BERT reads the instruction once; patches of all
cameras and words then see each other in both directions, and learned queries, one an action, read
what comes of it and the state. Nothing is denoised: ``steps`` is 0.

Rows of padding are no rows to leave out here: the words' padding is not masked where the queries
read, so it is part of what was trained, and a prompt always has the length that it had in training.
What the patches go through last is DINOv3's final norm: the authors take ``hidden_states[-1]``,
which is behind it in the versions that they pin, transformers 4.56 and 4.57, and before it in 5.

Source: H-EmbodVis/TurboVLA 2d42436 ``turbovla/models``, ``turbovla/text/bert.py``; transformers
4.57.1 ``modeling_dinov3_vit.py``, ``modeling_bert.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.engine.io.config import TowerConfig
from vla_ros.engine.io.quantize import read_table
from vla_ros.engine.io.weights import Expected, Weights
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.models.base import MASKED, FlowPolicy, Inputs, Span

BACKBONE, BERT = "vision_encoder.backbone.", "text_encoder.bert."
ROPE_BASE = 100.0  # of DINOv3's two axes
#: tensors of the two encoders that no output depends on
UNUSED = (f"{BACKBONE}embeddings.mask_token", f"{BERT}pooler.dense.weight",
          f"{BERT}pooler.dense.bias")  # fmt: skip


@dataclass(frozen=True, slots=True)
class BertShape:
    """Sizes of BERT; those of bert-base-uncased."""

    vocab: int = 30522
    width: int = 768
    layers: int = 12
    heads: int = 12
    mlp: int = 3072
    positions: int = 512


@dataclass(frozen=True, slots=True)
class TurboVLAConfig:
    """``text_length``: rows of every prompt, its padding included, 0 for its own length;
    ``lengths`` of some instructions that were padded to fewer. ``width`` and ``heads`` of the
    exchange and the queries, ``exchange`` its layers, ``inner`` its width inside, ``mlp`` the
    queries'."""

    vision: TowerConfig
    text: BertShape
    horizon: int
    action_dim: int
    state_dim: int
    cameras: tuple[str, ...]
    max_text: int = 256
    text_length: int = 0
    lengths: tuple[tuple[str, int], ...] = ()
    width: int = 256
    heads: int = 8
    exchange: int = 6
    inner: int = 1024
    mlp: int = 2048
    state_rows: int = 2
    state_hidden: int = 256
    layers: int = 3
    hidden: int = 512
    steps: int = 0
    kind: str = "turbovla"
    continues: tuple[str, ...] = ()

    @property
    def action_width(self) -> int:
        """Actions have no padding."""
        return self.action_dim

    @property
    def projector(self) -> int:
        """The width inside what brings patches to the exchange's."""
        return max(4 * self.width, self.vision.width // 2)


@dataclass(frozen=True, slots=True)
class Specials:
    """Ids that BERT's tokenizer has for what opens, ends and pads a prompt, and for the two marks
    that end an instruction of it."""

    cls: int
    sep: int
    pad: int
    dot: int
    question: int


# The tensors, under the names that a checkpoint stores them by.


class _Named(nn.Module):
    """Modules by names, for a level that is nothing but a name."""

    def __init__(self, /, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)


def _table(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape))


class MultiHead(nn.Module):
    """torch's ``MultiheadAttention`` over one sequence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight, self.in_proj_bias = _table(3 * width, width), _table(3 * width)
        self.out_proj = nn.Linear(width, width)

    def part(self, x: torch.Tensor, first: int, count: int) -> tuple[torch.Tensor, ...]:
        """``count`` of Q, K and V from ``first`` on, of rows [n, C]: [heads, n, d] each."""
        width = x.shape[-1]
        rows = slice(first * width, (first + count) * width)
        made = F.linear(x, self.in_proj_weight[rows], self.in_proj_bias[rows])
        return made.view(len(x), count, self.heads, -1).permute(1, 2, 0, 3).unbind()

    def mix(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(seen.transpose(0, 1).flatten(1))


class DinoV3Block(nn.Module):
    """A block of DINOv3: patches alone are rotated, by their position in the image."""

    def __init__(self, tower: TowerConfig) -> None:
        super().__init__()
        width = tower.width
        self.heads = tower.heads
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-5), nn.LayerNorm(width, 1e-5)
        self.attention = _Named(
            k_proj=nn.Linear(width, width, bias=False),
            **{f"{name}_proj": nn.Linear(width, width) for name in "vqo"},
        )
        self.layer_scale1 = _Named(lambda1=_table(width))
        self.layer_scale2 = _Named(lambda1=_table(width))
        self.mlp = _Named(
            up_proj=nn.Linear(width, tower.mlp), down_proj=nn.Linear(tower.mlp, width)
        )

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        h, own = self.norm1(x), self.attention
        q, k, v = (
            made(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for made in (own.q_proj, own.k_proj, own.v_proj)
        )
        front = x.shape[1] - len(cos)
        q, k = (torch.cat((t[:, :, :front], rotated(t[:, :, front:], cos, sin)), 2) for t in (q, k))
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + own.o_proj(seen) * self.layer_scale1.lambda1
        middle = F.gelu(self.mlp.up_proj(self.norm2(x)))
        return x + self.mlp.down_proj(middle) * self.layer_scale2.lambda1


class DinoV3(nn.Module):
    """DINOv3: pixels [V, 3, s, s] -> patches [V, P, width] behind the final norm."""

    def __init__(self, tower: TowerConfig) -> None:
        super().__init__()
        width = tower.width
        self.embeddings = _Named(
            cls_token=_table(1, 1, width),
            mask_token=_table(1, 1, width),
            register_tokens=_table(1, tower.registers, width),
            patch_embeddings=nn.Conv2d(3, width, tower.patch, tower.patch),
        )
        self.layer = nn.ModuleList(DinoV3Block(tower) for _ in range(tower.depth))
        self.norm = nn.LayerNorm(width, 1e-5)

    def forward(self, pixels: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        own = self.embeddings
        patches = own.patch_embeddings(pixels).flatten(2).transpose(1, 2)
        front = torch.cat((own.cls_token, own.register_tokens), 1).expand(len(pixels), -1, -1)
        x = torch.cat((front, patches), 1)
        for block in self.layer:
            x = block(x, cos, sin)
        return self.norm(x)[:, front.shape[1] :]


class BertLayer(nn.Module):
    """A layer of BERT."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        width = shape.width
        three = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        self.heads = shape.heads
        self.attention = _Named(
            self=_Named(**three),
            output=_Named(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width, 1e-12)),
        )
        self.intermediate = _Named(dense=nn.Linear(width, shape.mlp))
        self.output = _Named(
            dense=nn.Linear(shape.mlp, width), LayerNorm=nn.LayerNorm(width, 1e-12)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        own, behind = self.attention.self, self.attention.output
        q, k, v = (
            made(x).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            for made in (own.query, own.key, own.value)
        )
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1).flatten(1)
        x = behind.LayerNorm(x + behind.dense(seen))
        return self.output.LayerNorm(x + self.output.dense(F.gelu(self.intermediate.dense(x))))


class Bert(nn.Module):
    """BERT: ids [n], their positions and the attention mask -> rows [n, width]."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        width = shape.width
        self.embeddings = _Named(
            word_embeddings=nn.Embedding(shape.vocab, width),
            position_embeddings=nn.Embedding(shape.positions, width),
            token_type_embeddings=nn.Embedding(2, width),
            LayerNorm=nn.LayerNorm(width, 1e-12),
        )
        self.encoder = _Named(layer=nn.ModuleList(BertLayer(shape) for _ in range(shape.layers)))
        self.pooler = _Named(dense=nn.Linear(width, width))

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        own = self.embeddings
        x = own.word_embeddings(ids) + own.token_type_embeddings.weight[0]
        x = own.LayerNorm(x + own.position_embeddings(positions))
        for block in self.encoder.layer:
            x = block(x, mask)
        return x


class Fusion(nn.Module):
    """Patches and words look at each other, through one table of scores."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.layer_norm_v, self.layer_norm_l = nn.LayerNorm(width), nn.LayerNorm(width)
        into = ("v_proj", "l_proj", "values_v_proj", "values_l_proj")
        self.attn = _Named(
            **{name: nn.Linear(width, inner) for name in into},
            **{name: nn.Linear(inner, width) for name in ("out_v_proj", "out_l_proj")},
        )
        self.gamma_v, self.gamma_l = _table(width), _table(width)

    def forward(
        self, patches: torch.Tensor, words: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norms' rows are what is added to, as the authors' "normalized" has it; words that
        are padding are not seen, ``mask`` [n], and see."""
        v, w, own = self.layer_norm_v(patches), self.layer_norm_l(words), self.attn
        query, key, from_v, from_w = (
            made(x).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            for made, x in (
                (own.v_proj, v), (own.l_proj, w), (own.values_v_proj, v), (own.values_l_proj, w),
            )
        )  # fmt: skip
        to_v = F.scaled_dot_product_attention(query, key, from_w, attn_mask=mask[None])
        to_w = F.scaled_dot_product_attention(key, query, from_v)
        to_v, to_w = (rows.transpose(0, 1).flatten(1) for rows in (to_v, to_w))
        return v + self.gamma_v * own.out_v_proj(to_v), w + self.gamma_l * own.out_l_proj(to_w)


class TextLayer(nn.Module):
    """The words among themselves, instruction by instruction."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.self_attn = MultiHead(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.self_attn.part(x, 0, 3)
        x = self.norm1(x + self.self_attn.mix(q, k, v, mask))
        return self.norm2(x + self.linear2(F.relu(self.linear1(x))))


class QueryLayer(nn.Module):
    """A layer of the queries: among themselves, into the memory, alone."""

    def __init__(self, width: int, mlp: int, heads: int) -> None:
        super().__init__()
        self.self_attn, self.multihead_attn = MultiHead(width, heads), MultiHead(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, mlp), nn.Linear(mlp, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn.mix(*self.self_attn.part(self.norm1(x), 0, 3))
        (query,) = self.multihead_attn.part(self.norm2(x), 0, 1)
        x = x + self.multihead_attn.mix(query, keys, values)
        return x + self.linear2(F.relu(self.linear1(self.norm3(x))))


class Network(nn.Module):
    """The modules of a TurboVLA, by the authors' names."""

    def __init__(self, config: TurboVLAConfig) -> None:
        super().__init__()
        width, half = config.width, max(1, config.heads // 2)
        vision, inside = config.vision.width, config.projector
        self.text_encoder = _Named(
            bert=Bert(config.text), text_projection=nn.Linear(config.text.width, width)
        )
        self.vision_encoder = _Named(backbone=DinoV3(config.vision))
        self.vision_projection = _Named(
            input_norm=nn.LayerNorm(vision),
            mlp=_Named(**{"0": nn.Linear(vision, inside), "3": nn.Linear(inside, width)}),
            skip=nn.Linear(vision, width, bias=False),
            output_norm=nn.LayerNorm(width),
        )
        self.view_embedding = _table(1, len(config.cameras), width)
        self.vision_language_interaction = _Named(
            text_layers=nn.ModuleList(
                TextLayer(width, config.inner, half) for _ in range(config.exchange)
            ),
            fusion_layers=nn.ModuleList(
                Fusion(width, config.inner, half) for _ in range(config.exchange)
            ),
        )
        net = {
            "0": nn.LayerNorm(config.state_dim),
            "1": nn.Linear(config.state_dim, config.state_hidden),
            "4": nn.Linear(config.state_hidden, config.state_rows * width),
        }
        sizes = (width, config.hidden, config.hidden, config.action_dim)
        self.action_head = _Named(
            state_projection=_Named(
                net=_Named(**net),
                position=_table(1, config.state_rows, width),
                output_norm=nn.LayerNorm(width),
            ),
            decoder=_Named(
                action_queries=nn.Embedding(config.horizon, width),
                decoder=_Named(
                    layers=nn.ModuleList(
                        QueryLayer(width, config.mlp, config.heads) for _ in range(config.layers)
                    )
                ),
                action_projection=_Named(
                    layers=nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
                ),
            ),
        )


def network_without_memory(config: TurboVLAConfig) -> Network:
    """The modules on the meta device: names and shapes, no values."""
    with torch.device("meta"):
        return Network(config)


def turbovla_expected(config: TurboVLAConfig) -> Expected:
    """The tensors of a checkpoint."""
    state = network_without_memory(config).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    spare = {name: shapes.pop(name) for name in UNUSED}
    return Expected(shapes, spare)


# The policy.


@dataclass(frozen=True, slots=True, eq=False)
class PatchSpan(Span):
    """Patches [V P, C] of all cameras and words [n, C]; ``seen`` [n] and ``among`` [n, n] are added
    to scores: which words the patches see, and which words see each other."""

    patches: torch.Tensor
    words: torch.Tensor
    seen: torch.Tensor
    among: torch.Tensor


class TurboVLA(FlowPolicy[PatchSpan]):
    """One loaded TurboVLA."""

    config: TurboVLAConfig

    def __init__(
        self,
        config: TurboVLAConfig,
        weights: Weights,
        specials: Specials,
        like: torch.Tensor,
        capture: Capture | None = None,
    ) -> None:
        rows = len(config.cameras) * config.vision.patches + config.state_rows
        super().__init__(
            config, like, capture, longest=rows + config.max_text, state_width=config.state_dim
        )
        self.bucket = 1  # padding is no padding here: every length is its own
        network = network_without_memory(config)
        taken = {
            name: read_table(weights, name, like)
            for name in network.state_dict()
            if name not in UNUSED
        }
        network.load_state_dict(taken, assign=True, strict=False)
        self.network = network.requires_grad_(False)
        self.specials = specials
        cos, sin = patch_angles(config.vision.image_size // config.vision.patch, config.vision)
        self._cos, self._sin = cos.to(like), sin.to(like)
        self._spans: dict[int, PatchSpan] = {}
        self._laid: torch.Tensor | None = None  # the prompt whose words are in _words
        self._words = like.new_empty(0)

    @property
    def padded(self) -> bool:
        """All graphs can be captured before the first observation."""
        return self.captured.captures and self.config.text_length > 0

    def _blank_spans(self, image_rows: int) -> Iterable[PatchSpan]:
        return (self.span(self.config.text_length),)

    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        own = self.network.vision_projection
        patches = self.network.vision_encoder.backbone(pixels, self._cos, self._sin)
        middle = F.gelu(own.mlp.get_submodule("0")(own.input_norm(patches)))
        rows = own.output_norm(own.skip(patches) + own.mlp.get_submodule("3")(middle))
        return (rows + self.network.view_embedding[0, :, None]).flatten(0, 1)

    def embed_prefix(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[PatchSpan, int]:
        """BERT runs where the prompt is another one."""
        length = self.config.text_length or len(ids)
        if len(ids) > length:
            raise ValueError(f"the instruction has {len(ids)} tokens, the most is {length}")
        span = self.span(length)
        if self._laid is not ids:
            self._read(ids, span)
            self._laid = ids
        span.patches.copy_(features)
        span.words.copy_(self._words)
        return span, span.length

    def _read(self, ids: torch.Tensor, span: PatchSpan) -> None:
        """The words' rows, and the two masks of ``span``."""
        given, count = ids.tolist(), len(span.words)
        positions, among = instruction_masks(given, self.specials)
        hidden = torch.full_like(span.among[: len(ids), : len(ids)], MASKED)
        hidden[among.to(self.device)] = 0.0
        bert = self.network.text_encoder.bert
        rows = bert(ids.to(self.device), positions.to(self.device), hidden)
        rows = F.pad(rows, (0, 0, 0, count - len(ids)))
        self._words = self.network.text_encoder.text_projection(rows)
        span.among.fill_(MASKED).fill_diagonal_(0.0)
        span.among[: len(ids), : len(ids)] = hidden
        valid = sum(one != self.specials.pad for one in given)
        span.seen[:valid], span.seen[valid:] = 0.0, MASKED

    def fill_kv_cache(self, span: PatchSpan) -> torch.Tensor:
        """The memory that the queries read, and its K and V for each of their layers."""
        patches, words = span.patches, span.words
        own = self.network.vision_language_interaction
        for fusion, layer in zip(own.fusion_layers, own.text_layers, strict=True):
            patches, words = fusion(patches, words, span.seen)
            words = layer(words, span.among)
        memory = torch.cat((patches, words, self.state_tokens()))
        layers = self.network.action_head.decoder.decoder.layers
        for layer, keys, values in zip(layers, span.keys, span.values, strict=True):
            key, value = layer.multihead_attn.part(memory, 1, 2)
            keys.copy_(key)
            values.copy_(value)
        return memory

    def state_tokens(self) -> torch.Tensor:
        """Rows [state_rows, C] of the state."""
        own = self.network.action_head.state_projection
        first, middle, last = (own.net.get_submodule(name) for name in ("0", "1", "4"))
        made = last(F.gelu(middle(first(self.state.to(self.dtype)))))
        return own.output_norm(made.view(self.config.state_rows, -1) + own.position[0])

    def embed_suffix(self, x: torch.Tensor, step: int, with_state: bool = False) -> torch.Tensor:
        """The queries; there are no noisy actions."""
        return self.network.action_head.decoder.action_queries.weight

    def velocity(self, span: PatchSpan, rows: torch.Tensor, step: int) -> torch.Tensor:
        """The actions themselves, from -1 to 1."""
        own = self.network.action_head.decoder
        for layer, keys, values in zip(own.decoder.layers, span.keys, span.values, strict=True):
            rows = layer(rows, keys, values)
        first, second, third = own.action_projection.layers
        return torch.tanh(third(F.relu(second(F.relu(first(rows)))))).float()

    def example(self, words: int, generator: torch.Generator) -> Inputs:
        config, side = self.config, self.config.vision.image_size
        pixels = torch.rand(len(config.cameras), 3, side, side, generator=generator) * 4 - 2
        most = (config.text_length or config.max_text) - 2
        known = [i for i in range(config.text.vocab) if i not in self._special_ids()]
        ids = [self.specials.cls, *known[: min(words, most)], self.specials.sep]
        ids += [self.specials.pad] * (config.text_length - len(ids))
        return Inputs(pixels.to(self.device), torch.tensor(ids), torch.zeros(config.state_dim))

    def blank_span(self, image_rows: int, length: int) -> PatchSpan:
        span = self.span(length - image_rows - self.config.state_rows)
        span.seen.zero_()
        span.among.zero_()
        self._laid = None
        return span

    def span(self, words: int) -> PatchSpan:
        """The buffers for a prompt of so many words."""
        if words not in self._spans:
            config, like = self.config, self._cos
            patches = len(config.cameras) * config.vision.patches
            length = patches + words + config.state_rows
            entry = (config.layers, config.heads, length, config.width // config.heads)
            self._spans[words] = PatchSpan(
                (length,),
                length,
                like.new_zeros(entry).unbind(),
                like.new_zeros(entry).unbind(),
                like.new_zeros(patches, config.width),
                like.new_zeros(words, config.width),
                like.new_zeros(words),
                like.new_zeros(words, words),
            )
        return self._spans[words]

    def _special_ids(self) -> set[int]:
        own = self.specials
        return {own.cls, own.sep, own.pad, own.dot, own.question}


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The two halves of each head [..., P, d], turned into each other."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def patch_angles(side: int, tower: TowerConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [P, d] of the patches' middles, which go from -1 to 1 on both axes."""
    dim = tower.width // tower.heads
    waves = 1 / ROPE_BASE ** torch.arange(0, 1, 4 / dim, dtype=torch.float32)
    middles = 2.0 * (torch.arange(0.5, side, dtype=torch.float32) / side) - 1.0
    grid = torch.stack(torch.meshgrid(middles, middles, indexing="ij"), -1).flatten(0, 1)
    angles = (2 * math.pi * grid[:, :, None] * waves[None, None]).flatten(1, 2).tile(2)
    return angles.cos(), angles.sin()


def instruction_masks(ids: Sequence[int], specials: Specials) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions [n] and the attention mask [n, n], as GroundingDINO cuts a prompt.

    A mark that ends an instruction sees it and is seen by it; the first and the last row see
    themselves alone. So does every word of an instruction that the last row ends, which is what a
    prompt without padding has: the authors' code has it so.
    """
    count, before = len(ids), 0
    positions, among = torch.zeros(count, dtype=torch.int64), torch.eye(count, dtype=torch.bool)
    marks = {specials.cls, specials.sep, specials.dot, specials.question}
    for index in [i for i, one in enumerate(ids) if one in marks]:
        if index not in (0, count - 1):
            own = slice(before + 1, index + 1)
            among[own, own] = True
            positions[own] = torch.arange(index - before)
        before = index
    return positions, among
