"""Evo-1 with random weights, in LeRobot's layout: the real loader, nobody's data."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from vla_ros.engine.checkpoints.config import TextConfig, TowerConfig
from vla_ros.engine.checkpoints.small_tokenizer import TEXT_VOCAB, build_tokenizer
from vla_ros.engine.flow.drawn import Drawn
from vla_ros.engine.flow.evo1.config import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    INTERNVIT,
    QWEN,
    Evo1Config,
    evo1_config_json,
)
from vla_ros.engine.flow.evo1.gate import position_table
from vla_ros.engine.flow.evo1.model import evo1_expected
from vla_ros.engine.flow.evo1.preparation import (
    ACTION_STEP,
    IMAGE_END,
    IMAGE_START,
    IMAGE_TOKEN,
    PAD_ACTION,
    PAD_STATE,
    Scalers,
)
from vla_ros.engine.flow.processors import (
    NORMALIZER,
    POSTPROCESSOR,
    PREPROCESSOR,
    UNNORMALIZER,
    Scaler,
)
from vla_ros.engine.flow.random import STATE_DIM
from vla_ros.engine.flow.save import save_weights
from vla_ros.engine.flow.weights import Shape

VERSION = 1  # of what is written; a new one makes cached folders void
IMAGE_TOKENS = (IMAGE_START, IMAGE_END, IMAGE_TOKEN)

_TOWER = TowerConfig(
    72, 3, 3, 152, image_size=56, patch=14, class_token=True, layer_scale=True,
    mean=IMAGENET_MEAN, std=IMAGENET_STD,
)  # fmt: skip
_TEXT = TextConfig("qwen2", TEXT_VOCAB + len(IMAGE_TOKENS), 84, 216, 3, 6, 2, 14, 1e6, 1e-6)
_CAMERAS = ("front", "wrist")

PRESETS: dict[str, Evo1Config] = {
    "evo1-small": Evo1Config(
        _TOWER, _TEXT, horizon=10, steps=8, state_dim=STATE_DIM, action_dim=7, cameras=_CAMERAS,
        state_width=14, action_width=12, blocks=3, heads=4, hidden=48, state_hidden=40,
        max_text=96, vlm="none",
    ),
    "evo1": Evo1Config(
        INTERNVIT, TextConfig("qwen2", QWEN.vocab_size, 896, 4864, 14, 14, 2, 64, 1e6, 1e-6),
        horizon=50, steps=32, state_dim=STATE_DIM, action_dim=7, cameras=_CAMERAS,
    ),
}  # fmt: skip


def drawn_evo1(config: Evo1Config, seed: int, device: torch.device) -> Drawn:
    """The weights of a checkpoint of ``config``."""
    return Drawn(evo1_expected(config).must, seed, device, _tables, _gain)


def write_evo1(directory: Path, config: Evo1Config, seed: int) -> None:
    """A folder as LeRobot saves it, with random float32 weights and a small tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = drawn_evo1(config, seed, torch.device("cpu"))
    save_weights(directory / "model.safetensors", {name: drawn.take(name) for name in drawn.shapes})
    _write(directory / "config.json", evo1_config_json(config))
    _write_processors(directory, config, random_scalers(config))
    write_evo1_tokenizer(directory / "tokenizer.json")


def write_evo1_tokenizer(path: Path) -> None:
    """The small tokenizer, which knows the places of images too."""
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens(list(IMAGE_TOKENS))
    tokenizer.save(str(path))


def random_scalers(config: Evo1Config) -> Scalers:
    """Actions of a tenth of LIBERO's units, the last one a gripper about 0.5."""
    middle, spread = torch.zeros(config.action_dim), torch.full((config.action_dim,), 0.2)
    middle[-1], spread[-1] = 0.5, 0.5
    wide = 3 * torch.ones(config.state_dim)
    return Scalers(
        Scaler("MIN_MAX", -wide, wide), Scaler("MIN_MAX", middle - spread, middle + spread)
    )


def _tables(name: str, shape: Shape) -> torch.Tensor | None:
    if name.endswith(".pe"):
        return position_table(shape[1], shape[2])[None]
    if "lambda_" in name:
        return torch.full(shape, 0.5)
    return None


def _gain(name: str) -> float:
    return 0.3 if name.startswith("action_head.mlp_head.fc2") else 1.0


def _write_processors(directory: Path, config: Evo1Config, scalers: Scalers) -> None:
    stored = {}
    for key, scaler, width in (
        ("observation.state", scalers.state, config.state_width),
        ("action", scalers.action, config.action_width),
    ):
        for kind, values, pad in (("min", scaler.low, -1.0), ("max", scaler.high, 1.0)):
            rest = torch.full((width - len(values),), pad)  # as LeRobot pads them
            stored[f"{key}.{kind}"] = torch.cat((values, rest))
    modes = {"VISUAL": "IDENTITY", "STATE": scalers.state.mode, "ACTION": scalers.action.mode}
    gripper = config.gripper
    before = [
        _step("rename_observations_processor", rename_map={}),
        _step("to_batch_processor"),
        _step(PAD_STATE, max_state_dim=config.state_width),
        _step(PAD_ACTION, max_action_dim=config.action_width),
        _step(NORMALIZER, eps=1e-8, norm_map=modes),
        _step("device_processor", device="cpu"),
    ]
    after = [
        _step(UNNORMALIZER, eps=1e-8, norm_map=modes),
        _step(ACTION_STEP, action_dim=config.action_dim, binarize_gripper=gripper is not None),
        _step("device_processor", device="cpu"),
    ]
    for name, steps in ((PREPROCESSOR, before), (POSTPROCESSOR, after)):
        base = name.removesuffix(".json")
        for number, step in enumerate(steps):
            if step["registry_name"] in (NORMALIZER, UNNORMALIZER):
                file = f"{base}_step_{number}_{step['registry_name']}.safetensors"
                step["state_file"] = file
                save_file(stored, str(directory / file))
        _write(directory / name, {"name": base, "steps": steps})


def _step(name: str, **settings: object) -> dict[str, object]:
    return {"registry_name": name, "config": settings}


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
