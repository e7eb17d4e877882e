"""Checkpoints with random weights: the same code path without anybody's data.

``random:small``, ``random:small-oft``, ``random:small-chunk`` and ``random:cpu`` are written to a
cache directory and read back through the real loader, as is ``random:bitvla-small``;
``random:openvla-7b``, ``random:minivla`` and ``random:bitvla`` are too large for that and are made
on the device. So that greedy decoding
gives action tokens, the rows of all other tokens are zero in the head (small in an embedding that
is also the head).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.checkpoints.bitvla.random import PRESETS as BITVLA
from vla_ros.engine.checkpoints.bitvla.random import draw_parts, statistics, write_folder
from vla_ros.engine.checkpoints.cache import cached
from vla_ros.engine.checkpoints.config import (
    DINOV2_L,
    SIGLIP_SO400M,
    ModelConfig,
    TextConfig,
    TowerConfig,
    config_json,
)
from vla_ros.engine.checkpoints.openvla import Checkpoint, load_checkpoint, save_checkpoint
from vla_ros.engine.checkpoints.shapes import LANGUAGE, Tensors, expected_shapes
from vla_ros.engine.checkpoints.small_tokenizer import write_tokenizer
from vla_ros.engine.errors import CheckpointError

PREFIX = "random:"
_VERSION = 5  # of what is written; a new one makes what is cached void
SMALL_VOCAB = 960  # 704 text tokens, then 256 action tokens
LARGE = 300_000_000  # parameters from which weights are not written to disk

_SMALL_TOWER = TowerConfig(192, 7, 3, 768, image_size=128, patch=16)
_SMALL_TEXT = TextConfig(
    vocab_size=SMALL_VOCAB + 64, hidden_size=256, intermediate_size=704, layers=4, heads=4,
    kv_heads=4, head_dim=64,
)  # fmt: skip
_CPU_TEXT = TextConfig(
    hidden_size=768, vocab_size=32064, intermediate_size=2048, layers=12, heads=12, kv_heads=12,
    head_dim=64,
)  # fmt: skip
_QWEN = TextConfig(
    "qwen2", vocab_size=151936, hidden_size=896, intermediate_size=4864, layers=24, heads=14,
    kv_heads=2, head_dim=64, rope_theta=1e6, tied=True,
)  # fmt: skip

PRESETS: dict[str, ModelConfig] = {
    "small": ModelConfig(_SMALL_TEXT, (_SMALL_TOWER,), SMALL_VOCAB),
    # OpenVLA-OFT's architecture: a chunk of 8 actions from one bidirectional pass
    "small-oft": ModelConfig(_SMALL_TEXT, (_SMALL_TOWER,), SMALL_VOCAB, chunk=8, parallel=True),
    # the same chunk as 56 tokens, one after another
    "small-chunk": ModelConfig(_SMALL_TEXT, (_SMALL_TOWER,), SMALL_VOCAB, chunk=8),
    "cpu": ModelConfig(_CPU_TEXT, (_SMALL_TOWER,), 32000),
    "openvla-7b": ModelConfig(
        TextConfig(vocab_size=32064), (DINOV2_L, SIGLIP_SO400M), 32000, empty_token_id=29871
    ),
    # the same with chunks of 8 actions, as 56 tokens
    "openvla-7b-chunk": ModelConfig(
        TextConfig(vocab_size=32064),
        (DINOV2_L, SIGLIP_SO400M),
        32000,
        empty_token_id=29871,
        chunk=8,
    ),
    "minivla": ModelConfig(_QWEN, (DINOV2_L, SIGLIP_SO400M), 151921, prompt_style="qwen"),
    **BITVLA,
}


def norm_stats(dim: int = 7) -> dict[str, Any]:
    """Bounds of LIBERO's controller units [-1, 1], the last dimension a gripper in [0, 1]."""
    action = {"q01": [-1.0] * (dim - 1) + [0.0], "q99": [1.0] * dim, "mask": [True] * dim}
    return {"random": {"action": action}}


def load_random(name: str, seed: int, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """``random:<preset>`` -> a checked checkpoint."""
    preset = name.removeprefix(PREFIX)
    if preset not in PRESETS:
        raise CheckpointError(f"{name!r} is unknown; there are random:{', random:'.join(PRESETS)}")
    config = PRESETS[preset]
    if config.text.ternary:
        return _bitvla(preset, config, seed, device, dtype)
    if parameters(config) > LARGE:
        return in_memory(config, seed, device, dtype)
    name = f"{preset}-{seed}-{_fingerprint(config)}"
    directory = cached(name, lambda scratch: write_random(scratch, config, seed))
    return load_checkpoint(str(directory), device, dtype)


def _bitvla(
    preset: str, config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Checkpoint:
    shapes = expected_shapes(config)
    words = partial(write_tokenizer, style="bitvla")
    if parameters(config) <= LARGE:
        name = f"{preset}-{seed}-{_fingerprint(config)}"
        directory = cached(name, lambda to: write_folder(to, config, shapes, seed, words))
        return load_checkpoint(str(directory), device, dtype)
    directory = cached(f"tokenizer-bitvla-{_VERSION}", lambda to: words(to / "tokenizer.json"))
    like = torch.empty(0, device=device, dtype=dtype)
    parts, rows, digest = draw_parts(config, shapes, seed, like)
    return Checkpoint(
        config, parts.tensors, statistics(config), directory, digest, parts.ternary, rows
    )


def random_config(name: str) -> ModelConfig | None:
    """What ``random:<preset>`` will be; None of what is unknown."""
    return PRESETS.get(name.removeprefix(PREFIX))


def in_memory(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype, dim: int = 7
) -> Checkpoint:
    """Random weights made on the device; only the tokenizer goes to disk."""
    directory = tokenizer_directory()
    tensors = random_tensors(config, seed, device, dtype)
    digest = hashlib.sha256(f"random {config!r} {seed} {dtype}".encode()).hexdigest()
    return Checkpoint(config, tensors, norm_stats(dim), directory, digest)


def tokenizer_directory() -> Path:
    """The small tokenizer alone, for weights that never go to disk."""
    return cached(
        f"tokenizer-{_VERSION}", lambda scratch: write_tokenizer(scratch / "tokenizer.json")
    )


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
            fan_in = int(torch.Size(shape[1:]).numel())
            tensor.normal_(0.0, _gain(name) * fan_in**-0.5, generator=generator)
            if "embed_tokens" in name:
                # A tied embedding is the head too: a loud token would only repeat itself.
                tensor *= fan_in**0.5 * (0.05 if config.text.tied else 1.0)
        out[name] = tensor
    _favour_actions(config, out)
    return out


def _gain(name: str) -> float:
    """Sharp attention and loud image features: frames that differ must say different things."""
    if ".q_proj." in name or ".k_proj." in name:
        return 2.0
    if name == "action_head.model.fc2.weight":
        return 0.2  # values within [-1, 1] almost always, as a trained head's are
    return 4.0 if name.startswith("projector.") else 1.0


def _favour_actions(config: ModelConfig, tensors: Tensors) -> None:
    first, last = config.action_vocab - config.bins, config.action_vocab
    tied = config.text.tied
    name = LANGUAGE + ("model.embed_tokens.weight" if tied else "lm_head.weight")
    head = tensors[name]
    head[:first] *= 0.1 if tied else 0.0
    head[last:] *= 0.1 if tied else 0.0


def _fingerprint(config: ModelConfig) -> str:
    text = json.dumps([_VERSION, config_json(config, {})], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
