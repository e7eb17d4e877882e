"""From a LeRobot folder or hub id to LeRobot's own objects. Imports torch and lerobot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.checkpoints import hub
from vla_ros.engine.errors import CheckpointError
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.interpreter import SETUP
from vla_ros.policies.lerobot.folder import CONFIG, POSTPROCESSOR, PREPROCESSOR

#: Fields that make LeRobot fetch weights which the checkpoint's own then replace.
_FETCHING = {"load_vlm_weights": False, "pretrained_backbone_weights": None}


def load(directory: Path, spec: PolicySpec) -> tuple[Any, Any, Any]:
    """LeRobot's policy and the processors before and after it, on the device.

    PolicyRefused: in one line, what LeRobot said. Whether the weights are the file's is
    :mod:`vla_ros.policies.lerobot.weights`' business.
    """
    try:
        return _load(directory, spec)
    except PolicyRefused:
        raise
    except (Exception, SystemExit) as error:  # everybody has kinds of their own; a parser exits
        reason = " ".join(str(error).split())
        raise PolicyRefused(
            f"LeRobot cannot load {directory}: {type(error).__name__}: {reason}"
        ) from error


def _load(directory: Path, spec: PolicySpec) -> tuple[Any, Any, Any]:
    try:
        from lerobot.configs import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError as error:
        raise PolicyRefused(f"LeRobot cannot be imported ({error}): {SETUP}") from error

    fields = _fields(spec.options, directory)
    tokenizer = str(spec.schedule_options.get("tokenizer", ""))
    if spec.device.startswith("cuda") and not torch.cuda.is_available():
        raise PolicyRefused(f"device is {spec.device!r}, and LeRobot's torch sees no such device")
    config = PreTrainedConfig.from_pretrained(
        directory, cli_overrides=[f"--{name}={value}" for name, value in fields.items()]
    )
    config.device, config.pretrained_path = spec.device, directory
    for name, value in _FETCHING.items():
        if hasattr(config, name):
            setattr(config, name, value)
    local = directory / str(getattr(config, "vlm_model_name", ""))
    if local != directory and local.is_dir():
        config.vlm_model_name = str(local)  # beside the weights, not on the hub
    policy = get_policy_class(config.type).from_pretrained(str(directory), config=config)
    policy.to(spec.device)
    policy.eval()
    before, after = make_pre_post_processors(
        config,
        pretrained_path=str(directory),
        preprocessor_overrides=_overrides(directory / PREPROCESSOR, spec.device, tokenizer),
        postprocessor_overrides=_overrides(directory / POSTPROCESSOR, "cpu", ""),
    )
    return policy, before, after


def _fields(options: Mapping[str, str], directory: Path) -> Mapping[str, str]:
    """Fields of config.json to replace. PolicyRefused: it has none of that name."""
    there = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    if unknown := sorted(set(options) - set(there)):
        raise PolicyRefused(
            f"policy_options has {', '.join(unknown)}: of lerobot they are fields of the"
            f" checkpoint's config.json: {', '.join(sorted(there))}"
        )
    return options


def _overrides(path: Path, device: str, tokenizer: str) -> dict[str, dict[str, Any]]:
    """What replaces the steps' own settings: LeRobot refuses names that a file does not have."""
    steps = json.loads(path.read_text(encoding="utf-8")).get("steps", [])
    known = {step.get("registry_name"): step.get("config") or {} for step in steps}
    wanted: dict[str, dict[str, Any]] = {
        "device_processor": {"device": device},
        "rename_observations_processor": {"rename_map": {}},  # the names are the policy's already
    }
    own = str(known.get("tokenizer_processor", {}).get("tokenizer_name") or "")
    if tokenizer:
        wanted["tokenizer_processor"] = {"tokenizer_name": tokenizer}
    elif own and (path.parent / own).is_dir():
        wanted["tokenizer_processor"] = {"tokenizer_name": str(path.parent / own)}
    return {name: values for name, values in wanted.items() if name in known}


def folder_of(checkpoint: str) -> Path:
    """A folder as it is, a hub id's commit from the hub's cache. PolicyRefused: there is none."""
    try:
        return hub.folder_of(checkpoint, wanted=("*.json", "*.safetensors"), judge=None)
    except CheckpointError as error:
        raise PolicyRefused(f"checkpoint: {error}") from error
