"""Flow policies with random weights, in LeRobot's layout: the real loader, nobody's data.

``random:pi0-small``, ``random:pi05-small`` and ``random:smolvla-small`` are written to a cache
directory and read back; ``random:smolvla``, ``random:pi0`` and ``random:pi05`` have the published
sizes and draw their weights as they are loaded.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.cache import cached
from vla_ros.engine.checkpoints.config import TextConfig, TowerConfig
from vla_ros.engine.checkpoints.random import PREFIX, tokenizer_directory
from vla_ros.engine.checkpoints.small_tokenizer import TEXT_VOCAB, write_tokenizer
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.config import FlowConfig, Shapes, parse_flow_config
from vla_ros.engine.flow.gate import check_discrete, discrete_json, known_discrete
from vla_ros.engine.flow.load import (
    FlowPolicy,
    build_model,
    expected_tensors,
    load_folder,
)
from vla_ros.engine.flow.processors import Processors, Scaler
from vla_ros.engine.flow.save import save_folder
from vla_ros.engine.flow.text import PromptTokenizer
from vla_ros.engine.flow.weights import Dress, as_they_are
from vla_ros.engine.packed.graphs import Capture

_VERSION = 2  # of what is written; a new one makes cached folders void
STATE_DIM = 9  # the tabletop's joints

_TOWER = TowerConfig(72, 3, 3, 152, image_size=56, patch=14)
_GEMMA = TextConfig("gemma", TEXT_VOCAB, 88, 232, 3, heads=5, kv_heads=1, head_dim=24, tied=True)
_LLAMA = TextConfig("llama", TEXT_VOCAB, 90, 216, 4, heads=6, kv_heads=2, head_dim=22)
_PI = Shapes(_TOWER, _GEMMA, replace(_GEMMA, vocab_size=1, hidden_size=56, intermediate_size=152))
_SMOL = Shapes(
    replace(_TOWER, image_size=84), _LLAMA,
    replace(_LLAMA, hidden_size=66, intermediate_size=168), shuffle=3,
)  # fmt: skip


def _small(kind: str, shapes: Shapes) -> FlowConfig:
    small = kind == "smolvla"
    return FlowConfig(
        kind=kind, shapes=shapes, horizon=10, steps=5, state_width=14, action_width=13,
        state_dim=STATE_DIM, action_dim=7, cameras=("front", "wrist"),
        max_text=200 if kind == "pi05" else 48, image_size=shapes.vision.image_size,
        self_every=2 if small else 0, vlm="none" if small else "",
    )  # fmt: skip


def _published(kind: str) -> FlowConfig:
    cameras = {f"observation.images.{n}": {"type": "VISUAL"} for n in ("front", "wrist")}
    state = {"observation.state": {"type": "STATE", "shape": [STATE_DIM]}}
    action = {"action": {"type": "ACTION", "shape": [7]}}
    return parse_flow_config(
        {"type": kind, "input_features": {**cameras, **state}, "output_features": action}
    )


PRESETS: dict[str, FlowConfig] = {
    "pi0-small": _small("pi0", _PI),
    "pi05-small": _small("pi05", _PI),
    "smolvla-small": _small("smolvla", _SMOL),
    "pi0": _published("pi0"),
    "pi05": _published("pi05"),
    "smolvla": _published("smolvla"),
}


def preset_of(name: str) -> FlowConfig:
    """The config of ``random:<preset>``."""
    preset = name.removeprefix(PREFIX)
    if preset not in PRESETS:
        raise CheckpointError(f"{name!r} is unknown; there are random:{', random:'.join(PRESETS)}")
    return PRESETS[preset]


def load_random_flow(
    name: str,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    steps: int | None = None,
    capture: Capture | None = None,
    dress: Dress = as_they_are,
) -> FlowPolicy:
    """``random:<preset>`` -> a policy that is ready to run."""
    config, preset = preset_of(name), name.removeprefix(PREFIX)
    if not preset.endswith("-small"):
        config = replace(config, steps=steps or config.steps)
        return _drawn(config, seed, device, dtype, capture, dress)
    name = f"{preset}-{seed}-{_fingerprint(config)}"
    directory = cached(name, lambda scratch: write_random_flow(scratch, config, seed))
    return load_folder(directory, device, dtype, steps=steps, capture=capture, dress=dress)


class DrawnWeights:
    """Draws what is asked for: each tensor from the seed and its name."""

    def __init__(self, config: FlowConfig, seed: int, device: torch.device) -> None:
        self.shapes = expected_tensors(config).must
        self._seed, self._device = seed, device
        self._offset = config.kind != "smolvla"

    def take(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        generator = torch.Generator(self._device)
        generator.manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))  # 32 bits count
        tensor = torch.empty(shape, device=self._device)
        if len(shape) == 1:
            norm = name.endswith(("norm.weight", "norm1.weight", "norm2.weight"))
            language = self._offset and ("language_model" in name or "gemma_expert" in name)
            return tensor.fill_(1.0 if norm and not language else 0.0)
        fan_in = int(torch.Size(shape[1:]).numel())
        gain = 2.0 if ".q_proj." in name or ".k_proj." in name else 1.0
        gain = 0.3 if name.startswith("action_out_proj") else gain
        return tensor.normal_(0.0, gain * fan_in**-0.5, generator=generator)


def write_random_flow(directory: Path, config: FlowConfig, seed: int) -> None:
    """Write a LeRobot folder with random float32 weights and the small tokenizer."""
    drawn = DrawnWeights(config, seed, torch.device("cpu"))
    tensors = {name: drawn.take(name) for name in drawn.shapes}
    save_folder(directory, config, tensors, _processors(config), discrete_json(config))
    write_tokenizer(directory / "tokenizer.json")


def _processors(config: FlowConfig) -> Processors:
    """Actions of a tenth of LIBERO's units, the last one a gripper about 0.5."""
    zeros, ones = torch.zeros(config.state_dim), torch.ones(config.state_dim)
    middle, spread = torch.zeros(config.action_dim), torch.full((config.action_dim,), 0.1)
    middle[-1], spread[-1] = 0.5, 0.25
    state, action = Scaler("MEAN_STD", zeros, ones), Scaler("MEAN_STD", middle, spread)
    if config.kind == "pi05":
        state = Scaler("QUANTILES", -3 * ones, 3 * ones)
        action = Scaler("QUANTILES", middle - spread, middle + spread)
    return Processors(state, action, "")


def _drawn(
    config: FlowConfig,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    capture: Capture | None,
    dress: Dress,
) -> FlowPolicy:
    """The weights drawn as they are read; only the tokenizer goes to disk."""
    words = PromptTokenizer(tokenizer_directory(), None, "", config.shapes.text.vocab_size)
    positions = check_discrete(config, known_discrete(config), f"random:{config.kind}")
    like = torch.empty(0, device=device, dtype=dtype)
    weights = dress(DrawnWeights(config, seed, device))
    model = build_model(config, weights, positions, like, capture)
    digest = hashlib.sha256(f"random {config!r} {seed} {dtype}".encode()).hexdigest()
    return FlowPolicy(config, model, _processors(config), words, digest)


def _fingerprint(config: FlowConfig) -> str:
    text = json.dumps([_VERSION, asdict(config)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
