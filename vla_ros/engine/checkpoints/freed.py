"""Memory that was freed goes back to the kernel."""

from __future__ import annotations

import ctypes


def give_back_freed() -> None:
    """Let the kernel have what glibc keeps of freed memory, such as float32 tensors between reading
    and what is made of them. Nothing where there is no glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
