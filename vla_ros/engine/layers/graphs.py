"""Captured passes: a CUDA graph per shape of what goes in, fed through buffers that never move.

``capture`` is injected: :class:`CudaCapture` on a GPU; tests on a CPU pass one that just runs
the function again, so buffers and keys are tested everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch

from vla_ros.engine.layers.devices import on_device

if TYPE_CHECKING:
    from vla_ros.engine.layers.pack import Plan

Outputs = tuple[torch.Tensor, ...]
Capture = Callable[[Callable[[], Outputs]], Callable[[], Outputs]]
#: one pass, or several that feed each other: their plans, the prompt's embeddings, tokens
Pass: TypeAlias = "Callable[[tuple[Plan, ...], torch.Tensor | None, torch.Tensor | None], Outputs]"

WARM_UP = 3


class CudaCapture:
    """Captures functions into CUDA graphs that share one memory pool, on a stream of its own.

    Sharing is safe because replays never overlap and every result is copied out at once.

    The stream is its own, and lives as long as any graph captured on it: cuBLAS keeps a workspace a
    stream, and on torch's default capture stream the end of another engine's graph takes it from
    ours (pytorch#193402). Streams, pools and graphs are made with ``device`` as the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with on_device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream()

    def __call__(self, function: Callable[[], Outputs]) -> Callable[[], Outputs]:
        with on_device(self._device):
            stream, current = self._stream, torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    function()
            current.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                result = function()

        def replay() -> Outputs:
            with on_device(self._device):  # and by ``self`` the stream stays alive
                graph.replay()
            return result

        return replay


class CountedCapture:
    """A capture that counts how often it was asked: after ``prepare`` never."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.count = 0

    def __call__(self, function: Callable[[], Outputs]) -> Callable[[], Outputs]:
        self.count += 1
        return self._capture(function)


class GraphedPass:
    """One captured pass: static input buffers and the function over them."""

    def __init__(
        self,
        run: Pass,
        plans: tuple[Plan, ...],
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
        capture: Capture,
    ) -> None:
        self._plans, self._loaded = tuple(plan.copy() for plan in plans), plans
        # As long as the prefill: behind a shorter prompt zeros, where drafts and padding go.
        self._prompt = (
            None if prompt is None else prompt.new_zeros(plans[0].shape.prefill, prompt.shape[1])
        )
        self._length = 0
        self._tokens = None if tokens is None else tokens.clone()
        self._feed(plans, prompt, tokens)
        self._replay = capture(lambda: run(self._plans, self._prompt, self._tokens))

    def __call__(
        self, plans: tuple[Plan, ...], prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> Outputs:
        self._feed(plans, prompt, tokens)
        # The next replay of any graph may use this memory.
        return tuple(output.clone() for output in self._replay())

    def _feed(
        self, plans: tuple[Plan, ...], prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> None:
        for own, fresh, loaded in zip(self._plans, plans, self._loaded, strict=True):
            if fresh is not loaded:
                own.load(fresh)
        self._loaded = plans
        if prompt is not None and self._prompt is not None:
            self._prompt[: len(prompt)].copy_(prompt)
            if len(prompt) < self._length:
                self._prompt[len(prompt) : self._length].zero_()
            self._length = len(prompt)
        if tokens is not None and self._tokens is not None:
            self._tokens.copy_(tokens)


class GraphCache:
    """Graphs of one function over packs, by the shape of what it is given."""

    def __init__(self, run: Pass, capture: Capture) -> None:
        self._run, self._capture = run, capture
        self._graphs: dict[tuple[object, ...], GraphedPass] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def __call__(
        self, plans: tuple[Plan, ...], prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> Outputs:
        fed = 0 if tokens is None else len(tokens)
        key = (fed, prompt is None, *(plan.shape for plan in plans))
        graph = self._graphs.get(key)
        if graph is None:
            graph = GraphedPass(self._run, plans, prompt, tokens, self._capture)
            self._graphs[key] = graph
        return graph(plans, prompt, tokens)


class GraphedVision:
    """The vision function (pixels per tower -> one tensor) as one graph."""

    def __init__(
        self, run: Callable[[tuple[torch.Tensor, ...]], torch.Tensor], capture: Capture
    ) -> None:
        self.run, self._capture = run, capture
        self._pixels: tuple[torch.Tensor, ...] = ()
        self._replay: Callable[[], Outputs] | None = None

    def __call__(self, pixels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if self._replay is None:
            self._pixels = tuple(p.clone() for p in pixels)
            self._replay = self._capture(lambda: (self.run(self._pixels),))
        for buffer, fresh in zip(self._pixels, pixels, strict=True):
            buffer.copy_(fresh)
        return self._replay()[0].clone()  # a pipelined decoding may hold on to it
