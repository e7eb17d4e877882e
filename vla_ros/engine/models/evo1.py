"""Evo-1: InternVL3's hidden states as the context of a head of cross-attention blocks.

The prompt goes through InternViT and Qwen2 once, causal; the last hidden states and the state's row
are the context. It does not change between solver steps, so K and V of every block of the head
belong to the prefix (the references make them in every step, which is half of their time). Rows
that the reference masks out (images of absent cameras) are left out; the others keep the positions
that they have in the whole prompt. The times are known when a checkpoint is loaded: their
embeddings go through the matrix behind them into one bias a step, as the positions of the actions
do. Norms are folded into the matrices that read them.

Sources: lerobot 0.6.1 ``policies/evo1/flow_matching.py``, MINT-SJTU/Evo-1
``model/action_head/flow_matching.py``; transformers ``modeling_internvl.py``,
``modeling_qwen2.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vla_ros.core.numbers import round_up
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.config import TextConfig, TowerConfig
from vla_ros.engine.io.linear import Linear, read_linear
from vla_ros.engine.io.quantize import (
    DECODER,
    HEAD,
    VISION,
    Map,
    Take,
    as_it_is,
    mapped,
    matrix,
    read_table,
)
from vla_ros.engine.io.tensors import Plain, Table, shapes
from vla_ros.engine.io.weights import Expected, Weights
from vla_ros.engine.layers.devices import pinned
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.linear import Weight, linear
from vla_ros.engine.models.base import MASKED, FlowPolicy, Inputs, Span
from vla_ros.engine.models.siglip import (
    InternVit,
    pixel_shuffle,
    read_tower,
    tower_table,
)
from vla_ros.engine.models.transformer import (
    attend,
    forward,
    layer_table,
    norm,
    read_layer,
    rope,
)

KIND = "evo1"
INTERNVL3_1B = "OpenGVLab/InternVL3-1B-hf"
SHUFFLE = 2


@dataclass(frozen=True, slots=True)
class Gripper:
    """A gripper that is only open or closed: value ``index`` becomes ``above`` or ``below``."""

    index: int = 6
    threshold: float = 0.5
    below: float = 1.0
    above: float = -1.0


@dataclass(frozen=True, slots=True)
class Evo1Config:
    """An Evo-1 policy.

    ``text.layers`` are those that are used. ``horizon`` actions a chunk, ``steps`` of the solver.
    ``slots``: images in every prompt; cameras that are missing leave theirs without rows. The
    head has ``blocks`` of cross attention with ``heads``, as wide as the language model; ``hidden``
    and ``state_hidden`` are the widths inside its last and its state's MLP. Of ``embodiments`` in
    the checkpoint, ``embodiment`` is the one in use. ``max_text``: tokens of the longest prompt,
    images included.
    """

    vision: TowerConfig
    text: TextConfig
    horizon: int
    steps: int
    state_dim: int
    action_dim: int
    cameras: tuple[str, ...]
    state_width: int = 24
    action_width: int = 24
    slots: int = 3
    blocks: int = 8
    heads: int = 8
    hidden: int = 1024
    state_hidden: int = 1024
    max_text: int = 1024
    shuffle: int = SHUFFLE
    embodiments: int = 1
    embodiment: int = 0
    gripper: Gripper | None = None
    vlm: str = INTERNVL3_1B

    @property
    def kind(self) -> str:
        return KIND

    @property
    def continues(self) -> tuple[str, ...]:
        """The ways in which a chunk can continue an earlier one."""
        return ("rtc",)

    @property
    def width(self) -> int:
        """Width of the context and of the head."""
        return self.text.hidden_size

    @property
    def view_tokens(self) -> int:
        """Rows of one camera."""
        return (self.vision.image_size // self.vision.patch // self.shuffle) ** 2


BASE = "embedder.model."
TOWER, PROJECTOR = BASE + "vision_tower.", BASE + "multi_modal_projector."
TEXT, HEAD_BASE = BASE + "language_model.", "action_head."
TIMES = HEAD_BASE + "time_pos_enc.pe"
POSITIONS = HEAD_BASE + "action_encoder.pos_encoding.pe"
TIME_ROWS = 1000  # of the table of times
EPS = 1e-5  # torch's LayerNorm

#: Golden integers: the rows of the table of times that lerobot 0.6.1 and MINT-SJTU/Evo-1 take for
#: the 32 steps of the published checkpoints.
STEPS = 32
TIME_INDEX = (
    0, 31, 62, 93, 124, 156, 187, 218, 249, 280, 312, 343, 374, 405, 437, 468, 499, 530, 561, 593,
    624, 655, 686, 718, 749, 780, 811, 842, 874, 905, 936, 967,
)  # fmt: skip
TABLE_TOLERANCE = 5e-3  # a table that was kept in bfloat16 differs by 2 ** -9


@dataclass(frozen=True, slots=True, eq=False)
class ContextSpan(Span):
    """A prompt of P rows and its context, which has one more, the state's, in front.

    ``x`` [P, C], ``cos`` and ``sin`` [P, d] of the rows' positions, ``mask`` [P, P] and
    ``context_mask`` [1, 1 + P] are added to scores, ``context`` [1 + P, C]; ``keys`` and
    ``values`` [heads, 1 + P, e] per block of the head.
    """

    x: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor
    context_mask: torch.Tensor
    context: torch.Tensor


class Evo1(FlowPolicy[ContextSpan]):
    """One loaded Evo-1. ``image_token`` stands in prompts where an image's rows go."""

    config: Evo1Config

    def __init__(
        self,
        config: Evo1Config,
        weights: Weights,
        image_token: int,
        like: torch.Tensor,
        capture: Capture | None = None,
    ) -> None:
        check_time_index()
        super().__init__(
            config,
            like,
            capture,
            longest=config.max_text,
            state_width=config.state_width,
            rising=True,
        )
        text, self.image_token = config.text, image_token
        table = layer_table(text)
        with torch.device("meta"):
            self.tower = InternVit(config.vision)
        read_tower(weights, TOWER, self.tower, like)
        self._projector_norm = read_linear(weights, f"{PROJECTOR}layer_norm").to(like)
        self._projector = [mapped(weights, f"{PROJECTOR}linear_{n}", VISION, like) for n in (1, 2)]
        self.embed_tokens = read_table(weights, TEXT + "embed_tokens.weight", like)
        self._layers = [
            read_layer(weights, f"{TEXT}layers.{i}.", table, like, DECODER)
            for i in range(text.layers)
        ]
        self._norm = weights.take(TEXT + "norm.weight").to(like.device)
        self.head = ActionHead(weights, config, like)
        self._rope = rope(text, config.max_text, like.device)
        longest, head_dim = self.longest, config.width // config.heads
        self._x = like.new_zeros(longest, config.width)
        self._cos = torch.zeros(longest, text.head_dim, device=like.device)
        self._sin = torch.zeros_like(self._cos)
        self._causal = like.new_full((longest, longest), MASKED).triu_(1)
        self._context_mask = like.new_zeros(1, 1 + longest)
        self._context = like.new_zeros(1 + longest, config.width)
        entry = (config.blocks, config.heads, 1 + longest, head_dim)
        self._keys, self._values = like.new_zeros(entry), like.new_zeros(entry)
        self._used = torch.arange(self.width, device=like.device) < config.action_dim
        self._spans: dict[int, ContextSpan] = {}
        self._laid: tuple[torch.Tensor, int] | None = None  # the prompt that is laid out
        self._ids = self._images = torch.empty(0, dtype=torch.int64)

    # The prompt

    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        x = pixel_shuffle(self.tower(pixels), self.config.shuffle)
        scale, shift = self._projector_norm.weight, self._projector_norm.bias
        x = F.layer_norm(x, (x.shape[-1],), scale, shift, EPS)
        first, second = self._projector
        return second(F.gelu(first(x))).flatten(0, 1)

    def span(self, length: int) -> ContextSpan:
        """The views for a prompt of this length."""
        if length not in self._spans:
            if not 0 < length <= self.longest:
                raise ValueError(f"a prompt has at most {self.longest} rows, wanted {length}")
            end = 1 + length
            self._spans[length] = ContextSpan(
                (length,),
                end,
                self._keys[:, :, :end].unbind(),
                self._values[:, :, :end].unbind(),
                self._x[:length],
                self._cos[:length],
                self._sin[:length],
                self._causal[:length, :length],
                self._context_mask[:, :end],
                self._context[:end],
            )
        return self._spans[length]

    def blank_span(self, image_rows: int, length: int) -> ContextSpan:
        span = self.span(length)
        span.context_mask.zero_()
        self._laid = None
        return span

    def longest_behind(self, image_rows: int) -> int:
        """Rows of absent cameras are left out."""
        return self.config.max_text - (self.config.slots * self.config.view_tokens - image_rows)

    def embed_prefix(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[ContextSpan, int]:
        """Lay out the prefix; its positions and mask anew only for another prompt."""
        if self._laid is None or self._laid[0] is not ids or self._laid[1] != len(features):
            positions = kept_rows(ids, self.image_token, len(features))
            kept, count = ids.cpu()[positions], len(positions)
            self._ids = kept.to(self.device)
            self._images = (kept == self.image_token).nonzero()[:, 0].to(self.device)
            span, held = self.span(round_up(count, self.bucket)), positions.to(self.device)
            span.cos[:count].copy_(self._rope.cos[held])
            span.sin[:count].copy_(self._rope.sin[held])
            span.context_mask.zero_()
            span.context_mask[:, 1 + count :] = MASKED
            span.x[count:].zero_()
            self._laid = (ids, len(features))
        count = len(self._ids)
        span = self.span(round_up(count, self.bucket))
        torch.index_select(self.embed_tokens, 0, self._ids, out=span.x[:count])
        span.x.index_copy_(0, self._images, features.to(span.x))
        return span, 1 + count

    def fill_kv_cache(self, span: ContextSpan) -> torch.Tensor:
        """The context, and its K and V for all blocks of the head."""
        x, text = span.x, self.config.text
        for layer in self._layers:
            x = forward(x, layer, text, span.cos, span.sin, span.mask)
        span.context[0].copy_(self.head.state_row(self.state))
        span.context[1:].copy_(norm(x.float(), text.rms_eps) * self._norm)
        self.redo_chunk(span)
        return span.context

    def redo_chunk(self, span: ContextSpan, rows: slice = slice(None)) -> None:
        """K and V of rows of the context, which the references make in every step."""
        for block, keys, values in zip(self.head.blocks, span.keys, span.values, strict=True):
            k, v = self.head.keys_values(block, span.context[rows])
            keys[:, rows].copy_(k)
            values[:, rows].copy_(v)

    def replace_state(self, span: ContextSpan, state: torch.Tensor) -> None:
        """The state's row is the only one of the context that is its own."""
        self.state.copy_(pinned(state, self.device), non_blocking=True)
        span.context[0].copy_(self.head.state_row(self.state))
        self.redo_chunk(span, slice(0, 1))

    def rotary_rows(self, rows: int) -> torch.Tensor:
        """cos and sin of the newest prompt's rows, of ``rows`` of context (measurements)."""
        span = self.span(rows - 1)
        return torch.cat((span.cos, span.sin), 1)

    # The actions

    def noise(self, generator: torch.Generator) -> torch.Tensor:
        """Uniform in [-1, 1); 0 where an action has no value."""
        noise = torch.rand(self.horizon, self.width, generator=generator) * 2 - 1
        noise[:, self.config.action_dim :] = 0.0
        return noise

    def masked_noise(self, noise: torch.Tensor) -> torch.Tensor:
        return noise * self._used

    def embed_suffix(self, x: torch.Tensor, step: int, with_state: bool = False) -> torch.Tensor:
        """The actions alone: their time enters in every block."""
        return self.head.action_encoder(x)

    def velocity(self, span: ContextSpan, rows: torch.Tensor, step: int) -> torch.Tensor:
        mask = span.context_mask if self.padded else None
        for block, k, v in zip(self.head.blocks, span.keys, span.values, strict=True):
            q = block.query(_norm(rows)).view(len(rows), self.config.heads, -1).transpose(0, 1)
            rows = rows + block.out(attend(q, k, v, mask))
            middle = F.gelu(linear(_norm(rows), block.first, block.steps[step]))
            rows = rows + block.second(middle)
        return self.head.mlp_head(rows)

    def example(self, words: int, generator: torch.Generator) -> Inputs:
        config, side = self.config, self.config.vision.image_size
        pixels = torch.rand(len(config.cameras), 3, side, side, generator=generator) * 4 - 2
        one = [4, *[self.image_token] * config.view_tokens, 5]
        ids = [*one * config.slots, *range(6, 6 + words)][: config.max_text]
        state = torch.zeros(config.state_width)
        return Inputs(pixels.to(self.device), torch.tensor(ids), state)


@dataclass(frozen=True, slots=True)
class CrossBlock:
    """A block of the head: ``query`` and ``first`` hold the norms before them, ``steps`` [N, 4 E]
    is the bias of ``first`` at each step."""

    query: Map
    context: Map  # K and V [2 E, E]
    out: Map
    first: Weight
    steps: torch.Tensor
    second: Map


class ActionHead:
    """The weights of everything behind the context, and the maps around the blocks."""

    def __init__(self, weights: Weights, config: Evo1Config, like: torch.Tensor) -> None:
        self._config, self._dtype = config, like.dtype
        table = weights.take(TIMES)
        check_table(TIMES, table)
        times = table[0, list(time_index(config.steps))].double()
        self.blocks = [
            _read_block(weights, f"{HEAD_BASE}transformer_blocks.{i}.", config, times, like)
            for i in range(config.blocks)
        ]
        first, second, third = (
            _read(weights, f"{HEAD_BASE}action_encoder.W{n}", config) for n in (1, 2, 3)
        )
        first.weight[:, config.action_dim :] = 0.0  # values that nobody executes: masked there
        positions = weights.take(POSITIONS)[0].double()
        bias = positions @ second.weight.double().T + second.bias.double()
        self._w1, self._w3 = first.on(like.device), third.to(like)
        self._w2, self._positions = second.weight.to(like), bias.to(like)
        self._pool = mapped(weights, f"{HEAD_BASE}seq_pool", HEAD, like, self._pooling)
        (self._inner, self._outer), (self._state_in, self._state_out) = (
            [_read(weights, f"{HEAD_BASE}{name}.fc{n}", config).on(like.device) for n in (1, 2)]
            for name in ("mlp_head", "state_encoder")
        )
        unused = torch.arange(config.action_width, device=like.device) >= config.action_dim
        rows = unused.repeat(config.horizon)
        self._outer.weight[rows] = 0.0
        self._outer.bias[rows] = 0.0

    def state_row(self, state: torch.Tensor) -> torch.Tensor:
        """State [state_width] in model space -> its row of the context [E], float32."""
        return self._state_out(F.relu(self._state_in(state)))

    def keys_values(
        self, block: CrossBlock, context: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the context [R, E] -> K and V of a block, [heads, R, e] each."""
        both = block.context(context)
        k, v = both.view(len(context), 2, self._config.heads, -1).permute(1, 2, 0, 3)
        return k, v

    def action_encoder(self, x: torch.Tensor) -> torch.Tensor:
        """x [H, D] -> rows [H, E]."""
        rows = F.relu(self._w1(x)).to(self._dtype)
        return self._w3(F.relu(F.linear(rows, self._w2) + self._positions))

    def mlp_head(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of all actions [H, E], pooled -> velocity [H, D] float32."""
        pooled = self._pool(_norm(rows).flatten()).float()
        return self._outer(F.relu(self._inner(pooled))).view(self._config.horizon, -1)

    def _pooling(self, take: Take) -> Linear:
        """The pooling, with the last norm in it."""
        config = self._config
        scale, shift = (take(f"{HEAD_BASE}norm_out.{k}") for k in ("weight", "bias"))
        pool = as_it_is(f"{HEAD_BASE}seq_pool_proj")(take)
        by_row = pool.weight.view(config.width, config.horizon, config.width)
        bias = (by_row @ shift).double().sum(1) + pool.bias.double()
        return Linear(by_row.mul_(scale).flatten(1), bias)


def _norm(x: torch.Tensor) -> torch.Tensor:
    """LayerNorm without weights: they are in what follows."""
    return F.layer_norm(x, (x.shape[-1],), None, None, EPS)


def _read(weights: Weights, name: str, config: Evo1Config) -> Linear:
    """A linear map; of several embodiments' the one in use."""
    if config.embodiments == 1:
        return read_linear(weights, f"{name}.linear")
    matrix, bias = weights.take(f"{name}.weight"), weights.take(f"{name}.bias")
    return Linear(matrix[config.embodiment].T.contiguous(), bias[config.embodiment].clone())


def _read_block(
    weights: Weights, base: str, config: Evo1Config, times: torch.Tensor, like: torch.Tensor
) -> CrossBlock:
    """``first`` in low bits is stored beside its tensor, of which the steps' biases are made."""
    width, size = config.width, (config.width // config.heads) ** -0.5  # of scores, into the query
    names = (f"{base}attn.in_proj_weight", f"{base}attn.in_proj_bias")
    taken: list[torch.Tensor] = []

    def both(take: Take) -> list[torch.Tensor]:
        if not taken:
            taken.extend(take(name).double() for name in names)
        return taken

    def query(take: Take) -> Linear:
        rows, bias = both(take)
        scale, shift = (take(f"{base}norm1.{k}").double() for k in ("weight", "bias"))
        weight = rows[:width] * scale * size
        return Linear(weight, (rows[:width] @ shift + bias[:width]) * size)

    def context(take: Take) -> Linear:
        rows, bias = both(take)
        return Linear(rows[width:], bias[width:])

    scale, shift = (weights.take(f"{base}norm2.{k}").double() for k in ("weight", "bias"))
    first = read_linear(weights, f"{base}ff.0")
    inner = first.weight.double()
    steps = (times + shift) @ inner.T + first.bias.double()
    query_map = mapped(weights, f"{base}attn.query", HEAD, like, query)
    context_map = mapped(weights, f"{base}attn.context", HEAD, like, context)
    out, second = (
        mapped(weights, f"{base}{name}", HEAD, like) for name in ("attn.out_proj", "ff.2")
    )
    behind = matrix(weights, f"{base}ff.first", HEAD, like, lambda _: inner * scale)
    return CrossBlock(query_map, context_map, out, behind, steps.to(like), second)


def kept_rows(ids: torch.Tensor, image_token: int, rows: int) -> torch.Tensor:
    """Positions int64 [P] of the prompt's rows that there are: text, and the first ``rows`` of
    images. ValueError where there are fewer."""
    ids = ids.cpu()
    image = ids == image_token
    if int(image.sum()) < rows:
        raise ValueError(f"the prompt has {int(image.sum())} positions for {rows} rows of images")
    return (~image | (image.cumsum(0) <= rows)).nonzero()[:, 0]


# Tables that a checkpoint stores


def time_index(steps: int) -> tuple[int, ...]:
    """Rows of the table of times, one a step: ``int(t * 999)`` of t = i / N in double precision."""
    last = TIME_ROWS - 1
    return tuple(min(int(i / steps * last), last) for i in range(steps))


def check_time_index() -> None:
    """CheckpointError where this machine takes other rows than the references did."""
    found = time_index(STEPS)
    if found != TIME_INDEX:
        wrong = [i for i in range(STEPS) if found[i] != TIME_INDEX[i]]
        raise CheckpointError(
            f"{len(wrong)} of {STEPS} times take other rows of the table than those stored"
            f" ([{wrong[0]}] {TIME_INDEX[wrong[0]]} is {found[wrong[0]]})"
        )


def position_table(rows: int, width: int) -> torch.Tensor:
    """Sines and cosines of 0 .. rows - 1, interleaved [rows, width], float32 as the references
    compute them."""
    position = torch.arange(0, rows).unsqueeze(1)
    scale = -(torch.log(torch.tensor(10000.0, dtype=torch.float64)) / width)
    steps = torch.exp(torch.arange(0, width, 2) * float(scale))
    table = torch.zeros(rows, width)
    table[:, 0::2] = torch.sin(position * steps)
    table[:, 1::2] = torch.cos(position * steps)
    return table


def check_table(name: str, stored: torch.Tensor) -> None:
    """CheckpointError where a checkpoint's table [1, rows, width] is not that of its rows."""
    rows, width = stored.shape[1:]
    found = float((stored[0].cpu() - position_table(rows, width)).abs().max())
    if not found <= TABLE_TOLERANCE:
        raise CheckpointError(
            f"{name} differs by {found:.3g} from the table of its positions: the checkpoint"
            " is damaged"
        )


def evo1_expected(config: Evo1Config) -> Expected:
    """The tensors of a checkpoint."""
    text, width, wide = config.text, config.width, config.vision.width * config.shuffle**2
    block: Table = {
        "attn.out_proj": (width, width),
        "ff.0": (width, 4 * width),
        "ff.2": (4 * width, width),
        "norm1": width,
        "norm2": width,
        "attn.in_proj_weight": Plain((3 * width, width)),
        "attn.in_proj_bias": Plain((3 * width,)),
    }
    of_embodiments = {
        "action_encoder.W1": (config.action_width, width),
        "action_encoder.W2": (width, width),
        "action_encoder.W3": (width, width),
        "mlp_head.fc1": (width, config.hidden),
        "mlp_head.fc2": (config.hidden, config.horizon * config.action_width),
        "state_encoder.fc1": (config.state_width, config.state_hidden),
        "state_encoder.fc2": (config.state_hidden, width),
    }
    own: Table = {f"{name}.linear": size for name, size in of_embodiments.items()}
    if (count := config.embodiments) > 1:
        own = {
            f"{name}.{kind}": Plain((count, *size))
            for name, sizes in of_embodiments.items()
            for kind, size in (("weight", sizes), ("bias", sizes[1:]))
        }
    table: Table = {
        TOWER: tower_table(InternVit, config.vision),
        PROJECTOR: {"layer_norm": wide, "linear_1": (wide, width), "linear_2": (width, width)},
        f"{TEXT}embed_tokens.weight": Plain((text.vocab_size, width)),
        f"{TEXT}norm.weight": Plain((width,)),
        f"{TEXT}layers": [layer_table(text)] * text.layers,
        TIMES: Plain((1, TIME_ROWS, width)),
        POSITIONS: Plain((1, config.horizon, width)),
        f"{HEAD_BASE}seq_pool_proj": (config.horizon * width, width),
        f"{HEAD_BASE}norm_out": width,
        f"{HEAD_BASE}transformer_blocks": [block] * config.blocks,
        HEAD_BASE: own,
    }
    return Expected(shapes(table), {f"{TOWER}embeddings.mask_token": (1, 1, config.vision.width)})
