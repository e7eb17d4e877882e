"""Whether a loaded model is its file's: every tensor accounted for, value by value.

LeRobot's loaders are lenient: a name that changed between versions, or a file that is not there,
is a line of log, and the weights stay as they were drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from vla_ros.policies.base import PolicyRefused
from vla_ros.policies.lerobot.folder import WEIGHTS

PREFIX = "model."  # which older checkpoints of pi0 lack


def check_weights(model: torch.nn.Module, directory: Path) -> None:
    """Compare the model with ``model.safetensors``; PolicyRefused names what does not agree.

    Tensors that share memory need to be in the file once.
    """
    from safetensors import SafetensorError, safe_open

    state: Mapping[str, torch.Tensor] = model.state_dict()
    names = _renamer(model)
    path = directory / WEIGHTS
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            stored = {name: names(name) for name in file.keys()}  # noqa: SIM118
            _refuse_missing(state, {known for many in stored.values() for known in many})
            _refuse(
                "weights of the file are not used", [n for n, many in stored.items() if not many]
            )
            wrong = [
                name
                for name, many in stored.items()
                if not all(_same(file.get_tensor(name), state[known]) for known in many)
            ]
    except (OSError, SafetensorError) as error:
        raise PolicyRefused(f"{path} cannot be read: {error}") from error
    _refuse("weights are not the file's values", wrong)


def _renamer(model: torch.nn.Module) -> Callable[[str], list[str]]:
    """File name -> names in the model: LeRobot's own renamings of openpi's, and the prefix."""
    state = model.state_dict()
    fix: Any = getattr(model, "_fix_pytorch_state_dict_keys", None)

    def names(name: str) -> list[str]:
        made = [name] if fix is None else fix({name: torch.zeros(())}, model.config)
        return [k for n in made for k in ([n] if n in state else [PREFIX + n]) if k in state]

    return names


def _refuse_missing(state: Mapping[str, torch.Tensor], stored: set[str]) -> None:
    there = {_place(state[name]) for name in stored & set(state)}
    _refuse(
        "weights of the model are not in the file, and would be random",
        [n for n, tensor in state.items() if n not in stored and _place(tensor) not in there],
    )


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are the same memory."""
    empty = tensor.numel() == 0
    return (id(tensor) if empty else tensor.data_ptr(), tensor.storage_offset(), tensor.shape)


def _same(stored: torch.Tensor, loaded: torch.Tensor) -> bool:
    """In the format that the model holds it in."""
    return stored.shape == loaded.shape and torch.equal(
        stored.to(loaded.dtype), loaded.detach().cpu()
    )


def _refuse(what: str, names: Iterable[str]) -> None:
    found = sorted(names)
    if found:
        few = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise PolicyRefused(
            f"{len(found)} {what}: {few}; save the policy with the LeRobot that runs it, or see"
            " its migration scripts"
        )
