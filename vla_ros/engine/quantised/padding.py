"""Zeros behind rows and columns, where a kernel wants a multiple of some number.

A product is the same with them: what stands against a zero adds nothing, and rows of zeros are cut
off the result. So no matrix is refused for its size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rounded(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


def with_columns(x: torch.Tensor, count: int) -> torch.Tensor:
    """x [M, K] -> [M, ``count``], zeros behind; x itself where it has as many."""
    missing = count - x.shape[1]
    return F.pad(x, (0, missing)) if missing else x


def with_rows(x: torch.Tensor, count: int) -> torch.Tensor:
    """x [M, ...] -> [``count``, ...], zeros behind; x itself where it has as many."""
    missing = count - len(x)
    return torch.cat((x, x.new_zeros(missing, *x.shape[1:]))) if missing else x
