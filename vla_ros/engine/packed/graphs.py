"""Captured passes: a CUDA graph per pack shape, fed through buffers that never move.

``capture`` is injected: :func:`capture_cuda` on a GPU; tests on a CPU pass one that just runs
the function again, so buffers and keys are tested everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from vla_ros.engine.packed.pack import PackShape, Plan

Outputs = tuple[torch.Tensor, ...]
Capture = Callable[[Callable[[], Outputs]], Callable[[], Outputs]]
Pass = Callable[[Plan, torch.Tensor], Outputs]

WARM_UP = 3


class CudaCapture:
    """Captures functions into CUDA graphs that share one memory pool.

    Sharing is safe because replays never overlap and every result is copied out at once.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Outputs]) -> Callable[[], Outputs]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = function()

        def replay() -> Outputs:
            graph.replay()
            return result

        return replay


class GraphedPass:
    """One pack shape: static input buffers and the captured pass over them."""

    def __init__(self, run: Pass, plan: Plan, x: torch.Tensor, capture: Capture) -> None:
        self._plan, self._x = plan.copy(), x.clone()
        self._loaded: Plan | None = None
        self._replay = capture(lambda: run(self._plan, self._x))

    def __call__(self, plan: Plan, x: torch.Tensor) -> Outputs:
        if plan is not self._loaded:
            self._plan.load(plan)
            self._loaded = plan
        self._x.copy_(x)
        # The next replay of any graph may use this memory.
        return tuple(output.clone() for output in self._replay())


class GraphCache:
    """Graphs of one function over packs, by pack shape."""

    def __init__(self, run: Pass, capture: Capture) -> None:
        self._run, self._capture = run, capture
        self._graphs: dict[PackShape, GraphedPass] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def __call__(self, plan: Plan, x: torch.Tensor) -> Outputs:
        graph = self._graphs.get(plan.shape)
        if graph is None:
            graph = GraphedPass(self._run, plan, x, self._capture)
            self._graphs[plan.shape] = graph
        return graph(plan, x)


class GraphedVision:
    """The vision function (pixels per tower -> one tensor) as one graph."""

    def __init__(
        self, run: Callable[[tuple[torch.Tensor, ...]], torch.Tensor], capture: Capture
    ) -> None:
        self._run, self._capture = run, capture
        self._pixels: tuple[torch.Tensor, ...] = ()
        self._replay: Callable[[], Outputs] | None = None

    def __call__(self, pixels: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if self._replay is None:
            self._pixels = tuple(p.clone() for p in pixels)
            self._replay = self._capture(lambda: (self._run(self._pixels),))
        for buffer, fresh in zip(self._pixels, pixels, strict=True):
            buffer.copy_(fresh)
        return self._replay()[0].clone()  # a pipelined schedule may hold on to it
