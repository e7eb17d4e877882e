"""``torch.cuda`` of the shadow: devices, streams, events, graphs, and putting it all in place."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from weakref import WeakSet, finalize, ref

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten

from shadow_cuda.journal import CudaError, Journal
from shadow_cuda.memory import Allocator, Pinned, Pool
from shadow_cuda.order import Actor, Uses
from shadow_cuda.tensors import RUNNING, Memory, Recorded, ShadowMode, ShadowTensor, mapped, plain

TOTAL = 80 << 30
_CUDA = 1  # c10/core/DeviceType: where its guard is
_PROPERTIES = {
    "name": "shadow", "major": 9, "minor": 0, "L2_cache_size": 50 << 20, "total_memory": TOTAL,
    "multi_processor_count": 132, "shared_memory_per_block_optin": 227 << 10, "warp_size": 32,
    "max_threads_per_multi_processor": 2048, "regs_per_multiprocessor": 65536,
}  # fmt: skip


def gpu_here() -> ShadowGpu:
    """The shadow that is in place."""
    return RUNNING[-1]


class Stream(Actor):
    """``torch.cuda.Stream``. As torch's own it waits for no other, the default one neither."""

    def __init__(self, device: Any = None, priority: int = 0, **unused: Any) -> None:
        self._gpu = gpu_here()
        self.index = self._gpu.index_of(device)
        super().__init__(f"stream {self._gpu.count_stream()} of cuda:{self.index}")
        self.device = torch.device("cuda", self.index)
        self.cuda_stream = id(self)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        if event.graph is not None and event.graph is self._gpu.graph:
            event.graph.streams.add(self)
        self.wait(event.at)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._gpu.waits("synchronize", self)

    def query(self) -> bool:
        return self._gpu.host.knows(self, self.tick)

    def __enter__(self) -> Stream:
        self._gpu.stack.append((self._gpu.current, dict(self._gpu.streams)))
        self._gpu.current = self.index
        self._gpu.streams[self.index] = self
        return self

    def __exit__(self, *unused: object) -> None:
        self._gpu.current, self._gpu.streams = self._gpu.stack.pop()


class Event:
    """``torch.cuda.Event``: what its stream had been given when it was recorded."""

    def __init__(self, enable_timing: bool = False, **unused: Any) -> None:
        self._gpu, self._timed = gpu_here(), enable_timing
        self.at: dict[Actor, int] = {}
        self.graph: Graph | None = None
        self._seconds: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self._gpu.stream()
        self.graph = self._gpu.graph
        if self.graph is not None and stream not in self.graph.streams:
            self.graph = None
        self.at, self._seconds = stream.clock(), time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self._gpu.stream()).wait_event(self)

    def synchronize(self) -> None:
        if self.graph is not None:
            self._gpu.journal.fail("the host waits for an event that is within a graph")
        self._gpu.waits("event wait")
        self._gpu.host.wait(self.at)

    def query(self) -> bool:
        return all(self._gpu.host.knows(*one) for one in self.at.items())

    def elapsed_time(self, end: Event) -> float:
        if not (self._timed and end._timed) or self._seconds is None or end._seconds is None:
            self._gpu.journal.fail("elapsed_time of events without timing, or not recorded")
        if not (self.query() and end.query()):
            self._gpu.journal.fail("elapsed_time of an event that nobody waited for")
        assert self._seconds is not None and end._seconds is not None
        return (end._seconds - self._seconds) * 1e3


class Graph:
    """``torch.cuda.CUDAGraph``: operators over memory of a pool and of others."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._gpu = gpu_here()
        self._records: list[Recorded] = []
        self._pool = Pool()
        self._outside: dict[int, tuple[ref[Memory], bool]] = {}
        self._inside: list[ref[Memory]] = []
        self.streams: set[Actor] = set()

    def begin(self, pool: Pool | None, stream: Stream) -> None:
        if self._gpu.graph is not None:
            self._gpu.journal.fail("a capture within a capture")
        self._gpu.journal.note("capture")
        self._pool, self.streams, self._gpu.graph = pool or Pool(), {stream}, self
        self._gpu.devices[stream.index].pools.add(self._pool)

    def end(self, stream: Stream, failed: bool) -> None:
        self._gpu.graph = None
        for memory in filter(None, (one() for one in self._inside)):
            memory.written, memory.reads = None, {}
        for other in self.streams:
            if not failed and not stream.knows(other, other.tick):
                self._gpu.journal.fail(f"{other.name} was captured, and {stream.name} never waits")
        # Nothing was done yet: who reads it before a replay reads this.
        with _disable_current_modes(), torch.no_grad():
            for *_, made in self._records:
                for tensor in tree_flatten(made)[0]:
                    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                        tensor.fill_(float("nan"))

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        """An operator, with what it writes its results to."""
        if self._gpu.stream() not in self.streams:
            self._gpu.journal.fail(f"work on {self._gpu.stream().name}, which is not captured")

        self._records.append((func, args, kwargs, made))

    def keep(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any,
        shadows: list[ShadowTensor], index: int, stream: Actor,
    ) -> Any:  # fmt: skip
        """Record an operator that makes something, and its results in memory of the pool."""
        before = {t.inner.untyped_storage()._cdata: t.memory for t in shadows}
        kept: list[Any] = []

        def one(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor):
                kept.append(None)
                return tensor
            memory = before.get(tensor.untyped_storage()._cdata)
            if memory is not None:
                kept.append(None)
                return ShadowTensor(tensor, memory)
            there, held = self._pool.take(tensor)
            there.copy_(tensor)
            kept.append(there)
            memory = Memory(self._gpu, index, stream)
            memory.pool = self._pool, held
            memory.written = stream, stream.tick
            self._inside.append(ref(memory))
            return ShadowTensor(there, memory)

        with _disable_current_modes(), torch.no_grad():
            wrapped = mapped(one, out)
        if any(each is not None for each in kept):
            self.record(func, args, kwargs, kept)
        return wrapped

    def touch(self, memory: Memory, write: bool) -> None:
        """What is not of the pool: it must be there at every replay."""
        _, before = self._outside.get(id(memory), (None, False))
        self._outside[id(memory)] = ref(memory), write or before

    def replay(self) -> None:
        gpu = self._gpu
        if gpu.graph is not None:
            gpu.journal.fail("a replay within a capture")
        gpu.journal.note("replay")
        stream = gpu.launch(gpu.current)
        for one, write in self._outside.values():
            memory = one()
            if memory is None:
                gpu.journal.fail("a graph is replayed over memory that was given back")
            else:
                gpu.uses(memory, stream, "replay", write=write)
        for memory in filter(None, (one() for one in self._inside)):
            gpu.uses(memory, stream, "replay", write=True)
        with _disable_current_modes(), torch.no_grad():
            for func, args, kwargs, kept in self._records:
                made = func(*args, **kwargs)
                if kept is None:
                    continue
                for old, new in zip(kept, tree_flatten(made)[0], strict=True):
                    if old is not None:
                        old.copy_(new)

    def pool(self) -> Pool:
        return self._pool

    def reset(self) -> None:
        self._records, self._outside, self._inside = [], {}, []


class Device:
    """A GPU's memory: what programs ask for, and the pools of graphs."""

    def __init__(self, gpu: ShadowGpu) -> None:
        self.allocator = Allocator(gpu.journal)
        self.pools: WeakSet[Pool] = WeakSet()


class ShadowGpu:
    """The shadow: ``devices``, who waits for whom, and what is captured."""

    def __init__(self, devices: int = 1) -> None:
        self.journal, self.host = Journal(), Actor("the host")
        self.devices = [Device(self) for _ in range(devices)]
        self.pinned = Pinned(self.journal, self.host)
        self.current, self.graph = 0, None  # type: int, Graph | None
        self.streams: dict[int, Stream] = {}
        self.stack: list[tuple[int, dict[int, Stream]]] = []
        self.generators: set[int] = set()  # by torch's own pointers
        self._streams = 0

    def start(self) -> None:
        """Default streams; the shadow must be in place."""
        self.streams = {index: Stream(index) for index in range(len(self.devices))}

    def count_stream(self) -> int:
        self._streams += 1
        return self._streams - 1

    def index_of(self, device: Any = None, like: Any = None) -> int:
        if type(like) is ShadowTensor:
            return like.memory.index
        if device is None:
            return self.current
        if isinstance(device, int):
            return self.current if device < 0 else device
        index = torch.device(device).index
        return self.current if index is None else index

    def stream(self, index: int | None = None) -> Stream:
        """The current stream."""
        return self.streams[self.current if index is None else index]

    def launch(self, index: int) -> Stream:
        """The stream that is given something now."""
        stream = self.streams[index]
        stream.wait(self.host.clock())
        stream.tick += 1
        return stream

    def waits(self, kind: str, stream: Stream | None = None) -> None:
        """The host waits; CudaError within a capture."""
        if self.graph is not None:
            self.journal.fail(f"{kind} while capturing")
        self.journal.note(kind)
        if stream is not None:
            self.host.wait(stream.clock())

    def synchronize(self, device: Any = None) -> None:
        self.waits("synchronize")
        for stream in self._every():
            self.host.wait(stream.clock())

    def _every(self) -> list[Actor]:
        known = {*self.streams.values(), *self.host.seen}
        for stream in list(known):
            known |= set(stream.seen)
        return [one for one in known if one is not self.host]

    def uses(self, memory: Memory, stream: Stream, what: str, write: bool) -> None:
        """A stream reads or writes memory: in a capture when it is replayed. What a program kept of
        an earlier shadow was written long ago."""
        if memory.gpu is not self:
            return
        if self.graph is not None and memory.pool is None:
            self.graph.touch(memory, write)
            return
        (memory.write if write else memory.read)(stream, self.journal, what)

    def made(self, inner: torch.Tensor, index: int, stream: Stream) -> ShadowTensor:
        """A tensor in new memory that this stream has written."""
        memory = Memory(self, index, stream)
        memory.written = stream, stream.tick
        nbytes = inner.untyped_storage().nbytes()
        if nbytes:
            memory.block = self.devices[index].allocator.take(nbytes, stream)
        return ShadowTensor(inner, memory)

    # Page-locked memory

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in page-locked memory."""
        if type(tensor) is ShadowTensor:
            self.journal.fail("pin_memory of a tensor of the GPU")
        if self.pinned_uses(tensor) is not None:
            return tensor
        with _disable_current_modes():
            made = tensor.clone()
        self.pin_in_place(made)
        return made

    def pin_in_place(self, made: torch.Tensor) -> None:
        if self.graph is not None:
            self.journal.fail("page-locked memory while capturing")
        storage = made.untyped_storage()
        size, uses = self.pinned.take(storage.nbytes())
        self.pinned.uses[storage._cdata] = uses
        finalize(storage, self.pinned.give, storage._cdata, size)

    def pinned_uses(self, tensor: torch.Tensor) -> Uses | None:
        if type(tensor) is ShadowTensor or not self.pinned.uses:
            return None
        return self.pinned.uses.get(tensor.untyped_storage()._cdata)

    def touched_by_host(self, tensor: torch.Tensor, writes: bool) -> None:
        """The host reads, or writes, page-locked memory that the device may be at."""
        uses = self.pinned_uses(tensor)
        if uses is not None:
            self.host.tick += writes
            (uses.write if writes else uses.read)(self.host, self.journal, "page-locked memory")

    # Figures

    def reserved(self, device: Any = None) -> int:
        at = self.devices[self.index_of(device)]
        return at.allocator.reserved + sum(pool.nbytes for pool in at.pools)

    def in_use(self, device: Any = None) -> int:
        return self.devices[self.index_of(device)].allocator.in_use

    def peak(self, which: int, device: Any = None) -> int:
        return self.devices[self.index_of(device)].allocator.peaks[which]

    def forget_peaks(self, device: Any = None) -> None:
        allocator = self.devices[self.index_of(device)].allocator
        allocator.peaks[:] = allocator.in_use, allocator.reserved


def _guard() -> None:
    """Give torch the guard of CUDA devices that does nothing, if it has none. Torch puts it in the
    place of a guard that knows of no device, which a build for CPUs lacks: here is one, whose every
    function says 0."""
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    name = "_ZN3c104impl26device_guard_impl_registryE"
    registry = (ctypes.c_void_p * (_CUDA + 1)).in_dll(ctypes.CDLL(str(library)), name)
    if registry[_CUDA] is None:
        none = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
        functions = (ctypes.c_void_p * 64)(*[ctypes.cast(none, ctypes.c_void_p).value] * 64)
        empty = (ctypes.c_void_p * 1)(ctypes.addressof(functions))
        registry[_CUDA] = ctypes.addressof(empty)
        torch._C._ensureCUDADeviceGuardSet()


def _generator(gpu: ShadowGpu) -> type:
    """``torch.Generator`` that may be of a GPU; it draws as the CPU's does."""
    real = torch.Generator

    class Generator(real):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            made = real.__new__(cls, "cpu")
            made.place = torch.device(device)
            if made.place.type == "cuda":
                gpu.generators.add(made._cdata)
                finalize(made, gpu.generators.discard, made._cdata)
            return made

        def __init__(self, device: Any = "cpu") -> None:
            pass

        @property
        def device(self) -> torch.device:
            return self.place

    return Generator


class _NoGrad(torch.no_grad):
    """Inference mode; operators that are made of others then come here as those others."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__()


def _gradients(gpu: ShadowGpu) -> Callable[..., tuple[torch.Tensor, ...]]:
    """``torch.autograd.grad`` by the CPU's engine, over what the CPU's operators kept: torch's own
    has no thread for a device that is not there."""
    real = torch.autograd.grad

    def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, **more: Any) -> Any:
        given = tree_flatten((outputs, inputs, grad_outputs))[0]
        given = [one for one in given if isinstance(one, torch.Tensor)]
        shadows = [one for one in given if type(one) is ShadowTensor]
        if not shadows:
            return real(outputs, inputs, grad_outputs, **more)
        if len(shadows) < len(given):
            gpu.journal.fail("two devices in a backward pass")
        if gpu.graph is not None:
            gpu.journal.fail("a backward pass while capturing, which the shadow cannot replay")
        index = shadows[0].memory.index
        stream = gpu.launch(index)
        for one in shadows:
            gpu.uses(one.memory, stream, "backward", write=False)
        with _disable_current_modes(), torch.enable_grad():
            asked = (mapped(plain, part) for part in (outputs, inputs, grad_outputs))
            made = real(*asked, **more)
        return tuple(gpu.made(one.detach(), index, stream) for one in made)

    return grad


@contextmanager
def _current(device: Any) -> Iterator[None]:
    gpu = gpu_here()
    before, gpu.current = gpu.current, gpu.index_of(device)
    try:
        yield
    finally:
        gpu.current = before


@contextmanager
def _captured(
    graph: Graph, pool: Pool | None = None, stream: Stream | None = None,
    capture_error_mode: str = "global",
) -> Iterator[None]:  # fmt: skip
    gpu = gpu_here()
    gpu.synchronize()
    gpu.devices[gpu.current].allocator.empty()
    with stream or Stream() as own:
        graph.begin(pool, own)
        try:
            yield
        except BaseException:
            graph.end(own, failed=True)
            raise
        graph.end(own, failed=False)


def _cuda(gpu: ShadowGpu) -> dict[str, Any]:
    """What stands in ``torch.cuda``."""
    properties = SimpleNamespace(**_PROPERTIES)
    return {
        "is_available": lambda: True, "is_initialized": lambda: True, "init": lambda: None,
        "_lazy_init": lambda: None, "device_count": lambda: len(gpu.devices),
        "current_device": lambda: gpu.current, "device": _current,
        "set_device": lambda device: setattr(gpu, "current", gpu.index_of(device)),
        "get_device_name": lambda device=None: "shadow",
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (9, 0),
        "is_bf16_supported": lambda *unused: True,
        "Stream": Stream, "Event": Event, "CUDAGraph": Graph, "graph": _captured,
        "stream": lambda stream: stream or contextlib.nullcontext(),
        "current_stream": lambda device=None: gpu.stream(gpu.index_of(device)),
        "default_stream": lambda device=None: gpu.stream(gpu.index_of(device)),
        "graph_pool_handle": Pool, "synchronize": gpu.synchronize,
        "is_current_stream_capturing": lambda: gpu.graph is not None,
        "_sleep": lambda cycles: None,
        "memory_allocated": gpu.in_use, "memory_reserved": gpu.reserved,
        "max_memory_allocated": lambda device=None: gpu.peak(0, device),
        "max_memory_reserved": lambda device=None: gpu.peak(1, device),
        "reset_peak_memory_stats": gpu.forget_peaks,
        "mem_get_info": lambda device=None: (TOTAL - gpu.reserved(device), TOTAL),
        "empty_cache": lambda: [one.allocator.empty() for one in gpu.devices],
        "set_sync_debug_mode": lambda mode: setattr(
            gpu.journal, "strict", _STRICT if mode in (2, "error") else frozenset()
        ),
    }  # fmt: skip


#: what torch's own debug mode knows of
_STRICT = frozenset({
    "item", "nonzero", "boolean index", "blocking upload", "pageable upload", "blocking download",
    "pageable download", "synchronize",
})  # fmt: skip


@contextmanager
def shadow(devices: int = 1) -> Iterator[ShadowGpu]:
    """A shadow GPU, or several, in place of torch's CUDA; everything is as before behind it."""
    _guard()
    gpu = ShadowGpu(devices)
    RUNNING.append(gpu)
    gpu.start()
    host = {name: getattr(torch.Tensor, name) for name in ("numpy", "tolist", "__array__")}
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def seen(name: str) -> Callable[..., Any]:
        def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if gpu.pinned.uses:
                gpu.touched_by_host(self, writes=name == "numpy")
            return host[name](self, *args, **kwargs)

        return method

    def in_thread(self: threading.Thread) -> None:
        torch._C._set_only_lift_cpu_tensors(True)  # of each thread its own
        with ShadowMode(gpu):
            begin(self)

    def pinned(self: torch.Tensor, device: Any = None) -> bool:
        return gpu.pinned_uses(self) is not None

    lift = torch._C._only_lift_cpu_tensors()
    with ExitStack() as stack:
        for name, value in _cuda(gpu).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        for name in host:
            stack.enter_context(mock.patch.object(torch.Tensor, name, seen(name)))
        pin = lambda self, device=None: gpu.pin(self)  # noqa: E731
        for name, value in (("pin_memory", pin), ("is_pinned", pinned)):
            stack.enter_context(mock.patch.object(torch.Tensor, name, value))
        for name, value in (("Generator", _generator(gpu)), ("inference_mode", _NoGrad)):
            stack.enter_context(mock.patch.object(torch, name, value))
        # Module.to() puts a new parameter in the place of an old one, and not other data into it.
        moved = torch.__future__
        stack.callback(
            moved.set_overwrite_module_params_on_conversion,
            moved.get_overwrite_module_params_on_conversion(),
        )
        moved.set_overwrite_module_params_on_conversion(True)
        stack.enter_context(mock.patch.object(torch.autograd, "grad", _gradients(gpu)))
        stack.enter_context(_without("triton"))  # would want a driver
        stack.enter_context(mock.patch.object(threading.Thread, "_bootstrap_inner", in_thread))
        stack.callback(torch._C._set_only_lift_cpu_tensors, lift)
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(RUNNING.pop)
        stack.enter_context(ShadowMode(gpu))
        yield gpu


@contextmanager
def _without(module: str) -> Iterator[None]:
    """No import of it within. Every other module stays as it was imported: mock.patch.dict would
    take back what was imported within, and the next import would make its classes once more."""
    missing = object()
    before: Any = sys.modules.get(module, missing)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        if before is not missing:
            sys.modules[module] = before


__all__ = ["CudaError", "ShadowGpu", "gpu_here", "shadow"]
