"""Tensors that say ``cuda:0`` and hold CPU memory, and the rules of every operator on them.

:func:`dispatch` is called for each operator with such a tensor, or with a GPU as its device: it
looks at devices, copies and waits, keeps the order of streams, runs the operator on the CPU, and
within a capture records it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false as dense
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from shadow_cuda.memory import Block, Pool
from shadow_cuda.order import Actor, Uses

if TYPE_CHECKING:
    from shadow_cuda.runtime import ShadowGpu

aten = torch.ops.aten
RUNNING: list[ShadowGpu] = []  # the last one is in place
WAITING = {
    "_local_scalar_dense": "item", "is_nonzero": "item", "equal": "item",
    "nonzero": "nonzero", "masked_select": "nonzero", "_unique2": "nonzero",
}  # fmt: skip
RANDOM = {"normal_", "uniform_", "exponential_", "random_", "bernoulli_", "bernoulli", "rand",
          "multinomial", "randn", "randint", "randperm", "native_dropout", "rand_like",
          "randn_like", "normal"}  # fmt: skip
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
#: which take no number that lies on the host, though it has no dimensions
NO_HOST_NUMBER = {"cat", "stack", "mm", "bmm", "addmm", "baddbmm", "index_select", "index_copy",
                  "index_copy_", "gather", "scatter", "scatter_", "embedding", "where"}  # fmt: skip


class Memory(Uses):
    """The storage of shadow tensors: alive while one of them is; given back to what it is from."""

    def __init__(self, gpu: ShadowGpu, index: int, stream: Actor) -> None:
        super().__init__()
        self.gpu, self.index, self.stream = gpu, index, stream
        self.block: Block | None = None
        self.pool: tuple[Pool, torch.Tensor] | None = None
        self.recorded: set[Actor] = set()

    def __del__(self) -> None:
        if self.pool is not None:
            self.pool[0].give(self.pool[1])
        elif self.block is not None:
            others = set(self.unknown_to(self.stream)) - {self.gpu.host} - self.recorded
            if others:
                names = ", ".join(sorted(other.name for other in others))
                self.gpu.journal.errors.append(
                    f"memory of {self.stream.name} was given back while {names} may use it:"
                    " record_stream"
                )
            self.gpu.devices[self.index].allocator.give(self.block)


class ShadowTensor(torch.Tensor):
    """``inner`` of the CPU as a tensor of a GPU; ``memory`` is that of its storage."""

    inner: torch.Tensor
    memory: Memory
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor, memory: Memory) -> ShadowTensor:
        made: ShadowTensor = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, layout=inner.layout, device=torch.device("cuda", memory.index),
        )  # type: ignore[attr-defined]  # fmt: skip
        made.inner, made.memory = inner, memory
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return dispatch(RUNNING[-1], func, args, kwargs or {})

    def requires_grad_(self, wanted: bool = True) -> ShadowTensor:
        """The CPU's operators keep what a gradient needs, and these tensors nothing."""
        self.inner.requires_grad_(wanted)
        return self

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def new_tensor(self, data: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **kwargs})

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def record_stream(self, stream: Actor) -> None:
        self.memory.recorded.add(stream)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"ShadowTensor({tuple(self.shape)}, {self.dtype}, {self.device})"


class About(NamedTuple):
    """What an operator's schema says: positions and names of what it writes, whether it returns a
    view, and whether it returns what it writes."""

    name: str
    writes: tuple[tuple[int, str], ...]
    view: bool
    returns_written: bool


@lru_cache(None)
def about(func: Any) -> About:
    schema = func._schema
    alias = [argument.alias_info for argument in schema.arguments]
    writes = tuple(
        (at, argument.name)
        for at, argument in enumerate(schema.arguments)
        if alias[at] is not None and alias[at].is_write
    )
    given = [one.alias_info for one in schema.returns if one.alias_info is not None]
    view = any(one is not None and not one.is_write for one in alias) and any(
        not one.is_write for one in given
    )
    own = len(schema.returns) == 1 and bool(given) and given[0].is_write
    return About(schema.name.split("::")[1], writes, view, own)


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """All tensors of a call, those in lists too."""
    for one in (*args, *kwargs.values()):
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from (each for each in one if isinstance(each, torch.Tensor))


def mapped(function: Callable[[Any], Any], one: Any) -> Any:
    """A function of each element of tuples, lists and dicts."""
    kind = type(one)
    if kind is tuple or kind is list:
        return kind([mapped(function, each) for each in one])
    if kind is dict:
        return {name: mapped(function, each) for name, each in one.items()}
    return function(one)


def plain(one: Any) -> Any:
    """What the CPU's operator is given."""
    if isinstance(one, ShadowTensor):
        return one.inner
    if isinstance(one, torch.device):
        return torch.device("cpu") if one.type == "cuda" else one
    return one


def baked(one: Any) -> Any:
    """The same within a capture: a number of the host stays what it is now."""
    number = isinstance(one, torch.Tensor) and type(one) is not ShadowTensor and not one.dim()
    return one.clone() if number else plain(one)


class ShadowMode(TorchDispatchMode):
    """Sees the operators that no shadow tensor is in: those that make one, and those on page-locked
    memory, which the host may not touch while the device does."""

    def __init__(self, gpu: ShadowGpu) -> None:
        super().__init__()
        self.gpu = gpu

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to be kept from it costs its import, seconds

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        given = list(tensors_of(args, kwargs))
        if any(type(t) is ShadowTensor for t in given) or (
            device is not None and torch.device(device).type == "cuda"
        ):
            return dispatch(self.gpu, func, args, kwargs)
        if kwargs.get("pin_memory"):
            made = func(*args, **{**kwargs, "pin_memory": False})
            return self.gpu.pin(made)
        if self.gpu.pinned.uses and not (known := about(func)).view:
            written = {id(args[at]) for at, _ in known.writes if at < len(args)}
            for tensor in given:
                self.gpu.touched_by_host(tensor, writes=id(tensor) in written)
        return func(*args, **kwargs)


def dispatch(gpu: ShadowGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One operator."""
    known = about(func)
    given = list(tensors_of(args, kwargs))
    shadows = [t for t in given if type(t) is ShadowTensor]
    device = kwargs.get("device")
    device = None if device is None else torch.device(device)
    if known.name == "_fused_sdp_choice":
        return 0  # plain products: the others are written for one kind of device
    if known.name in ("copy_", "_to_copy") and crosses(shadows, given, device):
        return transfer(gpu, func, args, kwargs, device)
    index = place_of(gpu, known, given, shadows, device)
    check_waits(gpu, known, args, kwargs, shadows)
    return run(gpu, func, known, args, kwargs, shadows, index)


def place_of(
    gpu: ShadowGpu,
    known: About,
    given: list[torch.Tensor],
    shadows: list[ShadowTensor],
    device: torch.device | None,
) -> int:
    """The GPU that an operator runs on; CudaError: its tensors lie on several devices."""
    name = known.name
    if not shadows:
        assert device is not None
        return gpu.current if device.index is None else device.index
    places = {t.memory.index for t in shadows}
    if len(places) > 1 and name not in ("copy_", "_to_copy"):
        gpu.journal.fail(f"two GPUs in {name}: cuda:{min(places)} and cuda:{max(places)}")
    host = [t for t in given if type(t) is not ShadowTensor]
    wide = [t for t in host if t.dim()]
    if type(given[0]) is not ShadowTensor and given[0].dim() and name in INDEXED:
        gpu.journal.fail(f"two devices in {name}: a tensor of the CPU by indices of cuda")
    if wide and name in INDEXED:
        gpu.waits("host index")
    elif wide:
        shapes = ", ".join(str(list(t.shape)) for t in wide)
        gpu.journal.fail(f"two devices in {name}: cuda, and {shapes} of the CPU")
    elif host and name in NO_HOST_NUMBER:
        gpu.journal.fail(f"two devices in {name}: cuda, and a number of the CPU")
    place = shadows[0].memory.index
    if name in ("copy_", "_to_copy"):
        other = gpu.index_of(device) if device is not None else shadows[-1].memory.index
        if other != place:  # torch lets either's current stream wait for the other's
            gpu.stream(other).wait(gpu.stream(place).clock())
            gpu.stream(place).wait(gpu.stream(other).clock())
        return other if device is not None else place
    return place


def check_waits(
    gpu: ShadowGpu, known: About, args: tuple[Any, ...], kwargs: dict[str, Any],
    shadows: list[ShadowTensor],
) -> None:  # fmt: skip
    """Note what makes the host wait, or cannot be captured."""
    name = known.name
    if (kind := WAITING.get(name)) and shadows:
        gpu.waits(kind, gpu.stream(shadows[0].memory.index))
    if name in INDEXED:
        masks = (torch.bool, torch.uint8)
        if any(isinstance(i, torch.Tensor) and i.dtype in masks for i in args[1] if i is not None):
            gpu.waits("boolean index")
    if name in RANDOM:
        generator = kwargs.get("generator")
        if generator is not None and generator._cdata not in gpu.generators:
            gpu.journal.fail(f"{name} on cuda by a generator of the CPU")
        if gpu.graph is not None:
            gpu.journal.fail(f"{name} while capturing: a replay would draw anew")


def crosses(
    shadows: list[ShadowTensor], given: list[torch.Tensor], device: torch.device | None
) -> bool:
    """Whether a copy goes from the host to a device or back."""
    if device is not None:
        return (device.type == "cuda") != bool(shadows)
    return bool(shadows) and len(shadows) < len(given)


def run(
    gpu: ShadowGpu,
    func: Any,
    known: About,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shadows: list[ShadowTensor],
    index: int,
) -> Any:
    """The operator on the CPU; its results as tensors of the GPU."""
    given = plain if gpu.graph is None else baked
    a, k = mapped(given, args), mapped(given, kwargs)
    if k.get("pin_memory"):
        k = {**k, "pin_memory": False}
    if known.view:
        with _disable_current_modes(), followed(shadows):
            return wrapped(gpu, func(*a, **k), shadows[0].memory)
    stream = gpu.launch(index)
    written = [args[at] if at < len(args) else kwargs.get(n) for at, n in known.writes]
    flat = [t for t in tensors_of(tuple(written), {}) if type(t) is ShadowTensor]
    graph = gpu.graph
    for tensor in shadows:
        if not any(tensor is one for one in flat):
            gpu.uses(tensor.memory, stream, known.name, write=False)
    for tensor in flat:
        gpu.uses(tensor.memory, stream, known.name, write=True)
    if graph is not None and written and known.returns_written:
        graph.record(func, a, k, None)
        if any(t.memory.pool is None for t in flat):  # nothing is done to it before a replay
            return written[0]
    with _disable_current_modes(), followed(shadows):
        out = func(*a, **k)
    if known.returns_written:
        return written[0]
    if graph is None:
        return fresh(gpu, out, shadows, index, stream)
    return graph.keep(func, a, k, out, shadows, index, stream)


def followed(shadows: list[ShadowTensor]) -> AbstractContextManager[Any]:
    """How an operator on the CPU is called: for a gradient, where what it is given asks for one."""
    if torch.is_grad_enabled() and any(t.inner.requires_grad for t in shadows):
        # An operator comes here with autograd behind it: for the CPU's it begins anew.
        return torch._C._SetExcludeDispatchKeyGuard(
            torch._C.DispatchKey.AutogradFunctionality, False
        )
    return torch.no_grad()


def wrapped(gpu: ShadowGpu, out: Any, memory: Memory) -> Any:
    if isinstance(out, torch.Tensor):
        return ShadowTensor(out, memory)
    if isinstance(out, (list, tuple)):
        return type(out)(ShadowTensor(one, memory) for one in out)
    return out


def fresh(gpu: ShadowGpu, out: Any, shadows: list[ShadowTensor], index: int, stream: Actor) -> Any:
    """Results, each in memory of its own, or in that of an input that it is a view of."""

    def one(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        storage = tensor.untyped_storage()
        for other in shadows:
            if other.inner.untyped_storage()._cdata == storage._cdata:
                return ShadowTensor(tensor, other.memory)
        return gpu.made(tensor, index, stream)

    return mapped(one, out)


def transfer(
    gpu: ShadowGpu,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device | None,
) -> Any:
    """A copy between host and device. From page-locked memory nobody waits, if it is asked for so,
    if the types are the same and nothing is to be laid out anew: else torch makes a copy on the
    host first, which is in no such memory."""
    made = func is not aten.copy_.default
    source = args[0] if made else args[1]
    target = None if made else args[0]
    quick = kwargs.get("non_blocking", args[2] if not made and len(args) > 2 else False)
    dtype = kwargs.get("dtype") or source.dtype if made else target.dtype
    up = type(source) is not ShadowTensor
    with _disable_current_modes(), torch.no_grad():
        if made:
            kept = torch.preserve_format
            target = torch.empty_like(plain(source), dtype=dtype, memory_format=kept)
    alike = source.dtype == dtype and same_order(source, target)
    pinned = gpu.pinned_uses(source if up else target)
    index = source.memory.index if not up else gpu.index_of(device, target)
    if up and made:
        target = gpu.made(target, index, gpu.stream(index))
    if source.numel() == 0:
        return target
    if not up and made and quick:  # torch gives page-locked memory then
        gpu.pin_in_place(target)
        pinned = gpu.pinned_uses(target)
    quick = bool(quick and alike and pinned is not None)
    way = "upload" if up else "download"
    kind = way if quick else f"{'blocking' if pinned is not None and alike else 'pageable'} {way}"
    if quick:
        gpu.journal.note(kind)
    else:
        gpu.waits(kind)
    stream = gpu.launch(index)
    memory = target.memory if up else source.memory
    gpu.uses(memory, stream, kind, write=up)
    if pinned is not None:
        (pinned.read if up else pinned.write)(stream, gpu.journal, "page-locked memory")
    if gpu.graph is not None:
        gpu.graph.record(aten.copy_.default, (plain(target), plain(source)), {}, None)
        return target
    with _disable_current_modes(), torch.no_grad():
        plain(target).copy_(plain(source))
    if not quick:
        gpu.host.wait(stream.clock())
    return target


def same_order(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a copy between them is one run of bytes."""
    if one.shape != other.shape:
        return False
    if one.is_contiguous() and other.is_contiguous():
        return True
    return one.stride() == other.stride() and dense(one)


Recorded = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]
