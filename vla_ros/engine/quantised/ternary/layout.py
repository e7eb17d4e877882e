"""Four weights a byte, in planes, so that unpacking is a shift and a mask of eight bytes at once.

A row of K columns has P bytes. Byte j holds, two bits each from the lowest, the columns j, j + P,
j + 2 P and j + 3 P, each as its value + 1. So bits 0 and 1 of all bytes, one after the other, are
the columns 0 to P - 1: no bit has to be moved to a byte of its own. P is a multiple of 8; columns
behind the last one hold 0 and meet zeros in what they are multiplied with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

PLANES = 4
_BYTES = 8  # of the word that shift and mask work on
_MASK = 0x0303030303030303


def plane(width: int) -> int:
    """Bytes P of a row of ``width`` columns."""
    return -(-width // (PLANES * _BYTES)) * _BYTES


def pack(values: torch.Tensor) -> torch.Tensor:
    """Int8 [N, K] of -1, 0, 1 -> uint8 [N, P]."""
    count, width = values.shape
    bytes_ = plane(width)
    codes = F.pad(values + 1, (0, PLANES * bytes_ - width), value=1).to(torch.uint8)
    planes = codes.view(count, PLANES, bytes_).unbind(1)
    packed = planes[0].clone()
    for number, codes in enumerate(planes[1:], 1):
        packed |= codes << (2 * number)
    return packed


def unpack_into(packed: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Uint8 [n, P] -> ``out`` uint8 [n, 4 P], each value + 1. Returns ``out``."""
    words, bytes_ = packed.view(torch.int64), packed.shape[1]
    for number in range(PLANES):
        part = out[:, number * bytes_ : (number + 1) * bytes_].view(torch.int64)
        if number:
            torch.bitwise_right_shift(words, 2 * number, out=part)
            part.bitwise_and_(_MASK)
        else:
            torch.bitwise_and(words, _MASK, out=part)
    return out


def unpack(packed: torch.Tensor, width: int) -> torch.Tensor:
    """Uint8 [N, P] -> int8 [N, width] of -1, 0, 1."""
    count, bytes_ = packed.shape
    out = packed.new_empty(count, PLANES * bytes_)
    return unpack_into(packed, out)[:, :width].to(torch.int8) - 1
