"""The current device: what torch makes without naming one (events, streams, graphs, Triton's
launches) belongs to it, so for ``cuda:1`` it has to be set around them."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU the current one for a while; nothing on a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def synchronise(device: torch.device) -> None:
    """Wait for a GPU to finish; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cache_bytes(device: torch.device) -> int:
    """Of a GPU's second-level cache; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def triton_may_run(device: torch.device) -> bool:
    """Whether Triton is for this device at all (its interpreter runs on a CPU)."""
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
