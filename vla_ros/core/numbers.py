"""Whole numbers for buffers and shapes."""

from __future__ import annotations


def round_up(value: int, multiple: int) -> int:
    """The next multiple: ``value`` itself where it is one."""
    return -(-value // multiple) * multiple
