"""Checkpoints with random weights: the same code path without anybody's data.

``random:small``, ``random:small-oft``, ``random:small-chunk`` and ``random:cpu`` are written to a
cache directory and read back through the real loader, as is ``random:bitvla-small``;
``random:openvla-7b``, ``random:minivla`` and ``random:bitvla`` are too large for that and are made
on the device. So that greedy decoding gives action tokens, the rows of all other tokens are zero in
the head (small in an embedding that is also the head).

Flow policies draw each tensor by its name (:class:`DrawnWeights`); all share the small tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.openvla import expected_shapes, load_checkpoint, save_checkpoint
from vla_ros.engine.io.bitvla import EMBEDDING, PROJECTOR, CheckpointParts, DrawnRows, gather
from vla_ros.engine.io.checkpoint import LANGUAGE, RANDOM, Checkpoint, Tensors
from vla_ros.engine.io.config import (
    BITNET,
    BITSIGLIP,
    DINOV2_L,
    SIGLIP_SO400M,
    ModelConfig,
    TextConfig,
    TowerConfig,
    bitvla_json,
    config_json,
)
from vla_ros.engine.io.files import cached, write_json
from vla_ros.engine.io.tokens import IMAGE, PROMPTS
from vla_ros.engine.io.weights import HEADS, Shape, Shapes

PREFIX = RANDOM
_VERSION = 5  # of what is written; a new one makes what is cached void
TEXT_VOCAB = 704  # what the small tokenizer has at most
SMALL_VOCAB = 960  # 704 text tokens, then 256 action tokens
LARGE = 300_000_000  # parameters from which weights are not written to disk
STATE = 8  # LIBERO's: place, rotation vector, two fingers
_LOUD = 0.05  # of BitVLA's embeddings; norms come before everything that reads them

_SMALL_TOWER = TowerConfig(192, 7, 3, 768, image_size=128, patch=16)
_SMALL_TEXT = TextConfig("llama", SMALL_VOCAB + 64, 256, 704, 4, 4, 4, 64)
_CPU_TEXT = TextConfig("llama", 32064, 768, 2048, 12, 12, 12, 64)
_QWEN = TextConfig("qwen2", 151936, 896, 4864, 24, 14, 2, 64, rope_theta=1e6, tied=True)
_OPENVLA = ModelConfig(
    TextConfig(vocab_size=32064), (DINOV2_L, SIGLIP_SO400M), 32000, empty_token_id=29871
)


def _bitvla(text: TextConfig, tower: TowerConfig) -> ModelConfig:
    return ModelConfig(
        text,
        (tower,),
        text.vocab_size,
        prompt_style="bitvla",
        images=2,
        chunk=8,
        parallel=True,
        proprio_dim=STATE,
        stop_token=1,
    )


PRESETS: dict[str, ModelConfig] = {
    "small": ModelConfig(_SMALL_TEXT, (_SMALL_TOWER,), SMALL_VOCAB),
    # OpenVLA-OFT's architecture: a chunk of 8 actions from one bidirectional pass
    "small-oft": ModelConfig(_SMALL_TEXT, (_SMALL_TOWER,), SMALL_VOCAB, chunk=8, parallel=True),
    # the same chunk as 56 tokens, one after another
    "small-chunk": ModelConfig(_SMALL_TEXT, (_SMALL_TOWER,), SMALL_VOCAB, chunk=8),
    "cpu": ModelConfig(_CPU_TEXT, (_SMALL_TOWER,), 32000),
    "openvla-7b": _OPENVLA,
    # the same with chunks of 8 actions, as 56 tokens
    "openvla-7b-chunk": replace(_OPENVLA, chunk=8),
    "minivla": ModelConfig(_QWEN, (DINOV2_L, SIGLIP_SO400M), 151921, prompt_style="qwen"),
    "bitvla-small": _bitvla(
        TextConfig("bitnet", TEXT_VOCAB, 256, 704, 4, 4, 2, 64, 5e5, 1e-5, tied=True),
        replace(_SMALL_TOWER, activation="gelu_tanh", ternary=True),
    ),
    # the published sizes, under the small tokenizer
    "bitvla": _bitvla(BITNET, BITSIGLIP),
}


def norm_stats(dim: int = 7, state: int = 0) -> dict[str, Any]:
    """Bounds of LIBERO's controller units [-1, 1], the last dimension a gripper in [0, 1]; and of a
    state around its own."""
    action = {"q01": [-1.0] * (dim - 1) + [0.0], "q99": [1.0] * dim, "mask": [True] * dim}
    proprio = {"proprio": {"q01": [-2.0] * state, "q99": [2.0] * state}} if state else {}
    return {"random": {"action": action, **proprio}}


def load_random(name: str, seed: int, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """``random:<preset>`` -> a checked checkpoint."""
    preset = name.removeprefix(PREFIX)
    if preset not in PRESETS:
        raise CheckpointError(f"{name!r} is unknown; there are random:{', random:'.join(PRESETS)}")
    config = PRESETS[preset]
    if parameters(config) <= LARGE:
        write = write_bitvla if config.text.ternary else write_random
        print_of = fingerprint_of([_VERSION, config_json(config, {})])
        directory = cached(f"{preset}-{seed}-{print_of}", lambda to: write(to, config, seed))
        return load_checkpoint(str(directory), device, dtype)
    if not config.text.ternary:
        return in_memory(config, seed, device, dtype)
    directory = cached(
        f"tokenizer-bitvla-{_VERSION}",
        lambda to: write_tokenizer(to / "tokenizer.json", style="bitvla"),
    )
    like = torch.empty(0, device=device, dtype=dtype)
    parts = draw_bitvla(config, seed, like)
    rows = DrawnRows(config.text.hidden_size, seed, _LOUD, like)
    stats = norm_stats(config.action_dim, config.proprio_dim)
    digest = digest_of(config, seed, dtype)
    return Checkpoint(config, parts.tensors, stats, directory, digest, parts.ternary, rows)


def random_config(name: str) -> ModelConfig | None:
    """What ``random:<preset>`` will be; None of what is unknown."""
    return PRESETS.get(name.removeprefix(PREFIX))


def in_memory(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype, dim: int = 7
) -> Checkpoint:
    """Random weights made on the device; only the tokenizer goes to disk."""
    tensors = random_tensors(config, seed, device, dtype)
    digest = digest_of(config, seed, dtype)
    return Checkpoint(config, tensors, norm_stats(dim), tokenizer_directory(), digest)


def digest_of(config: object, seed: int, dtype: torch.dtype) -> str:
    """What stands for the SHA-256 of weights that are on no disk."""
    return hashlib.sha256(f"random {config!r} {seed} {dtype}".encode()).hexdigest()


def fingerprint_of(content: object) -> str:
    """What tells one cached folder from another."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write_random(
    directory: Path, config: ModelConfig, seed: int, stats: Mapping[str, Any] | None = None
) -> None:
    """Write a checkpoint directory with random float32 weights."""
    tensors = random_tensors(config, seed, torch.device("cpu"), torch.float32)
    save_checkpoint(directory, config, tensors, stats or norm_stats(), write_tokenizer)


def parameters(config: ModelConfig) -> int:
    """Parameters of a model, from its shapes."""
    return sum(int(torch.Size(shape).numel()) for shape in expected_shapes(config).values())


def random_tensors(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Tensors:
    """Tensors drawn so that features, prompt and image all move the choice of tokens."""
    generator = torch.Generator(device).manual_seed(seed)
    out: Tensors = {}
    for name, shape in expected_shapes(config).items():
        tensor = torch.empty(shape, device=device, dtype=dtype)
        if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "layernorm.weight")):
            tensor.fill_(1.0)
        elif name.endswith("scale_factor"):
            tensor.fill_(0.1)
        elif len(shape) == 1:
            tensor.normal_(0.0, 0.02, generator=generator)
        else:
            sharp = 2.0 if ".q_proj." in name or ".k_proj." in name else 1.0
            tensor.normal_(0.0, sharp * _spread(name, shape), generator=generator)
            if "embed_tokens" in name:
                # A tied embedding is the head too: a loud token would only repeat itself.
                tensor *= _inputs(shape) ** 0.5 * (0.05 if config.text.tied else 1.0)
        out[name] = tensor
    tied = config.text.tied
    head = out[LANGUAGE + ("model.embed_tokens.weight" if tied else "lm_head.weight")]
    head[: config.action_vocab - config.bins] *= 0.1 if tied else 0.0
    head[config.action_vocab :] *= 0.1 if tied else 0.0
    return out


def _inputs(shape: Shape) -> int:
    return int(torch.Size(shape[1:]).numel())


def _spread(name: str, shape: Shape) -> float:
    """Loud image features: frames that differ must say different things. Values of the action head
    within [-1, 1] almost always, as a trained one's are."""
    gain = 4.0 if name.startswith(("projector.", PROJECTOR)) else 1.0
    gain = 0.2 if name == "action_head.model.fc2.weight" else gain
    return gain * _inputs(shape) ** -0.5


def _drawn_bitvla(shapes: Shapes, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """BitVLA's tensors by the authors' names, float32, each drawn when it is asked for."""
    generator = torch.Generator().manual_seed(seed)
    for name, shape in shapes.items():
        tensor = torch.empty(shape)
        if len(shape) == 1 and name.endswith("weight"):  # of a norm
            tensor.fill_(1.0)
        elif len(shape) == 1:
            tensor.normal_(0.0, 0.02, generator=generator)
        else:
            tensor.normal_(0.0, _spread(name, shape), generator=generator)
            if name == EMBEDDING:
                tensor *= _LOUD * _inputs(shape) ** 0.5
        yield name, tensor


def draw_bitvla(config: ModelConfig, seed: int, like: torch.Tensor) -> CheckpointParts:
    """A whole model but for its embedding, drawn and packed tensor by tensor."""
    inside = {n: s for n, s in expected_shapes(config).items() if n != EMBEDDING}
    return gather(config, _drawn_bitvla(inside, seed), like)


def write_bitvla(directory: Path, config: ModelConfig, seed: int) -> None:
    """What `vla-ros convert` makes of a release of BitVLA's authors, with drawn weights."""
    from safetensors.torch import save_file

    (tower,) = config.towers
    side = tower.image_size
    stats = norm_stats(config.action_dim, config.proprio_dim)
    write_json(directory / "config.json", bitvla_json(config))
    write_json(directory / "dataset_statistics.json", stats)
    siglip = {
        "image_processor_type": "SiglipImageProcessor",
        "image_mean": list(tower.mean),
        "image_std": list(tower.std),
        "resample": 3,
        "size": {"height": side, "width": side},
    }
    write_json(directory / "preprocessor_config.json", siglip)
    write_tokenizer(directory / "tokenizer.json", style="bitvla")
    files: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in _drawn_bitvla(expected_shapes(config), seed):
        whose = next((head for head in HEADS if name.startswith(head + ".")), "model")
        files.setdefault(whose, {})[name] = tensor
    for whose, tensors in files.items():
        save_file(tensors, str(directory / f"{whose}.safetensors"))


class DrawnWeights:
    """Each tensor from the seed and its name, float32, so that reading some of them draws no other.

    Matrices are normal with 1 / sqrt(inputs), Q and K twice that so that attention chooses, scales
    of norms 1 and other vectors 0. By patterns of names ``fills`` has what is in a tensor instead,
    a number or a table, and ``gains`` factors.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        seed: int,
        device: torch.device,
        fills: Mapping[str, float | torch.Tensor] = MappingProxyType({}),
        gains: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.shapes = shapes
        self._seed, self._device = seed, device
        self._fills, self._gains = fills, gains

    def take(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        for pattern, fill in self._fills.items():
            if re.search(pattern, name):
                return torch.as_tensor(fill, device=self._device).expand(shape).clone()
        if len(shape) == 1:
            scale = "norm" in name and name.endswith("weight")
            return torch.full(shape, 1.0 if scale else 0.0, device=self._device)
        gains = [gain for pattern, gain in self._gains.items() if re.search(pattern, name)]
        sharp = 2.0 if ".q_proj." in name or ".k_proj." in name else 1.0
        return self.normal(name, shape, math.prod((sharp, *gains)) * _inputs(shape) ** -0.5)

    def normal(self, name: str, shape: Shape, spread: float) -> torch.Tensor:
        """Drawn by that name."""
        generator = torch.Generator(self._device)
        generator.manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))  # 32 bits count
        tensor = torch.empty(shape, device=self._device)
        return tensor.normal_(0.0, spread, generator=generator)


# The small tokenizer: byte-level BPE with at most 704 ids, for this project's small models. Its
# merges are learned from the few instructions below, so the words of a tabletop task are one token
# each and any other text still has a spelling. Id 0 is BOS and opens every prompt, id 1 ends a
# sequence. BitVLA's has other words for the two, and its own prompt.

_SPECIAL = {
    "openvla": ("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    "bitvla": ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
}
_COLORS = "red green blue yellow orange purple white black brown pink grey"
_THINGS = (
    "cube block plate bowl mug cup box drawer cabinet stove basket tray table ball bottle can"
    " spoon knife fork book caddy ketchup soup sauce butter milk cheese wine rack moka pot pan"
)
_VERBS = (
    "pick up the and place it on in into next to put push pull open close turn move stack reach"
    " touch lift grasp slide"
)
_WHERE = (
    "left right top bottom front back middle first second third between of from under above"
    " behind near far corner centre center side"
)


def corpus() -> list[str]:
    """The instructions that the merges are learned from."""
    words = " ".join((_COLORS, _THINGS, _VERBS, _WHERE)).split()
    tasks = [
        f"pick up the {color} {thing} and place it on the {other}"
        for color in _COLORS.split()
        for thing in ("cube", "block", "bowl")
        for other in ("plate", "table", "tray")
    ]
    prompts = [PROMPTS["openvla"].format(task) for task in tasks]
    return prompts + [" " + word for word in words] * 4 + [PROMPTS["qwen"].format("x")] * 4


def build_tokenizer(style: str = "openvla") -> Any:
    """A ``tokenizers.Tokenizer`` for prompts of a style; the same on every call."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special, sentences = _SPECIAL[style], corpus()
    if style == "bitvla":
        sentences += [PROMPTS[style].replace(IMAGE, "").format("x")] * 4
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_VOCAB,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
    )
    return tokenizer


def write_tokenizer(path: Path, style: str = "openvla", more: tuple[str, ...] = ()) -> None:
    """Write ``tokenizer.json``; ``more`` special tokens stand behind the others."""
    tokenizer = build_tokenizer(style)
    tokenizer.add_special_tokens(list(more))
    tokenizer.save(str(path))


def tokenizer_directory() -> Path:
    """The small tokenizer alone, for weights that never go to disk."""
    return cached(f"tokenizer-{_VERSION}", lambda to: write_tokenizer(to / "tokenizer.json"))
