"""What the shadow sees: a fault of each class is planted, alone and in the engine, and is found."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F

from shadow_cuda import CudaError, Journal, ShadowGpu, shadow
from shadow_cuda.memory import Allocator, Block
from shadow_cuda.order import Actor
from vla_ros.engine.layers.graphs import CudaCapture

CUDA = "cuda:0"


@pytest.fixture
def gpu() -> Iterator[ShadowGpu]:
    with shadow(2) as found:
        yield found


def captured(function):  # type: ignore[no-untyped-def]
    """A graph over what a function does, and what it returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        made = function()
    return graph, made


def test_two_devices_in_one_operator(gpu: ShadowGpu) -> None:
    there, here = torch.ones(3, device=CUDA), torch.ones(3)
    other = torch.ones(3, device="cuda:1")
    for call in (
        lambda: there + here,
        lambda: torch.cat((here, there)),
        lambda: here[there.long()],
        lambda: there + other,
        lambda: F.embedding(torch.ones(2, dtype=torch.long), there[:, None]),
        lambda: there.add_(here),
        lambda: torch.where(there > 0, there, here),
    ):
        with pytest.raises(CudaError, match=r"two (devices|GPUs)"):
            call()
    assert (there * torch.tensor(2.0)).tolist() == [2, 2, 2]  # a number of the host is a number
    assert here.to("cuda").device == here.to(torch.device("cuda")).device == there.device
    assert there.to("cuda:1").device == torch.device("cuda:1")
    with pytest.raises(CudaError, match="generator of the CPU"):
        torch.randn(3, device=CUDA, generator=torch.Generator())


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum().item(), lambda x: x.tolist(), lambda x: x.cpu(), lambda x: bool(x[0] > 0),
        lambda x: x[x > 0], lambda x: x.nonzero(), lambda x: torch.tensor([1.0], device=CUDA),
        lambda x: x[torch.tensor([0, 1])], lambda x: torch.randn(3, device=CUDA),
        lambda x: torch.ones(3).pin_memory(), lambda x: torch.cuda.synchronize(),
        lambda x: torch.ones(3).to(CUDA), lambda x: torch.cuda.Event().synchronize(),
        lambda x: captured(lambda: x + 1),
    ],
)  # fmt: skip
def test_a_capture_forbids(call, gpu: ShadowGpu) -> None:  # type: ignore[no-untyped-def]
    x = torch.ones(3, device=CUDA)
    with pytest.raises(CudaError, match=r"while capturing|within a capture"):
        captured(lambda: call(x))
    assert gpu.graph is None  # and the next one is as any
    graph, made = captured(lambda: x + 1)
    graph.replay()
    assert made.tolist() == [2, 2, 2]


def test_a_number_of_the_host_stays_what_it_was_at_capture(gpu: ShadowGpu) -> None:
    x, factor, host = torch.ones(2, device=CUDA), 2.0, torch.tensor(3.0)
    graph, made = captured(lambda: (x * factor + host).add_(1))
    assert made.isnan().all()  # a capture does nothing yet
    factor = 5.0
    host.fill_(7.0)
    x.fill_(10)
    graph.replay()
    assert made.tolist() == [24, 24]


def test_what_is_written_in_place_is_written_at_the_replay(gpu: ShadowGpu) -> None:
    count = torch.zeros(1, device=CUDA)
    graph, _ = captured(lambda: count.add_(1))
    assert count.tolist() == [0]
    graph.replay()
    graph.replay()
    assert count.tolist() == [2]


def test_memory_of_a_pool_is_handed_out_again(gpu: ShadowGpu) -> None:
    """What one graph returned, another's replay may overwrite: it is to be copied out."""
    pool, x = torch.cuda.graph_pool_handle(), torch.ones(64, device=CUDA)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=pool):
        one = (x + 1) * 2
    with torch.cuda.graph(second, pool=pool):
        other = x * 5  # where x + 1 of the first graph was
    second.replay()
    kept = other.clone()
    first.replay()
    assert one.tolist() == [4] * 64
    assert kept.tolist() == [5] * 64
    assert other.tolist() != kept.tolist()


def test_a_graph_over_memory_that_was_given_back(gpu: ShadowGpu) -> None:
    held = [torch.ones(3, device=CUDA)]
    graph, _ = captured(lambda: held[0][1:] + 1)
    graph.replay()
    held.clear()
    gc.collect()
    with pytest.raises(CudaError, match="given back"):
        graph.replay()


def test_copies_are_told_apart(gpu: ShadowGpu) -> None:
    there, pinned = torch.zeros(4, device=CUDA), torch.ones(4).pin_memory()
    cases = {
        "upload": lambda: there.copy_(pinned, non_blocking=True),
        "blocking upload": lambda: there.copy_(pinned),
        "pageable upload": lambda: there.copy_(torch.ones(4), non_blocking=True),
        "download": lambda: pinned.copy_(there, non_blocking=True),
        "pageable download": lambda: there.cpu(),
    }
    for kind, call in cases.items():
        with gpu.journal.watched() as seen:
            call()
        assert {k for k in seen.counts if "load" in k} == {kind}
    # Of another type or order torch makes a copy on the host first, in no such memory.
    for source in (torch.ones(4).double().pin_memory(), torch.ones(8).pin_memory()[::2]):
        with gpu.journal.watched() as seen:
            there.copy_(source, non_blocking=True)
        assert seen.counts["pageable upload"] == 1
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(CudaError, match="nobody may wait"):
        there.tolist()
    torch.cuda.set_sync_debug_mode("default")


def test_a_stream_that_does_not_wait(gpu: ShadowGpu) -> None:
    x = torch.ones(3, device=CUDA)
    own, side = torch.cuda.current_stream(), torch.cuda.Stream()
    with torch.cuda.stream(side), pytest.raises(CudaError, match="has not waited"):
        x + 1
    side.wait_stream(own)
    with torch.cuda.stream(side):
        made = x + 1
    with pytest.raises(CudaError, match="has not waited"):
        made * 2
    with pytest.raises(CudaError, match=r"overwrites what stream 2 .* reads"):
        x.zero_()
    own.wait_event(side.record_event())
    assert (made * 2).tolist() == [4, 4, 4]
    made.record_stream(own)
    x.zero_()


def test_memory_given_back_while_another_stream_uses_it(gpu: ShadowGpu) -> None:
    own, side = torch.cuda.current_stream(), torch.cuda.Stream()
    for safe in (True, False):
        x = torch.ones(3, device=CUDA)
        side.wait_stream(own)
        with torch.cuda.stream(side):
            x + 1
        if safe:
            x.record_stream(side)
        del x
        gc.collect()
        assert any("record_stream" in line for line in gpu.journal.errors) is not safe


def test_a_stream_of_a_capture_must_be_joined(gpu: ShadowGpu) -> None:
    x, side = torch.ones(3, device=CUDA), torch.cuda.Stream()

    def forked(joins: bool) -> torch.Tensor:
        own = torch.cuda.current_stream()
        side.wait_stream(own)
        with torch.cuda.stream(side):
            made = x + 1
        if joins:
            own.wait_stream(side)
        return made

    with pytest.raises(CudaError, match="never waits"):
        captured(lambda: forked(False))
    graph, made = captured(lambda: forked(True))
    graph.replay()
    assert made.tolist() == [2, 2, 2]


def test_the_host_at_page_locked_memory_that_the_device_is_at(gpu: ShadowGpu) -> None:
    there, held = torch.ones(3, device=CUDA), torch.empty(3, pin_memory=True)
    held.copy_(there, non_blocking=True)
    for read in (held.tolist, held.numpy, held.sum):
        with pytest.raises(CudaError, match="has not waited"):
            read()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    assert held.tolist() == [1, 1, 1]
    there.copy_(held, non_blocking=True)
    with pytest.raises(CudaError, match="the host overwrites"):
        held.zero_()


def test_what_the_allocators_count(gpu: ShadowGpu) -> None:
    before = torch.cuda.memory_allocated()
    x = torch.ones(1000, device=CUDA)
    assert torch.cuda.memory_allocated() - before == 4096
    del x
    with gpu.journal.watched() as seen:
        for _ in range(9):
            torch.ones(1000, device=CUDA)
    assert torch.cuda.memory_allocated() == before
    assert not seen.counts["malloc"]
    big = torch.ones(30 << 18, device=CUDA)
    assert torch.cuda.memory_reserved() >= 30 << 20
    del big
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.cuda.max_memory_reserved() >= 30 << 20
    for _ in range(3):  # nobody waited: the device may still be at the first
        torch.ones(8, device=CUDA).copy_(torch.ones(8).pin_memory(), non_blocking=True)
    assert gpu.journal.counts["host malloc"] == 3
    torch.cuda.synchronize()
    torch.ones(8).pin_memory()
    assert gpu.journal.counts["host malloc"] == 3


def test_memory_lies_at_the_same_addresses_in_every_run() -> None:
    """Wherever Python keeps its objects: where a piece lies decides whether a later one fits."""
    sizes = Random(7)

    def addresses(strewn: int) -> list[int]:
        rng, stream, between = Random(3), Actor("stream 0"), list[object]()
        one, held, found = Allocator(Journal()), list[Block](), list[int]()
        for _ in range(400):
            between += [bytearray(sizes.randrange(200)) for _ in range(strewn)]
            if held and rng.random() < 0.5:
                one.give(held.pop(rng.randrange(len(held))))
            else:
                held.append(one.take(rng.choice((100_000, 300_000)), stream))
                found.append(held[-1].at)
        return found

    first = addresses(0)
    assert all(addresses(strewn) == first for strewn in range(1, 9))


def test_a_gradient_is_the_cpu_s(gpu: ShadowGpu) -> None:
    weights = torch.linspace(-1, 1, 12).view(4, 3)

    def pulled(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.clone().requires_grad_(True)
            made = (x[None] @ weights).softmax(-1).view(3).mul(2)
            (gradient,) = torch.autograd.grad(made, x, torch.ones_like(made) * made.detach())
        return gradient

    there = torch.arange(4.0, device=CUDA), weights.to(CUDA)
    assert pulled(*there).device == torch.device(CUDA)
    assert pulled(*there).tolist() == pulled(torch.arange(4.0), weights).tolist()
    with pytest.raises(CudaError, match="two devices in a backward pass"), torch.enable_grad():
        x = there[0].clone().requires_grad_(True)
        torch.autograd.grad(x * 2, x, torch.ones(4))
    with pytest.raises(CudaError, match="a backward pass while capturing"):
        captured(lambda: pulled(*there))


def test_times_of_events_that_nobody_waited_for(gpu: ShadowGpu) -> None:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    begin.record()
    torch.ones(3, device=CUDA)
    end.record()
    with pytest.raises(CudaError, match="nobody waited"):
        begin.elapsed_time(end)
    end.synchronize()
    assert begin.elapsed_time(end) >= 0


def test_everything_is_as_before_behind_it() -> None:
    before = torch.cuda.Stream, torch.Generator, torch.Tensor.numpy, torch.inference_mode
    with shadow():
        assert torch.cuda.is_available()
    assert (torch.cuda.Stream, torch.Generator, torch.Tensor.numpy, torch.inference_mode) == before
    assert not torch.cuda.is_available() or torch.cuda.get_device_name() != "shadow"


def test_what_is_imported_within_is_not_imported_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its classes would be there twice, and rich's table be no table to rich's console."""
    (tmp_path / "first_in_a_shadow.py").write_text("class Style: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with shadow():
        within = importlib.import_module("first_in_a_shadow")
        with pytest.raises(ImportError):
            importlib.import_module("triton")
    try:
        assert importlib.import_module("first_in_a_shadow") is within
    finally:
        del sys.modules["first_in_a_shadow"]
    assert sys.modules.get("triton", ...) is not None


def test_an_engine_s_capture_is_a_graph(gpu: ShadowGpu) -> None:
    x = torch.ones(3, device=CUDA)
    replay = CudaCapture(torch.device(CUDA))(lambda: (x * 2,))
    x.fill_(4)
    assert replay()[0].tolist() == [8, 8, 8]
    assert gpu.journal.counts["capture"] == gpu.journal.counts["replay"] == 1
