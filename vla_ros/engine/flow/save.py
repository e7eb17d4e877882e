"""Write a folder in LeRobot's layout, as its ``save_pretrained`` does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.flow.config import ACTION, STATE, FlowConfig, flow_config_json
from vla_ros.engine.flow.processors import (
    MODES,
    NEW_LINE,
    NORMALIZER,
    POSTPROCESSOR,
    PREPROCESSOR,
    STATE_PROMPT,
    TOKENIZER,
    UNNORMALIZER,
    Processors,
    Scaler,
)


def save_folder(
    directory: Path,
    config: FlowConfig,
    tensors: Mapping[str, torch.Tensor],
    processors: Processors,
    discrete: Mapping[str, object] | None = None,
) -> None:
    """Everything but a tokenizer; ``discrete`` is the content of the gate's file.

    Raises ValueError for relative actions, which nothing here writes.
    """
    if processors.relative:
        raise ValueError("relative actions are read, not written")
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "config.json", flow_config_json(config))
    _write_processors(directory, config, processors)
    if discrete is not None:
        _write(directory / "discrete.json", discrete)
    save_weights(directory / "model.safetensors", tensors)


def save_weights(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """A ``model.safetensors`` with LeRobot's names."""
    from safetensors.torch import save_file

    save_file({f"model.{n}": t.contiguous() for n, t in tensors.items()}, str(path))


def _write_processors(directory: Path, config: FlowConfig, processors: Processors) -> None:
    state, action = processors.state, processors.action
    normalise = _scaling(processors, NORMALIZER, "policy_preprocessor_step_3")
    words = {
        "registry_name": TOKENIZER,
        "config": {
            "max_length": config.max_text, "task_key": "task", "padding_side": "right",
            "padding": "max_length", "truncation": True, "tokenizer_name": processors.tokenizer,
        },
    }  # fmt: skip
    prompt = STATE_PROMPT if config.kind == "pi05" else config.kind + NEW_LINE
    before = [_step("rename_observations_processor", rename_map={}), _step("to_batch_processor"),
              normalise, _step(prompt), words, _step("device_processor", device="cpu")]  # fmt: skip
    if config.kind != "pi05":
        before = [*before[:2], _step(prompt), words, before[-1], normalise]
    restore = _scaling(processors, UNNORMALIZER, "policy_postprocessor_step_0")
    after = [restore, _step("device_processor", device="cpu")]
    for name, steps in ((PREPROCESSOR, before), (POSTPROCESSOR, after)):
        _write(directory / name, {"name": name.removesuffix(".json"), "steps": steps})
    stored = {**_statistics(STATE, state), **_statistics(ACTION, action)}
    from safetensors.torch import save_file

    for step in (normalise, restore):
        save_file(stored, str(directory / step["state_file"]))


def _scaling(processors: Processors, name: str, file: str) -> dict[str, Any]:
    modes = {"VISUAL": "IDENTITY", "STATE": processors.state.mode, "ACTION": processors.action.mode}
    settings = {"eps": processors.state.eps, "norm_map": modes}
    return {
        "registry_name": name,
        "config": settings,
        "state_file": f"{file}_{name}.safetensors",
    }


def _statistics(key: str, scaler: Scaler) -> dict[str, torch.Tensor]:
    values = (scaler.low, scaler.high)
    return {f"{key}.{n}": v for n, v in zip(MODES[scaler.mode], values, strict=False)}


def _step(name: str, **settings: object) -> dict[str, Any]:
    return {"registry_name": name, "config": settings}


def _write(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
