"""Tensors of ``.pt`` and ``.bin`` files. No code of a pickle ever runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import refuse_broken

SEPARATOR = "/"  # {"model": {"llm": {"x": tensor}}} becomes model/llm/x
_SKIPPED = ("optimizer", "lr_scheduler", "scheduler")  # of a training run, larger than its model


def read_content(path: Path) -> Any:
    """The tensors that ``torch.save`` wrote. CheckpointError: the file holds something else.

    Torch's ``weights_only`` unpickler admits tensors and plain containers and nothing that could
    run code, from torch 2.6 on: older ones are refused (CVE-2025-32434). The file is mapped, so
    what is not looked at takes no memory.
    """
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release < (2, 6):
        raise CheckpointError(
            f"{path}: a pickle, and torch {torch.__version__} can be made to run code by one"
            " (CVE-2025-32434); convert it where torch is 2.6 or later"
        )
    refuse_broken(path)
    try:
        return _load(path)
    except Exception as error:
        raise CheckpointError(f"{path}: {_reason(error)}") from error


def read_pickle(path: Path) -> dict[str, torch.Tensor]:
    """Every tensor in nested dictionaries, by the names that lead to it, each in storage of its own
    (safetensors has no two names for one). CheckpointError as of :func:`read_content`."""
    content = read_content(path)
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in _tensors(content):
        address = tensor.untyped_storage().data_ptr()
        found[name] = tensor.detach().clone() if address in seen else tensor.detach()
        seen.add(address)
    if not found:
        kind = type(content).__name__
        raise CheckpointError(f"{path}: holds a {kind} without tensors, wanted names with tensors")
    return found


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, ValueError) as error:
        if "mmap" not in str(error):
            raise
        return torch.load(path, map_location="cpu", weights_only=True)  # the format before zip


def _reason(error: Exception) -> str:
    """Torch's message of many lines in one."""
    text = " ".join(str(error).split())
    if "Unsupported" in text or "not an allowed global" in text:
        name = text.partition("GLOBAL ")[2].split(" ")[0].rstrip(".,") or "something else"
        return (
            f"a pickle that asks for {name}, which could run code; it is not read."
            " Ask its author for safetensors"
        )
    return f"no whole file of torch.save ({text[:120]}): copy or download it again"


def _tensors(content: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        yield name, content
    elif isinstance(content, dict):
        for key, value in content.items():
            if name or key not in _SKIPPED:
                yield from _tensors(value, f"{name}{SEPARATOR}{key}" if name else str(key))
