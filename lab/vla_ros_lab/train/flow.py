"""pi0 in training: the engine's own layers, in batches and with gradients.

The engine runs one prefix over static buffers and folds weights when it loads; here the same
layers are made anew from the parameters at every step, folded alike (:func:`read_layer`). A
checkpoint is the state of this module under LeRobot's names; a test holds the velocities equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.core.errors import UserError
from vla_ros.core.types import ACTION_DIM, GRIPPER
from vla_ros.engine.families.lerobot import WEIGHTS, expected_tensors, save_weights, write_config
from vla_ros.engine.families.random import TEXT_VOCAB, build_tokenizer, write_tokenizer
from vla_ros.engine.io.checkpoint import LANGUAGE, Checkpoint
from vla_ros.engine.io.config import ModelConfig, TextConfig, TowerConfig
from vla_ros.engine.io.flow_config import FlowConfig, Shapes, read_flow_config
from vla_ros.engine.io.processors import Processors, Scaler, read_processors
from vla_ros.engine.io.quantize import DECODER, HEAD
from vla_ros.engine.io.weights import FileWeights
from vla_ros.engine.layers.kernels.fused import rotate
from vla_ros.engine.layers.linear import linear
from vla_ros.engine.models.golden_ints import discrete_json
from vla_ros.engine.models.pi0 import EXPERT, PROJECTOR, TEXT, TOWER
from vla_ros.engine.models.preparation import prompt_text
from vla_ros.engine.models.siglip import SigLip, tower_tensors
from vla_ros.engine.models.towers import Vision
from vla_ros.engine.models.transformer import (
    Layer,
    Rope,
    layer_table,
    mlp,
    norm,
    norm_scale,
    read_layer,
    rope,
)
from vla_ros.engine.models.vlm_with_expert import time_table
from vla_ros.runtime.control.observation import LIBERO_STATE
from vla_ros_lab.train.batches import FrameDraws, chunks_ahead, refuse_unposed
from vla_ros_lab.train.demonstrations import BODIES, own_states
from vla_ros_lab.train.frames import NOWHERE, FrameImages, FrameTable
from vla_ros_lab.train.loop import Losses
from vla_ros_lab.train.network import attend, patch_loss, place_loss, sincos
from vla_ros_lab.train.options import TrainOptions

#: least deviation: what hardly ever changes would otherwise fill the model space with its noise
_LEAST_STATE = (0.02,) * 3 + (0.1,) * 3 + (0.005,) * 2  # m, rad, m
_LEAST_ACTION = 0.25  # of the controller's range


def stored(units: Processors) -> torch.Tensor:
    """Units as float32 [2, S + D], for a run's state."""
    parts = (units.state, units.action)
    return torch.stack([torch.cat([getattr(p, name) for p in parts]) for name in ("low", "high")])


def restored(tensor: torch.Tensor, cut: int = LIBERO_STATE) -> Processors:
    """The units of :func:`stored`; ``cut``: values of the state."""
    state, action = (
        Scaler("MEAN_STD", *part) for part in tensor.cpu().float().tensor_split((cut,), 1)
    )
    return Processors(state, action, "")


def units_of(frames: FrameTable) -> Processors:
    """Units <-> model space of a data set, by mean and deviation: of the state [8], LIBERO's pose
    and fingers, and of an action [7] in m, rad and 0 to 1. The mean of a motion is taken as 0:
    standing still is the middle."""
    states, scale = states_of(frames), torch.tensor([*frames.info.scale, 0.5])
    spread = states.std(0).maximum(torch.tensor(_LEAST_STATE))
    moved = frames.chunks[:, 0].float().std(0).clamp(min=_LEAST_ACTION) * scale
    mean = torch.zeros(ACTION_DIM)
    mean[GRIPPER], moved[GRIPPER] = 0.5, 0.5
    state = Scaler("MEAN_STD", states.mean(0), spread)
    return Processors(state, Scaler("MEAN_STD", mean, moved), "")


def states_of(frames: FrameTable) -> torch.Tensor:
    """The robot's own state at every frame, float32 [N, 8], as the policy node makes it."""
    states = own_states(frames.poses.numpy(), frames.fingers.numpy())
    return torch.from_numpy(states.astype(np.float32))


Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ReadPrefix:
    """KV of M prefixes for the expert: per layer ``keys`` and ``values`` [M, G, P, d];
    ``seen`` bool [M, P], no padding."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    seen: torch.Tensor


class FlowNetwork(nn.Module):
    """A :class:`FlowConfig` of kind pi0 with weights to train, and the auxiliary heads of
    :class:`vla_ros_lab.train.network.Network`, which are no part of a checkpoint. ``spot_head``
    points in space at the two things that an instruction is about."""

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
        must = expected_tensors(config).must.items()
        own = [(name, shape) for name, shape in must if not name.startswith(TOWER)]
        self.parts = nn.ParameterDict({n.replace(".", "/"): _start(n, shape) for n, shape in own})
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
    def units(self) -> Processors:
        """Units <-> model space."""
        return restored(self.scales, self.config.state_dim)

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
        """B images, K instructions an image, n samples an instruction.

        pixels [B, cameras, 3, s, s]; ids int64 [B, K, L], right-padded, lengths int64 [B, K];
        state [B, state_width]; x [B, K, n, H, D] at ``time`` [B, K, n], where rows that are
        ``given``, bool [B, K, n, H], are at time 0. Returns the velocities [B, K, n, H, D], the
        patch features [B, patches, W] and the words' last hidden states
        [B, K, L, C], normalized.
        """
        batch, instructions, samples = time.shape
        features = self.tower(pixels.flatten(0, 1))
        features = features.view(batch, -1, features.shape[-1])
        read, hidden = self._read(features, ids, lengths)
        rows = state[:, None, None].expand(-1, instructions, samples, -1).flatten(0, 2)
        speed = self._speed(
            read, rows, x.flatten(0, 2), time.flatten(), given.flatten(0, 2), samples
        )
        words = norm(hidden[:, features.shape[1] :], self.config.shapes.text.rms_eps)
        words = words.unflatten(0, (batch, instructions))
        return speed.view(x.shape), features, words

    def _read(
        self, features: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[ReadPrefix, torch.Tensor]:
        """The language model over images and words, all of which see each other."""
        text = self.config.shapes.text
        instructions = ids.shape[1]
        like = features.new_empty(0, dtype=torch.float32)
        images = (
            self._linear(PROJECTOR, features)[:, None]
            .expand(-1, instructions, -1, -1)
            .flatten(0, 1)
        )
        words = F.embedding(ids.flatten(0, 1), self.take(TEXT + "embed_tokens.weight"))
        x = torch.cat((images.to(words.dtype), words * text.hidden_size**0.5), 1)
        counts = features.shape[1] + lengths.flatten()
        seen = torch.arange(x.shape[1], device=x.device) < counts[:, None]
        here = Rope(self._cos[: x.shape[1]], self._sin[: x.shape[1]])
        keys, values, table = [], [], layer_table(text)
        for number in range(text.layers):
            last = number == text.layers - 1
            name = f"{TEXT}layers.{number}."
            layer = read_layer(self, name, table, like, DECODER, kv_alone=last)
            heads = 0 if last else text.heads
            qkv = linear(norm(x, text.rms_eps), layer.qkv)
            q, k, v = _split(qkv, heads, text.kv_heads, here)
            keys.append(k)
            values.append(v)
            if not last:
                x = x + linear(attend(q, k, v, seen[:, None, None], 1.0).flatten(2), layer.out)
                x = x + mlp(norm(x, text.rms_eps), layer, text)
        return ReadPrefix(tuple(keys), tuple(values), seen), x

    def _speed(
        self,
        read: ReadPrefix,
        state: torch.Tensor,
        x: torch.Tensor,
        time: torch.Tensor,
        given: torch.Tensor,
        samples: int,
    ) -> torch.Tensor:
        """Velocities [M n, H, D]; M prefixes, n samples each, one after the other."""
        expert = self.config.shapes.expert
        like = x.new_empty(0)
        rows = torch.cat(
            (self._linear("state_proj", state)[:, None], self._timed(x, time, given)), 1
        )
        seen = read.seen.repeat_interleave(samples, 0)
        position = seen.sum(1)[:, None] + torch.arange(rows.shape[1], device=x.device)
        here = Rope(self._cos[position][:, None], self._sin[position][:, None])
        mask = self._mask(seen, rows.shape[1])
        table = layer_table(expert)
        for number in range(expert.layers):
            layer: Layer = read_layer(self, f"{EXPERT}model.layers.{number}.", table, like, HEAD)
            qkv = linear(norm(rows, expert.rms_eps), layer.qkv)
            q, k, v = _split(qkv, expert.heads, expert.kv_heads, here)
            k, v = (
                torch.cat((before.repeat_interleave(samples, 0).to(own.dtype), own), 2)
                for before, own in ((read.keys[number], k), (read.values[number], v))
            )
            rows = rows + linear(attend(q, k, v, mask, 1.0).flatten(2), layer.out)
            rows = rows + mlp(norm(rows, expert.rms_eps), layer, expert)
        out = norm(rows[:, 1:].float(), expert.rms_eps)
        scale = norm_scale(self, EXPERT + "model.norm.weight", expert)
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
        return F.linear(x, self.take(name + ".weight"), self.take(name + ".bias"))

    def take(self, name: str) -> torch.Tensor:
        """A parameter by its name in a checkpoint, as of the engine's Weights."""
        found: torch.Tensor = self.parts[name.replace(".", "/")]
        return found

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        """The same, whole."""
        yield self.take(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.take(name).shape)

    def tensors(self) -> Tensors:
        """Tensors of a checkpoint, under its names."""
        own = {key.replace("/", "."): part for key, part in self.parts.items()}
        return {**tower_tensors(TOWER, self.tower), **own}


def _split(
    qkv: torch.Tensor, q_heads: int, kv_heads: int, here: Rope
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[M, T, (H + 2 G) d] -> rotated q [M, H, T, d] and k, and v [M, G, T, d]."""
    heads = qkv.unflatten(-1, (q_heads + 2 * kv_heads, -1)).transpose(1, 2)
    qk = rotate(heads[:, : q_heads + kv_heads].float(), here.cos, here.sin).to(qkv.dtype)
    return qk[:, :q_heads], qk[:, q_heads:], heads[:, q_heads + kv_heads :]


def _start(name: str, shape: tuple[int, ...]) -> nn.Parameter:
    """Norms (which Gemma counts from 1) and biases 0, the velocity 0, all else normal with
    deviation 0.02, but for the small maps around the expert: their inputs are few."""
    if len(shape) == 1 or name == "action_out_proj.weight":
        return nn.Parameter(torch.zeros(shape))
    spread = 0.02 if name.startswith("paligemma") else shape[1] ** -0.5
    return nn.Parameter(torch.randn(shape) * spread)


#: the tower and the language model are those of ``small``, whose weights they may begin with: a
#: token policy's tower has one block more in its description, which is never run
_TOWER = TowerConfig(192, 6, 3, 768, image_size=128, patch=16)
_TEXT = TextConfig(
    "gemma", TEXT_VOCAB, 256, 704, 4, heads=4, kv_heads=4, head_dim=64, tied=True
)  # fmt: skip
_EXPERT = replace(_TEXT, vocab_size=1, hidden_size=192, intermediate_size=512)
_TINY_TOWER = TowerConfig(32, 2, 2, 64, image_size=32, patch=8)
_TINY_TEXT = TextConfig(
    "gemma", TEXT_VOCAB, 32, 64, 2, heads=2, kv_heads=1, head_dim=16, tied=True
)  # fmt: skip
_TINY_EXPERT = replace(_TINY_TEXT, vocab_size=1, hidden_size=24, intermediate_size=48)


def _flow(shapes: Shapes, horizon: int, steps: int) -> FlowConfig:
    """One camera; the state is LIBERO's pose and fingers. Each action has a time of its own, so
    one network serves plain sampling, guided and trained real-time chunking."""
    return FlowConfig(
        kind="pi0", shapes=shapes, horizon=horizon, steps=steps, state_width=LIBERO_STATE,
        action_width=ACTION_DIM, state_dim=LIBERO_STATE, action_dim=ACTION_DIM,
        cameras=("front",), max_text=48, image_size=shapes.vision.image_size, rtc_trained=True,
    )  # fmt: skip


FLOW_ARCHITECTURES: dict[str, FlowConfig] = {
    "small-flow": _flow(Shapes(_TOWER, _TEXT, _EXPERT), horizon=16, steps=5),
    "tiny-flow": _flow(Shapes(_TINY_TOWER, _TINY_TEXT, _TINY_EXPERT), horizon=6, steps=3),
}


LONGEST_GIVEN = 8  # actions that a chunk may take as given (arXiv 2512.05964: 0 to 10)
_GIVEN = 0.5  # share of samples that take some


@dataclass(frozen=True, slots=True)
class FlowBatch:
    """A batch of B images, K instructions each, n samples an instruction; values in model space.

    ``pixels`` [B, cameras, 3, s, s]; ``ids`` int64 [B, K, L] and ``lengths`` [B, K]; ``state``
    [B, S]; ``actions`` [B, K, H, D]; ``noise`` [B, K, n, H, D]; ``time`` [B, K, n], 1 is noise;
    ``given`` bool [B, K, n, H]: rows without noise. Auxiliary: ``patches``, ``places``, ``words``
    as in :class:`vla_ros_lab.train.batches.Batch`, the words' positions in ``ids``; ``spots``
    [B, K, 2, 3] in m, where those things are, NaN for none. None, of the first two: not learned.
    """

    pixels: torch.Tensor
    ids: torch.Tensor
    lengths: torch.Tensor
    state: torch.Tensor
    actions: torch.Tensor
    noise: torch.Tensor
    time: torch.Tensor
    given: torch.Tensor
    words: torch.Tensor
    spots: torch.Tensor
    patches: torch.Tensor | None = None
    places: torch.Tensor | None = None


def noisy(
    config: FlowConfig, shape: tuple[int, ...], draw: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The ``noise``, ``time`` and ``given`` of a FlowBatch; ``shape``: B, K, n."""
    horizon, width = config.horizon, config.action_width
    noise = torch.randn(*shape, horizon, width, generator=draw)
    # Source: openpi, Beta(1.5, 1): more often near noise, where most is decided.
    time = torch.rand(shape, generator=draw) ** (1 / 1.5) * 0.999 + 0.001
    count = torch.randint(1, LONGEST_GIVEN + 1, shape, generator=draw)
    count = count.clamp(max=horizon - 1) * (torch.rand(shape, generator=draw) < _GIVEN)
    return noise, time, torch.arange(horizon) < count[..., None]


class FlowBatches(FrameDraws):
    """Batches for flow policies: an image, instructions, and the expert's next H actions for each.

    The chunks are :mod:`vla_ros_lab.train.ahead`'s, so every frame has a whole one for every
    instruction, whoever acted in it. UserError: the data were collected without poses.
    """

    def __init__(
        self,
        frames: FrameTable,
        config: FlowConfig,
        tokenize: Callable[[str], list[int]],
        units: Processors,
        options: TrainOptions,
        device: torch.device,
    ) -> None:
        refuse_unposed(frames)
        super().__init__(frames, config.shapes.vision, tokenize, options, device)
        self._config = config
        prompts = [torch.tensor(prompt) for prompt in self._prompts]
        self._lengths = torch.tensor([len(prompt) for prompt in prompts])
        self._padded = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        self._units, self._states = units, units.state.normalize(states_of(frames))

    def batch(self, step: int) -> FlowBatch:
        """The batch of ``step``; the same one on every call."""
        draw, index = self._draw(step)
        goals = self._goals(index, torch.zeros_like(index), draw)
        wording = torch.randint(1 << 30, goals.shape, generator=draw)
        drawn = self._images(self._image_index[index, 0], draw, step)
        which = self._rows(goals, wording)
        noise, time, given = noisy(self._config, (*goals.shape, self._options.samples), draw)
        values = chunks_ahead(self._frames, index, goals, self._config.horizon, draw)
        values *= torch.tensor([*self._frames.info.scale, 0.5])
        values[..., GRIPPER] += 0.5
        there = self._device
        return FlowBatch(
            pixels=drawn.pixels,
            ids=self._padded[which].to(there),
            lengths=self._lengths[which].to(there),
            state=self._states[index].to(there),
            actions=self._units.action.normalize(values).to(there),
            noise=noise.to(there),
            time=time.to(there),
            given=given.to(there),
            patches=drawn.patches,
            places=self._pointed(drawn, goals),
            words=self._words[which].to(there),
            spots=self._spots(index, goals).to(there),
        )

    def _spots(self, index: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
        """Positions [B, K, 2, 3] of the things of each instruction, m."""
        things = self._things[goals]
        number = torch.tensor([BODIES.index(name) for name in self._frames.info.objects])
        spots = self._frames.poses[index[:, None, None], number[things.clamp(min=0)], :3]
        return spots.masked_fill((things == NOWHERE)[..., None], float("nan"))


# A flow policy's first weights.


_SLOPE = 1.702  # Hendrycks and Gimpel 2016: GELU against a sigmoid's
_IMAGES = 256  # at most, that the projector is fitted to


def go_on_from(network: FlowNetwork, directory: Path) -> None:
    """Take over a whole flow policy, its units included. UserError: it has other sizes."""
    config = read_flow_config(directory)
    if replace(config, steps=network.config.steps) != network.config:
        raise UserError(f"--init-from {directory} is a flow policy of other sizes than this one")
    weights = FileWeights(directory / WEIGHTS, expected_tensors(config))
    network.scales.copy_(stored(read_processors(directory, config)))
    with torch.no_grad():
        for name, tensor in network.tensors().items():
            tensor.copy_(weights.take(name))


def begin_from(network: FlowNetwork, source: Checkpoint, frames: FrameTable, seed: int) -> None:
    """Take over the tower and the language model of a token policy.

    A Llama becomes a Gemma: its norms count from 1, its embedding is scaled as it is read, and
    gelu(x) is nearly silu(1.702 x) / 1.702. The tower keeps its blocks; behind its new last norm
    one linear map is fitted to the output of the token policy's projector for the same images.
    UserError: ``source`` has other sizes.
    """
    _check(network, source.config)
    vision = Vision(source.config)
    vision.load_state_dict({n: source.tensors[n] for n in vision.state_dict()})
    with torch.no_grad():
        _take_language(network, source)
        _take_vision(network, vision, frames, seed)


def _check(network: FlowNetwork, theirs: ModelConfig) -> None:
    shapes, tower = network.config.shapes, theirs.towers[0]
    alike = len(theirs.towers) == 1 and theirs.text.kind == "llama"
    for name in ("width", "heads", "mlp", "image_size", "patch"):
        alike &= getattr(shapes.vision, name) == getattr(tower, name)
    for name in ("hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim"):
        alike &= getattr(shapes.text, name) == getattr(theirs.text, name)
    if not alike or shapes.vision.depth != tower.depth - 1:
        raise UserError(
            "--init-from is no token policy with the sizes of this one's tower and language model:"
            " give one that was trained with --arch small, such as shipped:tabletop"
        )


def _take_language(network: FlowNetwork, source: Checkpoint) -> None:
    own, text = network.tensors(), network.config.shapes.text
    words = source.tensors[LANGUAGE + "model.embed_tokens.weight"][: text.vocab_size]
    own[TEXT + "embed_tokens.weight"].copy_(words / text.hidden_size**0.5)
    for name, tensor in own.items():
        if not name.startswith(TEXT) or "embed_tokens" in name:
            continue
        theirs = source.tensors[LANGUAGE + "model." + name.removeprefix(TEXT)]
        if name.endswith("norm.weight"):
            theirs = theirs - 1.0
        elif "gate_proj" in name:
            theirs = theirs / _SLOPE
        elif "up_proj" in name:
            theirs = theirs * _SLOPE
        tensor.copy_(theirs)


def _take_vision(network: FlowNetwork, vision: Vision, frames: FrameTable, seed: int) -> None:
    tower, theirs = network.tower, vision.vision_backbone.featurizer
    tower.patch_embed.load_state_dict(theirs.patch_embed.state_dict())
    tower.positions.copy_(theirs.pos_embed[0])
    for own, other in zip(tower.blocks, theirs.blocks, strict=True):
        own.load_state_dict(other.state_dict())
    images = FrameImages(frames, network.config.shapes.vision, seed, 0, torch.device("cpu"))
    draw = torch.Generator().manual_seed(seed)
    count = min(_IMAGES, len(frames))
    index = torch.randint(len(frames), (count,), generator=draw)
    pixels = images(index, draw, 0).pixels.flatten(0, 1)
    features = tower(pixels).flatten(0, 1)
    wanted = vision((pixels,)).flatten(0, -2)
    rows = torch.cat((features, features.new_ones(len(features), 1)), 1)
    fitted = torch.linalg.lstsq(rows, wanted).solution
    own_tensors = network.tensors()
    own_tensors[PROJECTOR + ".weight"].copy_(fitted[:-1].T)
    own_tensors[PROJECTOR + ".bias"].copy_(fitted[-1])


def write_flow(network: FlowNetwork, directory: Path) -> None:
    """A folder in LeRobot's layout: config, bf16 weights, processors, tokenizer and the gate's
    integers."""
    tensors = {n: t.detach().cpu().to(torch.bfloat16) for n, t in network.tensors().items()}
    config = network.config
    write_config(directory, config, network.units, discrete_json(config))
    save_weights(directory / WEIGHTS, tensors)
    write_tokenizer(directory / "tokenizer.json")


_SPOT = 0.05  # m: the hand's longest step


def tokenizer_for(config: FlowConfig) -> Callable[[str], list[int]]:
    """Instruction -> the ids of its prompt."""
    tokenizer = build_tokenizer()
    return lambda text: list(tokenizer.encode(prompt_text(config.kind, text)).ids)


class FlowObjective:
    """Flow matching of ``network`` on the batches of ``batch``, with a time for each action, so
    that a chunk can be given its first actions.

    Sources: openpi ``pi0.py`` (the path x = t noise + (1 - t) actions, its velocity noise -
    actions) and arXiv 2512.05964 (rows that are given are at time 0 and are not learned).
    """

    def __init__(
        self,
        network: FlowNetwork,
        batch: Callable[[int], FlowBatch],
        dtype: str,
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        self._network, self._batch = network, batch
        self._forward: Callable[..., Any] = (
            torch.compile(network, dynamic=False) if compiled else network
        )
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")

    def losses(self, step: int) -> Losses:
        return self.losses_of(self._batch(step))

    def losses_of(self, batch: FlowBatch) -> Losses:
        """Losses of a batch. The error is of the first action that is not given, as one step from
        the present noise would leave it, in units of the model space."""
        actions = batch.actions[:, :, None].expand_as(batch.noise)
        time = batch.time[..., None, None].masked_fill(batch.given[..., None], 0.0)
        x = time * batch.noise + (1 - time) * actions
        with self._autocast:
            speed, features, words = self._forward(
                batch.pixels, batch.ids, batch.lengths, batch.state, x, batch.time, batch.given
            )
            patches = self._network.patch_head(features)
            named = _named(words, batch)
            places = self._network.place_head(named)
            spots = self._network.spot_head(named)
        wrong = (speed - (batch.noise - actions)).square().mean(-1)
        open_rows = ~batch.given
        with torch.no_grad():
            left = ((x - time * speed) - actions).abs().mean(-1)
            first = batch.given.sum(-1, keepdim=True)
        return Losses(
            wrong[open_rows].mean(),
            patch_loss(patches, batch.patches),
            spot_loss(spots, batch.spots) + place_loss(places, batch.places),
            left.gather(-1, first).mean(),
        )


def spot_loss(output: torch.Tensor, spots: torch.Tensor) -> torch.Tensor:
    """Output [B, K, 3, 6] and spots [B, K, 2, 3] in m, NaN for none -> the mean error, in _SPOT.

    A patch is coarse, most of all away from the camera; a grasp wants millimetres. As in
    place_loss: at the end of the instruction both, at the word for a thing that thing.
    """
    end, first, second = output.float().unflatten(-1, (2, 3)).unbind(2)
    error = torch.stack((end, torch.stack((first[:, :, 0], second[:, :, 1]), 2)), 2)
    wanted = (spots / _SPOT)[:, :, None].expand_as(error)
    known = wanted.isfinite()
    return (error - wanted)[known].abs().mean()


def _named(words: torch.Tensor, batch: FlowBatch) -> torch.Tensor:
    """Hidden states [B, K, 3, C] where the instruction ends and at the two words for things."""
    rows = torch.cat((batch.lengths[..., None] - 1, batch.words), -1)
    return words.gather(2, rows[..., None].expand(-1, -1, -1, words.shape[-1]))
