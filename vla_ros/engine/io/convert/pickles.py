"""The process that reads a pickle: SOURCE TARGET SEPARATOR. Knows torch and safetensors only.

Ends with status 0 and TARGET written, or with one line of JSON, {"reason": ...}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules are not meant for torch

import torch
from safetensors.torch import save_file

SKIPPED = ("optimizer", "lr_scheduler", "scheduler")  # of a training run, larger than its model


def reason(error: Exception) -> str:
    """Torch's message of many lines in one."""
    text = " ".join(str(error).split())
    if "Unsupported" in text or "not an allowed global" in text:
        name = text.partition("GLOBAL ")[2].split(" ")[0].rstrip(".,") or "something else"
        return (
            f"a pickle that asks for {name}, which could run code; it is not read."
            " Ask its author for safetensors"
        )
    return f"no whole file of torch.save ({text[:120]}): copy or download it again"


def load(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, ValueError) as error:
        if "mmap" not in str(error):
            raise
        return torch.load(path, map_location="cpu", weights_only=True)  # the format before zip


def tensors(content: Any, separator: str, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested dictionaries, with the names that lead to it."""
    if isinstance(content, torch.Tensor):
        yield name, content
    elif isinstance(content, dict):
        for key, value in content.items():
            if name or key not in SKIPPED:
                yield from tensors(
                    value, separator, f"{name}{separator}{key}" if name else str(key)
                )


def main(source: str, target: str, separator: str) -> str | None:
    """Do it; returns what is wrong."""
    try:
        content = load(source)
    except Exception as error:
        return reason(error)
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors(content, separator):
        place = tensor.untyped_storage().data_ptr()
        shared = place in seen  # safetensors has no two names for one tensor
        seen.add(place)
        found[name] = tensor.detach().clone() if shared else tensor.detach().contiguous()
    if not found:
        return f"holds a {type(content).__name__} without tensors, wanted names with tensors"
    try:
        save_file(found, target)
    except Exception as error:
        return f"its tensors cannot be written to {target}: {' '.join(str(error).split())}"
    return None


if __name__ == "__main__":
    said = main(*sys.argv[1:4])
    if said is not None:
        print(json.dumps({"reason": said}))
        sys.exit(2)
