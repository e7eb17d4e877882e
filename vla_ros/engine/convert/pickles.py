"""Tensors of ``.pt`` and ``.bin`` files. No code of a pickle ever runs."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vla_ros.core.files import MB, open_file
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import refuse_broken

SEPARATOR = "/"  # {"model": {"llm": {"x": tensor}}} becomes model/llm/x
_PACKED = 64 * MB  # of an archive's compressed parts, of which TorchScript's code has some
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
    _refuse_packed(path)
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


def _refuse_packed(path: Path) -> None:
    """Raise CheckpointError for an archive whose parts are compressed: a small one fills a memory,
    and ``torch.save`` writes none."""
    with open_file(path) as stream:
        if not zipfile.is_zipfile(stream):
            return
        try:
            with zipfile.ZipFile(stream) as archive:
                parts = [p for p in archive.infolist() if p.file_size > p.compress_size]
        except Exception:  # zipfile raises whatever damaged bytes make it raise: torch says it
            return
    if sum(part.file_size for part in parts) > _PACKED:
        raise CheckpointError(
            f"{path}: {parts[0].filename!r} in it is compressed, as torch.save never does: save it"
            " again"
        )


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, ValueError) as error:
        if "mmap" not in str(error):
            raise
        return torch.load(path, map_location="cpu", weights_only=True)  # the format before zip


def _reason(error: Exception) -> str:
    """Torch's message of many lines in one. Its words change with its releases, so its class and
    the one word of pickle's own, GLOBAL, decide."""
    text = " ".join(str(error).split())
    wanted = re.search(r"GLOBAL ([\w.]*\w)", text)
    if wanted:
        what = f"a pickle that asks for {wanted[1]}, which could run code"
    elif "TorchScript" in text:
        what = "a program in TorchScript, which would run code"
    elif isinstance(error, pickle.UnpicklingError):
        what = "a pickle of more than tensors, which could run code"
    else:
        return f"no whole file of torch.save ({text[:120]}): copy or download it again"
    return f"{what}; it is not read. Ask its author for safetensors"


def _tensors(content: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        yield name, content
    elif isinstance(content, dict):
        for key, value in content.items():
            if name or key not in _SKIPPED:
                yield from _tensors(value, f"{name}{SEPARATOR}{key}" if name else str(key))
