"""Small flow models of odd shapes, their folders, and transformers' pi0 with the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from golden.flow.seeded import draw, weight
from support.engine import Again
from vla_ros.engine.families.base import LoadedPolicy, LoadOptions, Placement
from vla_ros.engine.families.lerobot import LerobotFamily
from vla_ros.engine.families.registry import family_of
from vla_ros.engine.io.config import TextConfig, TowerConfig
from vla_ros.engine.io.flow_config import FlowConfig, Shapes
from vla_ros.engine.io.quantize import DECODER, HEAD, PreparedWeights
from vla_ros.engine.io.weights import Expected, Weights
from vla_ros.engine.layers.flow_matching import Guidance, generator_for
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.tuner import Tuner
from vla_ros.engine.models.golden_ints import position_ids
from vla_ros.engine.models.pi0 import Pi0, pi0_expected
from vla_ros.engine.models.smolvla import SmolVLA, smolvla_expected
from vla_ros.engine.models.vlm_with_expert import VLMWithExpert
from vla_ros_lab.bench.flow_rivals import transformers_pi0

LIKE = torch.zeros(0)
_TOWER = TowerConfig(30, 2, 3, 44, image_size=28, patch=7)
_GEMMA = TextConfig("gemma", 120, 36, 52, 3, heads=4, kv_heads=1, head_dim=10, tied=True)
_LLAMA = TextConfig("llama", 120, 42, 50, 4, heads=6, kv_heads=2, head_dim=14, rms_eps=1e-5)
PI_SHAPES = Shapes(_TOWER, _GEMMA, replace(_GEMMA, vocab_size=1, hidden_size=22,
                                           intermediate_size=34))  # fmt: skip
SMOLVLA_SHAPES = Shapes(_TOWER, _LLAMA, replace(_LLAMA, hidden_size=26, intermediate_size=38), 2)


def tiny_flow(kind: str, **changes: Any) -> FlowConfig:
    """A config of odd shapes: 2 cameras, 7 actions, 8 of state."""
    small = kind == "smolvla"
    config = FlowConfig(
        kind=kind,
        shapes=SMOLVLA_SHAPES if small else PI_SHAPES,
        horizon=9,
        steps=4,
        state_width=13,
        action_width=11,
        state_dim=8,
        action_dim=7,
        cameras=("front", "wrist"),
        max_text=70 if kind == "pi05" else 30,
        image_size=28,
        self_every=2 if small else 0,
        vlm="tiny" if small else "",
    )
    return replace(config, **changes)


def expected_of(config: FlowConfig) -> Expected:
    return smolvla_expected(config) if config.kind == "smolvla" else pi0_expected(config)


class MemoryWeights(Weights):
    """Tensors that are in memory already; each is given away once."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def take(self, name: str) -> torch.Tensor:
        return self._tensors.pop(name).float()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)


def tensors_of(config: FlowConfig) -> dict[str, torch.Tensor]:
    """All tensors that a checkpoint must have, drawn by name."""
    gemma = config.kind != "smolvla"
    must = expected_of(config).must
    return {n: torch.from_numpy(weight(n, s, gemma).copy()) for n, s in must.items()}


def model_of(
    config: FlowConfig,
    capture: Capture | None = None,
    dtype: torch.dtype = torch.float32,
    table: str = "exact",
) -> VLMWithExpert:
    """A model with the weights of :func:`tensors_of`."""
    family = SmolVLA if config.kind == "smolvla" else Pi0
    weights = MemoryWeights(tensors_of(config))
    return family(config, weights, position_ids(config, table), LIKE.to(dtype), capture)


def tuned_model(
    config: FlowConfig, tuner: Tuner, dtype: torch.dtype = torch.float32
) -> VLMWithExpert:
    """The same with the tuner's weights, and graphs that stand in."""
    family = SmolVLA if config.kind == "smolvla" else Pi0
    weights = PreparedWeights(MemoryWeights(tensors_of(config)), (DECODER, HEAD), tuner.of)
    capture = tuner.while_capturing(Again())
    return family(config, weights, position_ids(config, "exact"), LIKE.to(dtype), capture)


def chunk_of(
    model: VLMWithExpert, config: FlowConfig, name: str = "a", guidance: Guidance | None = None
) -> torch.Tensor:
    """A chunk of two views and a short prompt."""
    pixels, ids, state = inputs_of(config, 2, 11, name)
    prefix = model.prefill(model.image_features(pixels), ids, state)
    return model.sample_actions(prefix, None, noise_of(config, name), guidance)


def chunk_of_preset(preset: str, place: Placement) -> torch.Tensor:
    """A chunk of a small preset of any family, on the CPU."""
    source = f"random:{preset}"
    model = family_of(source).load(source, LoadOptions(), place).model
    generator = torch.Generator().manual_seed(2)
    given = model.example(5, generator)
    features = model.image_features(given.pixels.to(place.device))
    prefix = model.prefill(features, given.ids.to(place.device), given.state)
    return model.sample_actions(prefix, None, model.noise(generator)).cpu()


def inputs_of(
    config: FlowConfig, views: int, words: int, name: str = "a"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pixels [views, 3, s, s], ids [words], padded state."""
    side = config.image_size
    pixels = torch.from_numpy(draw(f"{name}/pixels", views, 3, side, side)).clamp(-1, 1)
    vocab = config.shapes.text.vocab_size
    ids = torch.from_numpy(draw(f"{name}/ids", words)).abs().mul(1e4).long() % vocab
    state = torch.zeros(config.state_width)
    state[: config.state_dim] = torch.from_numpy(draw(f"{name}/state", config.state_dim))
    return pixels, ids, state


def noise_of(config: FlowConfig, name: str = "a") -> torch.Tensor:
    return torch.from_numpy(draw(f"{name}/noise", config.horizon, config.action_width))


def hugging_face_pi0(config: FlowConfig) -> Any:
    """transformers' PI0ForConditionalGeneration with the weights of :func:`tensors_of`."""
    tensors = tensors_of(config)
    return transformers_pi0(config, tensors.__getitem__, list(tensors))


def load_folder(
    directory: Path, placement: Placement, options: LoadOptions = LoadOptions()
) -> LoadedPolicy:
    """A folder of pi0, pi0.5 or SmolVLA, as the engine loads it."""
    return LerobotFamily("pi0", "pi05", "smolvla").load(directory, options, placement)


def noise_for(seed: int, stamp_ns: int, horizon: int, width: int) -> torch.Tensor:
    """The noise [H, D] of one request to pi0, pi0.5 or SmolVLA."""
    return torch.randn(horizon, width, generator=generator_for(seed, stamp_ns))


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
