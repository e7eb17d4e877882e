"""The current device: what torch makes without naming one (events, streams, graphs, Triton's
launches) belongs to it, so for ``cuda:1`` it has to be set around them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU the current one for a while; nothing on a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def synchronise(device: torch.device) -> None:
    """Wait for a GPU to finish; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
