"""Two pieces of work on a GPU at once: another stream beside the current one.

What follows from which is said by events: *fork*, the second stream waits for what the current one
was given so far; *join*, the current one waits for the second. Inside a capture these are edges of
the graph, and a stream that was forked has to be joined before the capture ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from vla_ros.engine.packed.devices import on_device

A = TypeVar("A")
B = TypeVar("B")


def in_turn(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """One after the other."""
    return first(), second()


class SideBySide:
    """Runs two functions of tensors on two streams; made for one device, used by one thread.

    Only this uses its second stream. What ``second`` makes lies in that stream's memory, which
    torch gives to no other stream, and the next fork waits for all that was done with it; so
    nothing has to be told to torch's allocator. The stream is always the same one, for cuBLAS keeps
    a workspace for each.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with on_device(device):
            self._stream = torch.cuda.Stream()

    def __call__(self, first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
        """Of both what they return, to be used on the current stream."""
        with on_device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                other = second()
            one = first()
            current.wait_stream(self._stream)
        return one, other


class Apart:
    """A stream for work that the current one does not wait for yet. One device, one thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with on_device(device):
            self._stream = torch.cuda.Stream()

    def run(self, function: Callable[[], A], behind: bool) -> A:
        """What it returns may be used behind a :meth:`join`. ``behind``: all that the current
        stream was given so far comes first; otherwise it may run at the same time."""
        with on_device(self._device):
            if behind:
                self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                return function()

    def join(self, tensors: Iterable[torch.Tensor]) -> None:
        """The current stream waits for all of it, and may use these tensors: their memory is given
        to nothing else on this stream before the current one is done with them."""
        with on_device(self._device):
            current = torch.cuda.current_stream()
            current.wait_stream(self._stream)
            for tensor in tensors:
                tensor.record_stream(current)
