"""pi0 in training: the engine's own layers, in batches and with gradients.

The engine runs one prefix over static buffers and folds weights when it loads; here the same
layers are made anew from the parameters at every step, folded alike (:func:`read_layer`). A
checkpoint is the state of this module under LeRobot's names; a test holds the velocities equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.engine.flow.config import FlowConfig
from vla_ros.engine.flow.layers import Layer, Rope, mlp, norm, norm_scale, read_layer, rope
from vla_ros.engine.flow.load import expected_tensors
from vla_ros.engine.flow.matrices import DECODER, HEAD
from vla_ros.engine.flow.pi import EXPERT, PROJECTOR, TEXT, TOWER
from vla_ros.engine.flow.siglip import SigLip, siglip_tensors
from vla_ros.engine.flow.tables import time_table
from vla_ros.engine.packed.kernels.rope_write import rotate
from vla_ros.engine.quantised.matrices import linear
from vla_ros.train.flow.scaling import Scaling, scaling_from
from vla_ros.train.network import sincos

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Read:
    """What the expert reads of M prefixes: per layer ``keys`` and ``values`` [M, G, P, d];
    ``seen`` bool [M, P], no padding; ``counts`` int64 [M], rows that are seen."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    seen: torch.Tensor
    counts: torch.Tensor


class FlowNetwork(nn.Module):
    """A :class:`FlowConfig` of kind pi0 with weights to train, and the auxiliary heads of
    :class:`vla_ros.train.network.Network`, which are no part of a checkpoint. ``spot_head`` says
    where in space the two things are that a sentence is about."""

    scales: torch.Tensor
    _cos: torch.Tensor
    _sin: torch.Tensor

    def __init__(self, config: FlowConfig, objects: int, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        shapes, tower = config.shapes, config.shapes.vision
        generator = torch.random.get_rng_state()
        torch.manual_seed(seed)
        self.tower = SigLip(tower, tower.patches)
        self.patch_head = nn.Linear(tower.width, objects + 1)
        self.place_head = nn.Linear(shapes.text.hidden_size, 2 * tower.patches)
        self.spot_head = nn.Linear(shapes.text.hidden_size, 6)
        wanted = expected_tensors(config).must
        self._names = {n.replace(".", "/"): n for n in wanted if not n.startswith(TOWER)}
        self.parts = nn.ParameterDict(
            {key: _start(name, wanted[name]) for key, name in self._names.items()}
        )
        torch.random.set_rng_state(generator)
        with torch.no_grad():
            self.tower.positions.copy_(sincos(tower.patches, tower.width)[0])
        longest = tower.patches * len(config.cameras) + config.max_text + 1 + config.horizon
        turn = rope(shapes.text, longest, torch.device("cpu"))
        # Of the data that the run began with, and part of its state: it must not change later.
        self.register_buffer("scales", torch.ones(2, config.state_dim + config.action_dim))
        self.register_buffer("_cos", turn.cos, persistent=False)
        self.register_buffer("_sin", turn.sin, persistent=False)

    @property
    def scaling(self) -> Scaling:
        """Units <-> model space."""
        return scaling_from(self.scales)

    def forward(
        self,
        pixels: torch.Tensor,
        ids: torch.Tensor,
        lengths: torch.Tensor,
        state: torch.Tensor,
        x: torch.Tensor,
        time: torch.Tensor,
        given: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """B images, K sentences an image, n samples a sentence.

        pixels [B, cameras, 3, s, s]; ids int64 [B, K, L], right-padded, lengths int64 [B, K];
        state [B, state_width]; x [B, K, n, H, D] at ``time`` [B, K, n], where rows that are
        ``given``, bool [B, K, n, H], are at time 0. Returns the velocities [B, K, n, H, D], the
        patch features [B, patches, W] and the words' last hidden states
        [B, K, L, C], normalised.
        """
        batch, sentences, samples = time.shape
        features = self.tower(pixels.flatten(0, 1))
        features = features.view(batch, -1, features.shape[-1])
        read, hidden = self._read(features, ids, lengths)
        rows = state[:, None, None].expand(-1, sentences, samples, -1).flatten(0, 2)
        speed = self._speed(
            read, rows, x.flatten(0, 2), time.flatten(), given.flatten(0, 2), samples
        )
        words = norm(hidden[:, features.shape[1] :], self.config.shapes.text.rms_eps)
        words = words.unflatten(0, (batch, sentences))
        return speed.view(x.shape), features, words

    def _read(
        self, features: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[Read, torch.Tensor]:
        """The language model over images and words, all of which see each other."""
        text = self.config.shapes.text
        sentences = ids.shape[1]
        weights, like = _Parts(self._tensors()), features.new_empty(0, dtype=torch.float32)
        images = F.linear(
            features, weights.take(PROJECTOR + ".weight"), weights.take(PROJECTOR + ".bias")
        )
        images = images[:, None].expand(-1, sentences, -1, -1).flatten(0, 1)
        words = F.embedding(ids.flatten(0, 1), weights.take(TEXT + "embed_tokens.weight"))
        x = torch.cat((images.to(words.dtype), words * text.hidden_size**0.5), 1)
        counts = features.shape[1] + lengths.flatten()
        seen = torch.arange(x.shape[1], device=x.device) < counts[:, None]
        here = Rope(self._cos[: x.shape[1]], self._sin[: x.shape[1]])
        keys, values = [], []
        for number in range(text.layers):
            last = number == text.layers - 1
            layer = read_layer(
                weights,
                f"{TEXT}layers.{number}.",
                text,
                like,
                DECODER,
                parts="kv" if last else "qkv",
            )
            heads = 0 if last else text.heads
            qkv = linear(norm(x, text.rms_eps), layer.qkv)
            q, k, v = _split(qkv, heads, text.kv_heads, here)
            keys.append(k)
            values.append(v)
            if not last:
                x = x + linear(_attend(q, k, v, seen[:, None, None]), layer.out)
                x = x + mlp(norm(x, text.rms_eps), layer, text)
        return Read(tuple(keys), tuple(values), seen, counts), x

    def _speed(
        self,
        read: Read,
        state: torch.Tensor,
        x: torch.Tensor,
        time: torch.Tensor,
        given: torch.Tensor,
        samples: int,
    ) -> torch.Tensor:
        """Velocities [M n, H, D]; M prefixes, n samples each, one after the other."""
        expert = self.config.shapes.expert
        weights, like = _Parts(self._tensors()), x.new_empty(0)
        rows = torch.cat(
            (self._linear("state_proj", state)[:, None], self._timed(x, time, given)), 1
        )
        counts = read.counts.repeat_interleave(samples)
        place = counts[:, None] + torch.arange(rows.shape[1], device=x.device)
        here = Rope(self._cos[place][:, None], self._sin[place][:, None])
        mask = self._mask(read.seen.repeat_interleave(samples, 0), rows.shape[1])
        for number in range(expert.layers):
            layer: Layer = read_layer(
                weights, f"{EXPERT}model.layers.{number}.", expert, like, HEAD
            )
            qkv = linear(norm(rows, expert.rms_eps), layer.qkv)
            q, k, v = _split(qkv, expert.heads, expert.kv_heads, here)
            k, v = (
                torch.cat((before.repeat_interleave(samples, 0).to(own.dtype), own), 2)
                for before, own in ((read.keys[number], k), (read.values[number], v))
            )
            rows = rows + linear(_attend(q, k, v, mask), layer.out)
            rows = rows + mlp(norm(rows, expert.rms_eps), layer, expert)
        out = norm(rows[:, 1:].float(), expert.rms_eps)
        scale = norm_scale(weights, EXPERT + "model.norm.weight", expert)
        return self._linear("action_out_proj", out * scale).float()

    def _timed(self, x: torch.Tensor, time: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """Noisy actions joined with their times [M, H, w]; the time of given rows is 0."""
        config = self.config
        times = torch.cat((time, time.new_zeros(1)))
        table = time_table(
            times, config.shapes.expert.hidden_size, config.min_period, config.max_period
        ).to(x)
        table = torch.where(given[..., None], table[-1], table[:-1, None])
        joined = torch.cat((self._linear("action_in_proj", x), table.to(x)), -1)
        return self._linear(
            "action_time_mlp_out", F.silu(self._linear("action_time_mlp_in", joined))
        )

    def _mask(self, seen: torch.Tensor, rows: int) -> torch.Tensor:
        """Bool [M, 1, rows, P + rows]: the state sees no action, everything else all."""
        own = torch.ones(rows, rows, dtype=torch.bool, device=seen.device)
        own[0, 1:] = False
        count = len(seen)
        before = seen[:, None].expand(-1, rows, -1)
        return torch.cat((before, own[None].expand(count, -1, -1)), 2)[:, None]

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        own = self._tensors()
        return F.linear(x, own[name + ".weight"], own[name + ".bias"])

    def _tensors(self) -> Tensors:
        return {self._names[key]: part for key, part in self.parts.items()}

    def tensors(self) -> Tensors:
        """Everything that a checkpoint holds, under its names."""
        return {**siglip_tensors(TOWER, self.tower), **self._tensors()}


class _Parts:
    """Parameters as :class:`vla_ros.engine.flow.weights.Weights`, as often as asked for."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def take(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def _split(
    qkv: torch.Tensor, q_heads: int, kv_heads: int, here: Rope
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[M, T, (H + 2 G) d] -> rotated q [M, H, T, d] and k, and v [M, G, T, d]."""
    heads = qkv.unflatten(-1, (q_heads + 2 * kv_heads, -1)).transpose(1, 2)
    qk = rotate(heads[:, : q_heads + kv_heads].float(), here.cos, here.sin).to(qkv.dtype)
    return qk[:, :q_heads], qk[:, q_heads:], heads[:, q_heads + kv_heads :]


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """q [M, H, T, d] (scaled), k and v [M, G, S, d], bool mask -> [M, T, H d]."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    return out.transpose(1, 2).flatten(2)


def _start(name: str, shape: tuple[int, ...]) -> nn.Parameter:
    """Norms (which Gemma counts from 1) and biases 0, the velocity 0, all else normal with
    deviation 0.02, but for the small maps around the expert: their inputs are few."""
    if len(shape) == 1 or name == "action_out_proj.weight":
        return nn.Parameter(torch.zeros(shape))
    spread = 0.02 if name.startswith("paligemma") else shape[1] ** -0.5
    return nn.Parameter(torch.randn(shape) * spread)
