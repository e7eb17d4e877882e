"""An OpenVLA-OFT release: OpenVLA's safetensors, and its heads in ``.pt`` files beside them.

Source: openvla-oft ``experiments/robot/openvla_utils.py`` (which file is which head),
``prismatic/vla/constants.py`` (chunks, state and bounds of each robot). Neither the chunk nor
the number of cameras is written anywhere in a release; they follow from the robot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from vla_ros.engine.convert.adapter import base_of, refuse_baseless
from vla_ros.engine.convert.pickles import read_pickle
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.openvla import expected_shapes
from vla_ros.engine.io.checkpoint import norm_stats_of
from vla_ros.engine.io.config import ModelConfig, parse_config
from vla_ros.engine.io.files import copy_beside, naming, read_json, write_json
from vla_ros.engine.io.processors import read_preprocessor
from vla_ros.engine.io.weights import HEADS, Expected, check_tensors, read_headers

_STEP = re.compile(r"--(.+)_checkpoint\.pt$")
_NOT_BUILT = {
    "vision_backbone": (
        "FiLM: its vision towers read the instruction, so their features cannot be computed once"
        " for an image and shared"
    ),
    "noisy_action_projector": (
        "a diffusion head: each of its 50 steps is a pass of the whole language model"
    ),
}


@dataclass(frozen=True, slots=True)
class OftRobot:
    """openvla-oft's constants of a robot. ``state``: values of proprio."""

    name: str
    chunk: int
    dim: int
    state: int
    cameras: int


#: LIBERO first: what fits none is taken for it, as the original does.
ROBOTS = (
    OftRobot("LIBERO", 8, 7, 8, 2),
    OftRobot("ALOHA", 25, 14, 14, 3),
    OftRobot("Bridge", 5, 7, 7, 1),
)


def convert_oft(
    source: Path,
    scratch: Path,
    *,
    chunk: int | None = None,
    images: int | None = None,
    step: str | None = None,
    base: Path | None = None,
) -> str:
    """Fill ``scratch`` with the release ``source``; returns what was assumed, in one line."""
    refuse_unbuilt(source)
    refuse_baseless(source, base)
    heads = {name: _head_file(source, name, step) for name in HEADS}
    raw = read_json(source / "config.json" if base is None else base / "config.json")
    config = _plain(source if base is None else base, raw)
    head = _read(heads["action_head"])
    proprio = _read(heads["proprio_projector"])
    dim, state = _sizes(source, head, proprio)
    robot = next((r for r in ROBOTS if r.dim == dim and state in (0, r.state)), ROBOTS[0])
    chunk, images = chunk or robot.chunk, images or robot.cameras
    whole = replace(
        config, parallel=True, chunk=chunk, images=images, action_dim=dim, proprio_dim=state
    )
    parts = {"action_head": head, "proprio_projector": proprio}
    for name, tensors in parts.items():
        if tensors:
            named = {f"{name}.{n}": t.contiguous() for n, t in tensors.items()}
            save_file(named, scratch / f"{name}.safetensors")
    saved = [scratch / f"{name}.safetensors" for name, tensors in parts.items() if tensors]
    wanted = {n: s for n, s in expected_shapes(whole).items() if n.startswith(HEADS)}
    check_tensors(source, read_headers(saved), Expected(wanted))
    base_of(source, base, scratch, config)
    copy_beside(source, scratch)
    raw.update(parallel_decoding=True, action_chunk=chunk, image_sequence_len=images)
    raw.update(action_dim=dim, proprio_dim=state, normalise_by_minmax=dim == 14)
    write_json(scratch / "config.json", raw)
    norm_stats_of(scratch, raw)
    return (
        f"{_said(heads)} as for {robot.name}: chunks of {chunk} actions of {dim},"
        f" {images} camera{'s' * (images > 1)}, {state or 'no'} values of state"
    )


def refuse_unbuilt(source: Path) -> None:
    """FiLM and diffusion, by name and with the reason."""
    for name, reason in _NOT_BUILT.items():
        if found := sorted(source.glob(f"{name}--*_checkpoint.pt")):
            raise CheckpointError(f"{found[0]} is not supported, {reason}")


def _plain(source: Path, raw: dict) -> ModelConfig:
    """The model without its heads, as far as its files fit."""
    with naming(source / "config.json"):
        config = parse_config({**raw, "parallel_decoding": False, "image_sequence_len": 1})
    config = read_preprocessor(source, config)
    return replace(config, parallel=False, images=1, chunk=1)


def _head_file(source: Path, name: str, step: str | None) -> Path | None:
    files = sorted(source.glob(f"{name}--*_checkpoint.pt"))
    if step is not None:
        files = [f for f in files if _step(f) == step]
    if len(files) > 1:
        steps = ", ".join(map(_step, files))
        raise CheckpointError(
            f"{source} has {len(files)} files of {name}, of the steps {steps}: give --step for the"
            " one that belongs to the weights"
        )
    if not files and name == "action_head":
        raise CheckpointError(f"no action_head--{step or '*'}_checkpoint.pt in {source}")
    return files[0] if files else None


def _step(path: Path) -> str:
    found = _STEP.search(path.name)
    return found.group(1) if found else ""


def _read(path: Path | None) -> dict[str, torch.Tensor]:
    """A head's tensors, without the prefix that training in parallel leaves."""
    if path is None:
        return {}
    found = {n.removeprefix("module."): tensor for n, tensor in read_pickle(path).items()}
    if any(name.startswith("noise_predictor.") for name in found):
        reason = _NOT_BUILT["noisy_action_projector"]
        raise CheckpointError(f"{path} is not supported, {reason}")
    return found


def _sizes(
    source: Path, head: dict[str, torch.Tensor], proprio: dict[str, torch.Tensor]
) -> tuple[int, int]:
    """Dimensions of an action and of the state."""
    last, first = head.get("model.fc2.bias"), proprio.get("fc1.weight")
    if last is None or last.ndim != 1:
        raise CheckpointError(f"{source}: its action_head has no model.fc2.bias, it is no L1 head")
    if proprio and (first is None or first.ndim != 2):
        raise CheckpointError(f"{source}: its proprio_projector has no fc1.weight")
    return len(last), 0 if first is None else first.shape[1]


def _said(heads: dict[str, Path | None]) -> str:
    return ", ".join(path.name for path in heads.values() if path is not None)
