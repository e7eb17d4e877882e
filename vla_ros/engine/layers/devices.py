"""The current GPU, transfers, and fast paths that are tried once: what every layer asks of a
device.

What torch makes without naming a device (events, streams, graphs, Triton's launches) belongs to the
current one, so for ``cuda:1`` it has to be set around them: :func:`on_device`.

That a library can be imported does not mean that it runs: Triton wants a C compiler, FlashAttention
a generation of GPU. So fast paths are tried before anything depends on them
(:func:`tried`), and what fails is logged in one line.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from vla_ros.core.errors import UserError

_CPUINFO = Path("/proc/cpuinfo")


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU the current one for a while; nothing on a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def synchronize(device: torch.device) -> None:
    """Wait for a GPU to finish; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def pinned(
    values: torch.Tensor | Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Host numbers that the ``device`` fetches without anybody waiting: for a GPU in page-locked
    memory, which torch hands out again when the transfer is over, not before. (From other memory a
    copy waits for all that the device was given before.)"""
    held = torch.as_tensor(values, dtype=dtype)
    if device.type != "cuda" or held.is_cuda:
        return held
    with on_device(device):
        return held.pin_memory()


def upload(
    values: torch.Tensor | Sequence[Any], device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Host numbers on the device; nobody waits for the transfer."""
    return pinned(values, device, dtype).to(device, non_blocking=True)


def downloaded(numbers: torch.Tensor) -> torch.Tensor:
    """Device numbers on the host: from a GPU into page-locked memory, behind what was submitted
    before, and an event is waited for."""
    if not numbers.is_cuda:
        return numbers
    with on_device(numbers.device):
        held = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        held.copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    event.synchronize()
    return held


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for bfloat16.

    On one core of a Zen 4, which has (AVX512-BF16), a product of 64 rows takes half as long as in
    float32. oneDNN also takes bfloat16 where there is AVX-512 alone, and works it out in float32:
    twice as long as float32 there, as an action of shipped:tabletop (66 ms, not 32). A CPU without
    AVX-512 takes some eighty times as long.
    """
    if device.type != "cpu":
        return True
    flags = _cpu_flags()
    known = not flags or bool(flags & {"avx512_bf16", "amx_bf16"})
    return known and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _cpu_flags() -> frozenset[str]:
    """Names of an x86 processor's instructions, as Linux has them; none for others, of which
    oneDNN asks the instructions themselves."""
    try:
        lines = _CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def cache_bytes(device: torch.device) -> int:
    """Size of a GPU's second-level cache; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def triton_may_run(device: torch.device) -> bool:
    """Whether Triton is for this device at all (its interpreter runs on a CPU)."""
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


T = TypeVar("T")
_log = logging.getLogger("vla_ros.engine")


def tried(what: str, name: str, make: Callable[[], T], otherwise: str) -> T | None:
    """A fast path that ``make`` tries and returns; None, and one line of warning with what runs
    ``otherwise``, where it raises: it does not run here, or its result is not its reference's."""
    try:
        return make()
    except Exception as error:  # whatever a library raises
        warn_once(f"{what}: {name} fails ({reason(error)}): {otherwise} runs instead")
        return None


def reason(error: BaseException) -> str:
    """An exception in one line of at most 160 characters."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."


@lru_cache(64)  # a target and its draft model would log it twice
def warn_once(line: str) -> None:
    """Log one warning for whoever runs this, once."""
    _log.warning(line)


def device_of(name: str) -> tuple[str, str]:
    """The device that ``auto`` stands for here, and why; any other name as it is."""
    if name != "auto":
        return name, ""
    if torch.cuda.is_available():
        return "cuda:0", f"torch sees {torch.cuda.get_device_name(0)}"
    return "cpu", "torch sees no GPU"


def usable_device(name: str) -> torch.device:
    """The device of that name, auto too. UserError: torch knows none, or finds none of its kind
    here."""
    try:
        device = torch.device(device_of(name)[0])
    except RuntimeError:
        raise UserError(f"device is {name!r}: give cpu, cuda or cuda:0") from None
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        found = f"finds {count} of them" if count else "finds no GPU"
        raise UserError(f"device is {name}, but torch {found} here")
    return device
