"""A draft head on disk: a folder with ``config.json`` and ``model.safetensors``.

It lies in the checkpoint it was made for, as ``draft_head``, where it is found by itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Protocol

import torch

from vla_ros.engine.decoding.draft_heads import RecursiveConfig, RecursiveHead
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.files import read_json
from vla_ros.engine.io.weights import Expected, check_tensors, read_headers, read_tensors


class HeadTarget(Protocol):
    """Target of a head: a language model, and how many action tokens it has."""

    @property
    def text(self) -> TextConfig: ...

    @property
    def bins(self) -> int: ...


FOLDER = "draft_head"
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def find_head(directory: Path, named: str | None) -> Path:
    """The folder of the head: ``named``, or the checkpoint's own. CheckpointError: none there."""
    if named is not None:
        path = Path(named).expanduser()
        if (path / CONFIG).is_file():
            return path
        raise CheckpointError(
            f"draft_checkpoint {named!r} is no folder of a draft head ({CONFIG}, {WEIGHTS})"
        )
    path = directory / FOLDER
    if not (path / CONFIG).is_file():
        raise CheckpointError(
            f"{directory} has no {FOLDER}: make one with `vla-ros train --head --target"
            f" {directory}`, or give its folder as draft_checkpoint"
        )
    return path


def save_head(directory: Path, head: RecursiveHead) -> None:
    """Write a folder that :func:`load_head` reads back; bf16, but for the chances."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", torch.float32 if name == "chances" else torch.bfloat16)
        for name, tensor in head.state_dict().items()
    }
    save_file({n: t.contiguous() for n, t in tensors.items()}, str(directory / WEIGHTS))
    (directory / CONFIG).write_text(json.dumps(asdict(head.config), indent=1) + "\n")


def load_head(
    directory: Path,
    target: HeadTarget,
    tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    shorter: bool = False,
) -> RecursiveHead:
    """The head in a folder, for actions of so many tokens of that target; ``shorter``: or of less,
    where answers end by themselves.

    CheckpointError: it cannot be read, or was made for a target of another shape.
    """
    config = _config(directory / CONFIG)
    _fits(directory, config, target, min(tokens, config.tokens) if shorter else tokens)
    with torch.device("meta"):
        head = RecursiveHead(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    stored = read_headers([directory / WEIGHTS])
    check_tensors(directory, stored, Expected(wanted))
    read = {n: t.to(device, dtype, copy=True) for n, t in read_tensors(stored, wanted)}
    head.load_state_dict(read, assign=True)
    return head.requires_grad_(False).eval()


def _config(path: Path) -> RecursiveConfig:
    found = read_json(path)
    kinds = {field.name: field.type for field in fields(RecursiveConfig)}
    layers = found.get("layers")
    whole = all(type(found.get(n)) is int and found[n] > 0 for n, t in kinds.items() if t == "int")
    if (
        set(found) != set(kinds)
        or not whole
        or not isinstance(layers, list)
        or not all(type(layer) is int for layer in layers)
        or not isinstance(found["ordered"], bool)
    ):
        raise CheckpointError(f"{path} describes no draft head of this version: train it again")
    return RecursiveConfig(**{**found, "layers": tuple(layers)})


def _fits(directory: Path, config: RecursiveConfig, target: HeadTarget, tokens: int) -> None:
    text = target.text
    pairs = {
        "hidden numbers": (config.hidden, text.hidden_size),
        "tokens an action": (config.tokens, tokens),
        "bins": (config.bins, target.bins),
    }
    wrong = [f"{a} {what}, the target has {b}" for what, (a, b) in pairs.items() if a != b]
    if not all(0 <= layer < text.layers for layer in config.layers):
        wrong.append(f"layers {list(config.layers)}, the target has {text.layers}")
    if config.width % (2 * config.heads):
        wrong.append(f"{config.heads} heads of {config.width} numbers")
    if wrong:
        raise CheckpointError(f"{directory} is a draft head for another target: {'; '.join(wrong)}")
