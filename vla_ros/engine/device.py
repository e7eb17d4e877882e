"""Which devices torch has here."""

from __future__ import annotations

import torch

from vla_ros.errors import UserError


def usable_device(name: str) -> torch.device:
    """The device of that name. UserError: torch knows none, or finds none of its kind here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device is {name!r}: give cpu, cuda or cuda:0") from None
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        found = f"finds {count} of them" if count else "finds no GPU"
        raise UserError(f"device is {name}, but torch {found} here")
    return device
