"""What Triton's kernels multiply blocks in. Import it only where Triton runs."""

from __future__ import annotations

import os

import torch
import triton.language as tl  # type: ignore[import-not-found]


def operand(dtype: torch.dtype) -> tl.dtype:
    """The type of a model, or float32 in the interpreter, which has no products in bfloat16."""
    if dtype == torch.float32 or os.environ.get("TRITON_INTERPRET") == "1":
        return tl.float32
    return tl.bfloat16 if dtype == torch.bfloat16 else tl.float16
