"""A token policy's tensors, each read when its place in the network is made, so that memory holds
no second copy of a model.

:class:`Streamed` is a checkpoint's: asked again it reads again. :class:`Kept` is a network's: what
it asked for stays, under its name, and what it laid out otherwise does not. Matrices that are
multiplied together are read into one, row by row; :class:`StreamedMatrices` are those of few bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence

import torch

from vla_ros.engine.io.weights import Shape, row_blocks
from vla_ros.engine.layers.linear import LowBit, Stored, stacked, stored_shapes


class Streamed(Mapping[str, torch.Tensor]):
    """Tensors by name, on a device in a dtype.

    ``view`` is a tensor as it is stored, ``shapes`` their names and shapes, ``wanted`` the device
    and the dtype of one that ``view`` gave. Each that is asked for is in memory of its own.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        view: Callable[[str], torch.Tensor],
        wanted: Callable[[str, torch.Tensor], tuple[torch.device, torch.dtype]],
    ) -> None:
        self.shapes, self.view, self.wanted = shapes, view, wanted

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self.fused([name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def fused(self, names: Sequence[str], dim: int = 0) -> torch.Tensor:
        """One tensor of several, behind each other along ``dim``."""
        first = self.view(names[0])
        device, dtype = self.wanted(names[0], first)
        size = list(first.shape)
        if len(names) > 1:
            size[dim] = sum(self.shapes[name][dim] for name in names)
        whole, begin = torch.empty(size, device=device, dtype=dtype), 0
        for number, name in enumerate(names):
            part = self.view(name) if number else first
            if len(names) == 1:
                whole.copy_(part)
            else:
                whole.narrow(dim, begin, part.shape[dim]).copy_(part)
                begin += part.shape[dim]
        return whole

    def lent(self, name: str) -> torch.Tensor:
        """One to be copied: the file's own where that is on the device, in the dtype."""
        view = self.view(name)
        device, dtype = self.wanted(name, view)
        return view.to(device, dtype)

    def rows(self, names: Sequence[str]) -> Iterator[torch.Tensor]:
        """The rows of several matrices below each other, some at a time."""
        for name in names:
            view = self.view(name)
            device, dtype = self.wanted(name, view)
            for block in row_blocks(view):
                yield block.to(device, dtype)

    def only(self, names: Iterable[str]) -> Streamed:
        """Some of them."""
        return Streamed({name: self.shapes[name] for name in names}, self.view, self.wanted)


class Kept(MutableMapping[str, torch.Tensor]):
    """Tensors that a network took of ``source``, by name: one that is asked for is taken and stays.

    Until :meth:`finish` those that nobody asked for yet are among them too. Of those that were
    :meth:`taken` otherwise there is none.
    """

    def __init__(self, source: Mapping[str, torch.Tensor]) -> None:
        self._source: Mapping[str, torch.Tensor] = source
        self._here: dict[str, torch.Tensor] = {}
        self._gone: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._gone:
            raise KeyError(name)
        if name not in self._here:
            self._here[name] = self._source[name]
        return self._here[name]

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        self._gone.discard(name)
        self._here[name] = tensor

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._here.pop(name, None)
        self._gone.add(name)

    def __contains__(self, name: object) -> bool:  # and none is read for it
        return name not in self._gone and (name in self._here or name in self._source)

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys((*self._here, *self._source))
        return iter([name for name in names if name not in self._gone])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def fused(self, names: Sequence[str]) -> torch.Tensor:
        """One tensor of several, one below the other, which become views of it: so memory is paid
        once."""
        if len(names) == 1:
            return self[names[0]]
        whole = self._whole(names)
        begin = 0
        for name in names:
            count = self._rows(name)
            self[name] = whole[begin : begin + count]
            begin += count
        return whole

    def taken(self, names: Sequence[str]) -> tuple[torch.Tensor, list[int]]:
        """One tensor of several, one below the other, which are no longer here, to be laid out
        otherwise; and the rows of each."""
        rows = [self._rows(name) for name in names]
        whole = self._whole(names)
        for name in names:
            del self[name]
        return whole, rows

    def finish(self) -> None:
        """Take what is left."""
        self._here = dict(self)
        self._source = {}

    def _rows(self, name: str) -> int:
        if name not in self._here and isinstance(self._source, Streamed):
            return self._source.shapes[name][0]
        return len(self[name])

    def _whole(self, names: Sequence[str]) -> torch.Tensor:
        source = self._source
        if isinstance(source, Streamed) and not any(name in self._here for name in names):
            return source.fused(names) if len(names) > 1 else source.lent(names[0])
        parts = [self[name] for name in names]
        return torch.cat(parts) if len(parts) > 1 else parts[0]


class StreamedMatrices(Mapping[str, LowBit]):
    """Matrices [N, K] of few bits by name: ``kinds`` their formats, ``shapes`` their sizes.
    ``make`` makes one of those of some names, below each other, in the format of the first."""

    def __init__(
        self,
        kinds: Mapping[str, str],
        shapes: Mapping[str, Shape],
        make: Callable[[Sequence[str]], Stored],
    ) -> None:
        self.kinds, self.shapes, self.make = kinds, shapes, make

    def __getitem__(self, name: str) -> LowBit:
        if name not in self.kinds:
            raise KeyError(name)
        return self.make([name])

    def __contains__(self, name: object) -> bool:
        return name in self.kinds

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)


def matrix_of(few: Mapping[str, LowBit], names: Sequence[str]) -> LowBit:
    """One matrix of those of some names, below each other."""
    if isinstance(few, StreamedMatrices):
        return few.make(names)
    return stacked([few[name] for name in names]) if len(names) > 1 else few[names[0]]


def size_of(few: Mapping[str, LowBit]) -> tuple[int, int]:
    """Parameters and bytes of matrices of few bits, of which none is made."""
    if not isinstance(few, StreamedMatrices):
        return sum(m.parameters for m in few.values()), sum(m.nbytes for m in few.values())
    parameters = size = 0
    for name, kind in few.kinds.items():
        count, width = few.shapes[name]
        parameters += count * width
        size += stored_bytes(count, width, kind)
    return parameters, size


def stored_bytes(count: int, width: int, kind: str) -> int:
    """Bytes of a matrix [N, K] in a format of few bits."""
    values, scale = (torch.Size(shape).numel() for shape in stored_shapes(count, width, kind))
    return values + scale * (4 if kind == "fp8" else 2)
