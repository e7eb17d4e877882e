"""GR00T's action head: a diffusion transformer over state and actions that crosses to a context.

Source: NVIDIA/Isaac-GR00T ``gr00t_n1d7.py``, ``gr00t_n1d6.py``, ``flow_matching_action_head.py``
(N1.5), ``modules/dit.py`` (``DiT``, ``AlternateVLDiT``); LeRobot 0.6.1 ``groot_n1_7.py`` has N1.7's
under the same names. What a context gives is computed once a chunk, straight into buffers that
never move: the keys and values of every crossing block, which the authors' code makes anew in every
step.

The context's rows come as [images | text]. Nothing in the head knows their order, since it has no
positions for them, so a block that reads the text alone, or the images alone, reads one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import GROOT_HEAD
from vla_ros.engine.io.linear import Linear, read_linear
from vla_ros.engine.io.quantize import HEAD
from vla_ros.engine.io.tensors import Matrix, Plain, Table, read_map
from vla_ros.engine.io.weights import Weights
from vla_ros.engine.layers.linear import linear_gelu
from vla_ros.engine.models.base import MASKED, Span
from vla_ros.engine.models.transformer import attend

BASE = "action_head."
CONTEXT, BLOCKS = "vl_self_attention.transformer_blocks", "model.transformer_blocks"
_FREQUENCIES = 256  # diffusers' Timesteps in front of the time MLP
_MLP = 4  # an MLP's middle is so many times as wide
_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """A head that turns noise [action_horizon, max_action_dim] into actions, in NVIDIA's words.

    ``num_layers``, ``num_attention_heads`` and ``attention_head_dim`` are the transformer's: even
    blocks attend to the context of ``backbone_embedding_dim``, odd ones to state and actions. With
    ``attend_text_every_n_blocks`` n every n-th of the even ones reads the text alone and the others
    the images alone (0: all read all, as ``DiT`` does; N1.5). ``hidden_size`` is the width between
    it and the encoders, of which there is one an embodiment. ``num_target_vision_tokens`` learned
    rows stand between state and actions (N1.5). The context goes through a norm (``use_vlln``) and
    ``vl_layers`` blocks of self attention with ``vl_heads`` heads. ``max_seq_len`` is the length of
    the table of positions that is added to actions (0: none), ``num_timestep_buckets`` what a time
    from 0 to 1 is multiplied by before it is cut to an integer.
    """

    action_horizon: int = 40
    max_action_dim: int = 132
    max_state_dim: int = 132
    num_layers: int = 32
    num_attention_heads: int = 32
    attention_head_dim: int = 48
    backbone_embedding_dim: int = 2048
    hidden_size: int = 1024
    attend_text_every_n_blocks: int = 2
    num_target_vision_tokens: int = 0
    use_vlln: bool = True
    vl_layers: int = 4
    vl_heads: int = 32
    max_seq_len: int = 1024
    num_inference_timesteps: int = 4
    num_timestep_buckets: int = 1000
    max_num_embodiments: int = 32

    @property
    def width(self) -> int:
        """The width of the transformer's rows, ``input_embedding_dim``."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def rows(self) -> int:
        """Rows of the transformer: state, future tokens, actions."""
        return 1 + self.num_target_vision_tokens + self.action_horizon

    @property
    def crossing(self) -> tuple[int, ...]:
        """The blocks that attend to the context."""
        return tuple(range(0, self.num_layers, 2))

    def reads_text(self, layer: int) -> bool | None:
        """The part that a crossing block reads: True the text alone, False the images, None all."""
        every = self.attend_text_every_n_blocks
        return None if not every else layer % (2 * every) == 0

    @property
    def times(self) -> tuple[int, ...]:
        """The integer time of every step, as the authors cut it."""
        steps = self.num_inference_timesteps
        return tuple(int(step / float(steps) * self.num_timestep_buckets) for step in range(steps))


def parse_head(fields: Fields, future: int = 0) -> HeadConfig:
    """The head of N1.6 and N1.7, in the words of their config.json. CheckpointError."""
    blocks, context = fields.part("diffusion_model_cfg"), fields.part("vl_self_attention_cfg")
    head = HeadConfig(
        attend_text_every_n_blocks=fields.whole("attend_text_every_n_blocks", 2)
        * fields.flag("use_alternate_vl_dit", True),
        num_target_vision_tokens=future,
        max_seq_len=fields.whole("max_seq_len", 1024) * fields.flag("add_pos_embed", True),
        **GROOT_HEAD.parse(fields, HeadConfig),
    )
    wide = head.backbone_embedding_dim
    if fields.whole("input_embedding_dim", 1536) != head.width:
        raise fields.wrong("input_embedding_dim", f"{head.width}, the transformer's width")
    if blocks.whole("output_dim", head.hidden_size) != head.hidden_size:
        raise blocks.wrong("output_dim", f"{head.hidden_size}, as hidden_size")
    each = context.whole("attention_head_dim", wide // head.vl_heads)
    if head.vl_layers and each * head.vl_heads != wide:
        raise context.wrong("attention_head_dim", f"{wide} / {head.vl_heads} heads")
    if head.max_seq_len and head.max_seq_len < head.action_horizon:
        raise fields.wrong("max_seq_len", f"at least the {head.action_horizon} of action_horizon")
    if head.width % 2:
        raise blocks.wrong("attention_head_dim", "an even width in all")
    return head


def head_json(head: HeadConfig) -> dict[str, Any]:
    """The head in the words of config.json, as :func:`parse_head` reads it."""
    each = head.backbone_embedding_dim // head.vl_heads
    given = {
        "add_pos_embed": head.max_seq_len > 0,
        "max_seq_len": head.max_seq_len or 1024,
        "use_alternate_vl_dit": head.attend_text_every_n_blocks > 0,
        "attend_text_every_n_blocks": head.attend_text_every_n_blocks or 2,
        "vl_self_attention_cfg": {"attention_head_dim": each},
    }
    return GROOT_HEAD.write(head, given)


def head_table(config: HeadConfig) -> Table:
    """The head, of all embodiments."""
    width, hidden, wide = config.width, config.hidden_size, config.backbone_embedding_dim
    stacks = {
        "state_encoder.layer1": (config.max_state_dim, hidden),
        "state_encoder.layer2": (hidden, width),
        "action_encoder.W1": (config.max_action_dim, width),
        "action_encoder.W2": (2 * width, width),
        "action_encoder.W3": (width, width),
        "action_decoder.layer1": (hidden, hidden),
        "action_decoder.layer2": (hidden, config.max_action_dim),
    }
    tables = {
        "position_embedding.weight": (config.max_seq_len, width),
        "future_tokens.weight": (config.num_target_vision_tokens, width),
    }
    embedder = "model.timestep_encoder.timestep_embedder."
    return {
        **{
            f"{name}.{kind}": Plain((config.max_num_embodiments, *size))
            for name, sizes in stacks.items()
            for kind, size in (("W", sizes), ("b", sizes[1:]))
        },
        **{name: Plain(size) for name, size in tables.items() if size[0]},
        **({"vlln": wide} if config.use_vlln else {}),
        **block_tables(config),
        f"{embedder}linear_1": (_FREQUENCIES, width),
        f"{embedder}linear_2": (width, width),
        "model.proj_out_1": (width, 2 * width),
        "model.proj_out_2": (width, hidden),
    }


def block_tables(config: HeadConfig) -> dict[str, list[Table]]:
    """The blocks of the context, then the transformer's."""
    wide, heads = config.backbone_embedding_dim, config.num_attention_heads
    sources = [None if i % 2 else wide for i in range(config.num_layers)]
    return {
        CONTEXT: [block_table(wide, config.vl_heads, norms=True)] * config.vl_layers,
        BLOCKS: [block_table(config.width, heads, source) for source in sources],
    }


def block_table(width: int, heads: int, source: int | None = None, *, norms: bool = False) -> Table:
    """A block that attends to its own rows, or to a context ``source`` wide; ``norms``: its norms
    have weights, otherwise the first one's are made of the time."""
    q = {"attn1.to_q": (width, width)}
    kv = {f"attn1.to_{n}": (source or width, width) for n in "kv"}
    scale, first, second = (width // heads) ** -0.5, *(("norm1", "norm3") if norms else ("", ""))
    attention: Table = {"attn1.qkv": Matrix(q | kv, scale, first)}
    if source is not None:
        attention = {"attn1.query": Matrix(q, scale), "attn1.keys_values": Matrix(kv)}
    return {
        **attention,
        "attn1.to_out.0": (width, width),
        "ff.up": Matrix({"ff.net.0.proj": (width, _MLP * width)}, norm=second),
        "ff.net.2": (_MLP * width, width),
        **({first: width, second: width} if norms else {"norm1.linear": (width, 2 * width)}),
    }


class BasicTransformerBlock:
    """Attention and MLP of diffusers, batch of one: what ``table`` holds at ``base``.

    The scale of the scores and the weights of norms that have any are folded into the projections
    behind them. A block that crosses attends to a context, whose keys and values [2 C, S]
    :attr:`crossed` makes; the others to their own rows.
    """

    def __init__(
        self, weights: Weights, base: str, table: Table, heads: int, like: torch.Tensor
    ) -> None:
        read = partial(read_map, weights, base, table, part=HEAD, like=like)
        crossing = "attn1.query" in table
        self._heads = heads
        self._projected = read("attn1.query" if crossing else "attn1.qkv")
        self._out, self._down, self._up = read("attn1.to_out.0"), read("ff.net.2"), read("ff.up")
        self.crossed = read("attn1.keys_values") if crossing else None

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """x + MLP(norm(x))."""
        return x + self._down(linear_gelu(self._up, plain_norm(x), "tanh"))

    def attend_itself(
        self, x: torch.Tensor, normed: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x plus what the rows [n, C] see of each other."""
        q, k, v = self._projected(normed).view(len(x), 3, self._heads, -1).permute(1, 2, 0, 3)
        return x + self._out(attend(q, k, v, mask))

    def attend_to(
        self,
        x: torch.Tensor,
        normed: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """x plus what the rows see of a context: ``keys`` and ``values`` [heads, S, d]."""
        q = self._projected(normed).view(len(x), self._heads, -1).transpose(0, 1)
        return x + self._out(attend(q, keys, values, mask))


def plain_norm(x: torch.Tensor, eps: float = _EPS) -> torch.Tensor:
    """A layer norm without weights."""
    return F.layer_norm(x, (x.shape[-1],), None, None, eps)


# One embodiment's encoders, and everything that is known about time


class RowWeights(Weights, Protocol):
    """Weights of which some are stacks with a row for each embodiment."""

    def take_row(self, name: str, row: int) -> torch.Tensor:
        """``tensor[row]`` in float32, all finite; the other rows are not read."""
        ...


class Encoders:
    """State and noisy actions -> rows of the transformer, and its rows -> velocities.

    A checkpoint has them for 32 embodiments; one is read. They are float32 whatever the transformer
    is. The times of a solver are few and known, so the time's share in an action's embedding is a
    table.
    """

    def __init__(
        self, config: HeadConfig, weights: RowWeights, base: str, row: int, device: torch.device
    ) -> None:
        def read(name: str) -> Linear:
            matrix = weights.take_row(f"{base}{name}.W", row).T.contiguous()
            return Linear(matrix, weights.take_row(f"{base}{name}.b", row)).on(device)

        self._state = [read(f"state_encoder.layer{n}") for n in (1, 2)]
        first, joined, last = (read(f"action_encoder.W{n}") for n in (1, 2, 3))
        of_actions, of_time = joined.weight.double().chunk(2, 1)
        self._matrix = (of_actions @ first.weight.double()).float()
        constant = of_actions @ first.bias.double() + joined.bias.double()
        times = action_times(config).to(device)
        self._biases = (times.double() @ of_time.T + constant).float()
        positions = torch.zeros(config.action_horizon, config.width, device=device)
        if config.max_seq_len:
            table = weights.take(f"{base}position_embedding.weight")
            positions = table[: config.action_horizon].to(device)
        self._last, self._offset = last.weight, last.bias + positions
        # Nothing stands between the transformer's last map and the decoder's first.
        out = read_linear(weights, f"{base}model.proj_out_2").on(device)
        hidden, self._decoded = (read(f"action_decoder.layer{n}") for n in (1, 2))
        matrix = hidden.weight.double()
        self._hidden = Linear(
            (matrix @ out.weight.double()).float(),
            (matrix @ out.bias.double() + hidden.bias.double()).float(),
        )

    def state_encoder(self, values: torch.Tensor) -> torch.Tensor:
        """[max_state_dim] -> [1, C]."""
        first, second = self._state
        return second(F.relu(first(values[None])))

    def action_encoder(self, x: torch.Tensor, step: int) -> torch.Tensor:
        """Noisy actions [H, D] -> [H, C] with time and positions."""
        h = F.silu(F.linear(x, self._matrix, self._biases[step]))
        return torch.addmm(self._offset, h, self._last.T)

    def action_decoder(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the transformer behind its last norm [H, C] -> [H, D]."""
        return self._decoded(F.relu(self._hidden(rows)))


def read_ada_norms(
    config: HeadConfig, weights: Weights, base: str, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """1 + scale and shift at every step: of each block's norm [N, L, 2, C], and of the last one
    [N, 2, C], which is float32, like what it is applied to."""

    def read(name: str) -> Linear:
        return read_linear(weights, base + name).on(like.device)

    embedder = "timestep_encoder.timestep_embedder.linear_"
    times = block_times(config).to(like.device)
    with torch.no_grad():
        known = read(f"{embedder}2")(F.silu(read(f"{embedder}1")(times)))
        condition = F.silu(known)
        tables = [
            read(f"transformer_blocks.{i}.norm1.linear")(condition).view(len(times), 2, -1)
            for i in range(config.num_layers)
        ]
        final = read("proj_out_1")(condition).view(len(times), 2, -1).flip(1)  # shift first
    layers = torch.stack(tables, 1)
    layers[:, :, 0] += 1.0
    final[:, 0] += 1.0
    return layers.to(like), final


def action_times(config: HeadConfig) -> torch.Tensor:
    """Sine, then cosine of the times in front of the action encoder: [N, C], float32.

    Source: ``SinusoidalPositionalEncoding``.
    """
    half = config.width // 2
    exponent = -torch.arange(half, dtype=torch.float32) * (torch.log(torch.tensor(10000.0)) / half)
    angles = torch.tensor(config.times, dtype=torch.float32)[:, None] * exponent.exp()
    return torch.cat((angles.sin(), angles.cos()), -1)


def block_times(config: HeadConfig) -> torch.Tensor:
    """Cosine, then sine of the times in front of the blocks' time MLP: [N, 256], float32.

    Source: diffusers ``get_timestep_embedding`` with flip_sin_to_cos and downscale_freq_shift 1.
    """
    half = _FREQUENCIES // 2
    exponent = -torch.log(torch.tensor(10000.0, dtype=torch.float64)).item()
    steps = exponent * torch.arange(half, dtype=torch.float32) / (half - 1)
    angles = torch.tensor(config.times, dtype=torch.float32)[:, None] * steps.exp()
    return torch.cat((angles.cos(), angles.sin()), -1)


# The head


@dataclass(frozen=True, slots=True, eq=False)
class Context(Span):
    """Views for ``images`` rows of images and ``length`` rows in all, with padding at the end.

    ``keys`` and ``values`` [heads, S, d] per crossing block, S what it reads; ``masks`` [1, S] are
    added to its scores, ``mask`` [1, length] to those of all rows.
    """

    images: int
    masks: tuple[torch.Tensor, ...]
    mask: torch.Tensor


class ActionHead:
    """One embodiment's head in the dtype and on the device of ``like``, one thread.

    ``longest`` is the most rows of a context; ``padded``: contexts may have padding behind
    them, which :meth:`hide` declares.
    """

    def __init__(
        self,
        config: HeadConfig,
        weights: RowWeights,
        embodiment: int,
        like: torch.Tensor,
        longest: int,
        padded: bool = False,
        base: str = BASE,
    ) -> None:
        if not 0 <= embodiment < config.max_num_embodiments:
            raise ValueError(f"embodiment {embodiment} of {config.max_num_embodiments}")
        self.config, self.dtype, self.padded = config, like.dtype, padded
        heads, dim = config.num_attention_heads, config.attention_head_dim
        tables = block_tables(config)
        self._blocks = [
            BasicTransformerBlock(weights, f"{base}{BLOCKS}.{i}.", table, heads, like)
            for i, table in enumerate(tables[BLOCKS])
        ]
        self._vlln = read_linear(weights, f"{base}vlln").to(like) if config.use_vlln else None
        self._vl_self_attention = [
            BasicTransformerBlock(weights, f"{base}{CONTEXT}.{i}.", table, config.vl_heads, like)
            for i, table in enumerate(tables[CONTEXT])
        ]
        self._norms, self._last_norm = read_ada_norms(config, weights, f"{base}model.", like)
        self._encoders = Encoders(config, weights, base, embodiment, like.device)
        self._future_tokens = like.new_zeros(config.num_target_vision_tokens, config.width)
        if config.num_target_vision_tokens:
            self._future_tokens.copy_(weights.take(f"{base}future_tokens.weight"))
        entry = (len(config.crossing), heads, longest, dim)
        self._keys, self._values = like.new_zeros(entry), like.new_zeros(entry)
        self._mask = like.new_zeros(1, longest)
        self._state = like.new_zeros(1, config.width)
        self._contexts: dict[tuple[int, int], Context] = {}

    def context(self, images: int, length: int) -> Context:
        """The views for a context of ``length`` rows whose first ``images`` are images."""
        found = self._contexts.get((images, length))
        if found is None:
            if not 0 <= images < length <= self._mask.shape[1]:
                raise ValueError(
                    f"a context has at most {self._mask.shape[1]} rows and some of text, wanted"
                    f" {length} with {images} of images"
                )
            pieces = {None: slice(0, length), False: slice(0, images), True: slice(images, length)}
            reads = [pieces[self.config.reads_text(layer)] for layer in self.config.crossing]
            found = Context(
                (images, length),
                length,
                tuple(k[:, r] for k, r in zip(self._keys, reads, strict=True)),
                tuple(v[:, r] for v, r in zip(self._values, reads, strict=True)),
                images,
                tuple(self._mask[:, r] for r in reads),
                self._mask[:, :length],
            )
            self._contexts[images, length] = found
        return found

    def hide(self, context: Context, count: int) -> None:
        """Declare all rows but the first ``count`` padding."""
        context.mask[:, :count] = 0.0
        context.mask[:, count:] = MASKED

    def process_backbone_output(self, context: Context, rows: torch.Tensor) -> torch.Tensor:
        """Rows [length, S] of a language model -> what the blocks cross to."""
        if self._vlln is not None:
            rows = F.layer_norm(rows, (rows.shape[-1],), self._vlln.weight, self._vlln.bias)
        mask = context.mask if self.padded else None
        for block in self._vl_self_attention:
            rows = block.feed_forward(block.attend_itself(rows, plain_norm(rows), mask))
        return rows

    def cross(self, context: Context, rows: torch.Tensor) -> None:
        """Write the keys and values of processed rows [length, S]; once a chunk."""
        pieces = {None: rows, False: rows[: context.images], True: rows[context.images :]}
        for layer, keys, values in zip(
            self.config.crossing, context.keys, context.values, strict=True
        ):
            crossed = self._blocks[layer].crossed
            assert crossed is not None
            made = crossed(pieces[self.config.reads_text(layer)])
            k, v = made.view(len(made), 2, len(keys), -1).permute(1, 2, 0, 3)
            keys.copy_(k)
            values.copy_(v)

    def begin(self, state: torch.Tensor) -> None:
        """Take on the state [max_state_dim] of a chunk, float32."""
        self._state.copy_(self._encoders.state_encoder(state))

    def embed_suffix(self, x: torch.Tensor, step: int) -> torch.Tensor:
        """Noisy actions [H, D] -> rows of the transformer: state, future tokens, actions."""
        actions = self._encoders.action_encoder(x, step).to(self.dtype)
        return torch.cat((self._state, self._future_tokens, actions))

    def velocity(self, context: Context, rows: torch.Tensor, step: int) -> torch.Tensor:
        """Rows of :meth:`embed_suffix` -> velocity [H, D], float32, in the authors' time: from
        noise at 0 to actions at 1."""
        for number, block in enumerate(self._blocks):
            scale, shift = self._norms[step, number]
            normed = torch.addcmul(shift, plain_norm(rows), scale)
            if number % 2:
                rows = block.attend_itself(rows, normed)
            else:
                index = number // 2
                images_alone = self.config.reads_text(number) is False  # no padding among these
                mask = context.masks[index] if self.padded and not images_alone else None
                keys, values = context.keys[index], context.values[index]
                rows = block.attend_to(rows, normed, keys, values, mask)
            rows = block.feed_forward(rows)
        scale, shift = self._last_norm[step]
        last = plain_norm(rows[-self.config.action_horizon :].float(), 1e-6)
        return self._encoders.action_decoder(torch.addcmul(shift, last, scale))
