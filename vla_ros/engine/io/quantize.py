"""The quantizer: which matrices are in int8, int4 or fp8, made while loading or ahead of time.

A directory that was quantized ahead of time has a ``quantised.json``. Of a quantized ``X.weight``
it holds ``X.weight.int8``, ``.int4`` or ``.fp8`` and ``X.weight.scale`` in its place.

Of a token policy the tensors are quantized one by one. Of a flow policy a family says how a matrix
is made of a checkpoint's tensors (Q, K and V on top of each other, the weight of a norm folded in)
and to which part it belongs; here it is made, and stored as it is or in fewer bits, so what is
quantized is what is multiplied, and a family knows no format. Its directory holds such a matrix
``X`` as ``X.int8``, ``X.scale``, and ``X.bias`` where it has one; ``quantised.json`` lists all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.formats import STORED, Formats, parse_formats
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.io.files import give_back_freed, read_json, write_json
from vla_ros.engine.io.linear import Linear
from vla_ros.engine.io.streamed import Streamed, StreamedMatrices
from vla_ros.engine.io.weights import (
    QUANTIZED,
    Expected,
    FileWeights,
    Shape,
    Shapes,
    TensorReader,
    Weights,
    read_headers,
    refuse_faults,
    row_blocks,
    weight_files,
)
from vla_ros.engine.layers import linear as low_bit
from vla_ros.engine.layers.flow_matching import RtcMode
from vla_ros.engine.layers.kernels.torch_products import GROUP
from vla_ros.engine.layers.linear import (
    KINDS,
    LowBit,
    LowBitLinear,
    Stored,
    Weight,
    kind_of,
    linear,
)
from vla_ros.engine.layers.ternary import Ternary
from vla_ros.engine.layers.tuner import TunedWeight

T = TypeVar("T")
CPU = torch.device("cpu")
HEAD_WEIGHT = "language_model.lm_head.weight"
_EMBEDDING = "language_model.model.embed_tokens.weight"
#: The part that a token policy's matrix belongs to. Of OFT's action head what is wide: its last
#: map makes the few values of an action.
_PARTS = {
    "decoder": re.compile(r"language_model\.model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight"),
    "head": re.compile(
        r"language_model\.lm_head\.weight"
        r"|action_head\.model\.(fc1|mlp_resnet_blocks\.\d+\.ffn\.1)\.weight"
    ),
    "vision": re.compile(
        r"(vision_backbone\..*\.blocks\.\d+\.(attn|mlp)\.\w+|projector\.fc\d)\.weight"
    ),
}
#: the parts of a flow policy
VISION, DECODER, HEAD = "vision", "decoder", "head"
TERNARY = (
    "BitVLA's weights are -1, 0 or 1 times a scale and take two bits as they are: leave out weights"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The content of ``quantised.json``: the formats, of what checkpoint it was made, and of a flow
    policy the names of all its tensors."""

    formats: Formats
    source: str = ""
    source_sha256: str = ""
    tensors: tuple[str, ...] = ()


def read_origin(directory: Path) -> Origin | None:
    """None: nothing in this directory is quantized. CheckpointError: the file is no good."""
    path = directory / QUANTIZED
    if not path.is_file():
        return None
    raw = read_json(path)
    try:
        if raw.get("group") != GROUP:
            raise ValueError(f"groups of {raw.get('group')}, {GROUP} is read")
        formats = parse_formats(str(raw.get("weights", "")))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    names = raw.get("tensors", [])
    if not isinstance(names, list):
        raise CheckpointError(f"{path}: tensors is no list of names")
    source, sha256 = str(raw.get("source", "")), str(raw.get("source_sha256", ""))
    return Origin(formats, source, sha256, tuple(map(str, names)))


def write_origin(directory: Path, origin: Origin) -> None:
    """The file that :func:`read_origin` reads."""
    content = {
        "weights": str(origin.formats),
        "group": GROUP,
        "source": origin.source,
        "source_sha256": origin.source_sha256,
        **({"tensors": list(origin.tensors)} if origin.tensors else {}),
    }
    write_json(directory / QUANTIZED, content)


def already(directory: Path) -> str:
    """The refusal of a directory that was quantized ahead of time."""
    return (
        f"{directory} is quantized already: leave out weights, or name the checkpoint that it was"
        " made of"
    )


def refuse_unless_fast(device: torch.device, dtype: torch.dtype, what: str) -> None:
    """CheckpointError where torch has no products of few bits, or slow ones."""
    if device.type not in ("cpu", "cuda"):
        raise CheckpointError(f"{what}: these run on a CPU or on CUDA, not on {device.type}")
    if dtype != torch.bfloat16:
        raise CheckpointError(
            f"{what}: torch multiplies them fast with bfloat16 only: give dtype bfloat16"
        )


def refuse_flow_formats(
    source: Path | str, formats: Formats, device: torch.device, dtype: torch.dtype, rtc: str = ""
) -> None:
    """CheckpointError in one line where a flow policy's weights cannot be in these formats, or
    those of a folder that was quantized ahead of time cannot be here; reads no weights."""
    origin = read_origin(source) if isinstance(source, Path) else None
    what = f"weights {formats}"
    if origin is not None:
        if formats:
            raise CheckpointError(already(Path(source)))
        formats, what = origin.formats, f"{source} has {origin.formats}"
    if not formats:
        return
    refuse_unless_fast(device, dtype, what)
    if rtc == RtcMode.GUIDED_VJP and formats.head != STORED:
        raise CheckpointError(
            "rtc_mode 'guided_vjp' follows gradients through the action expert, and products in"
            f" {formats.head} have none: give rtc_mode 'guided', or head=bf16"
        )


# Token policies: tensor by tensor.


def format_of(name: str, formats: Formats, config: ModelConfig) -> str:
    """The format of a tensor, ``bf16`` for one that stays: such as OFT's head of logits, which no
    action comes from."""
    if name == HEAD_WEIGHT and config.parallel:
        return STORED
    part = next((part for part, names in _PARTS.items() if names.fullmatch(name)), None)
    return STORED if part is None else str(getattr(formats, part))


def stored_shapes(wanted: Shapes, config: ModelConfig, formats: Formats) -> Shapes:
    """What a directory holds in these formats, of what it would hold as it was."""
    out: Shapes = {}
    for name, shape in with_head(wanted, config, formats).items():
        kind = format_of(name, formats, config)
        if kind == STORED:
            out[name] = shape
            continue
        count, width = shape
        out[f"{name}.{kind}"], out[f"{name}.scale"] = low_bit.stored_shapes(count, width, kind)
    return out


def with_head(wanted: Mapping[str, T], config: ModelConfig, formats: Formats) -> dict[str, T]:
    """``wanted``, and a head that is stored apart from the embedding that it is tied to."""
    apart = config.text.tied and not config.parallel and formats.head != STORED
    return {**wanted, HEAD_WEIGHT: wanted[_EMBEDDING]} if apart else dict(wanted)


def _quantized(blocks: Iterable[torch.Tensor], count: int, width: int, kind: str) -> Stored:
    """A matrix [N, K] of some rows at a time. Between matrices the holes that float32 rows leave
    are given back: they came to a quarter of a model while it was loaded."""
    made = low_bit.quantize_rows(blocks, count, width, kind)
    give_back_freed()
    return made


def quantize_tensors(
    tensors: Mapping[str, torch.Tensor], config: ModelConfig, formats: Formats
) -> tuple[Mapping[str, torch.Tensor], StreamedMatrices]:
    """Tensors of a checkpoint in bfloat16 -> those that stay, and the others, each quantized when
    it is asked for."""
    streamed = tensors if isinstance(tensors, Streamed) else None
    if streamed is not None:
        shapes = streamed.shapes
    else:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    there = with_head({name: name for name in shapes}, config, formats)  # whose numbers it has
    every = {name: format_of(name, formats, config) for name in there}
    kinds = {name: kind for name, kind in every.items() if kind != STORED}
    sizes = {name: shapes[there[name]] for name in kinds}

    def rows(names: Sequence[str]) -> Iterator[torch.Tensor]:
        source = [there[name] for name in names]
        if streamed is not None:
            yield from streamed.rows(source)
        else:
            for name in source:
                yield from row_blocks(tensors[name])

    def make(names: Sequence[str]) -> Stored:
        count, width = sum(sizes[name][0] for name in names), sizes[names[0]][1]
        return _quantized(rows(names), count, width, kinds[names[0]])

    kept = [name for name in there if name not in kinds]
    matrices = StreamedMatrices(kinds, sizes, make)
    if streamed is not None:
        return streamed.only(kept), matrices
    return {name: tensors[name] for name in kept}, matrices


def as_stored(made: Mapping[str, LowBit]) -> dict[str, torch.Tensor]:
    """Tensors under the names of a directory."""
    out: dict[str, torch.Tensor] = {}
    for name, matrix in made.items():
        assert not isinstance(matrix, Ternary)  # of BitVLA, which is never written
        out[f"{name}.{kind_of(matrix)}"], out[f"{name}.scale"] = matrix.values, matrix.scale
    return out


def from_stored(tensors: Streamed, shapes: Shapes) -> tuple[Streamed, StreamedMatrices]:
    """The other way round: the tensors that stayed, and the quantized ones, of these shapes."""
    kinds = {}
    for name in tensors:
        base, _, kind = name.rpartition(".")
        if kind in KINDS:
            kinds[base] = kind

    def make(names: Sequence[str]) -> Stored:
        kind = kinds[names[0]]
        values = tensors.fused([f"{name}.{kind}" for name in names])
        scale = tensors.fused([f"{name}.scale" for name in names], dim=int(kind == "int4"))
        return low_bit.from_stored(kind, values, scale, shapes[names[0]][1])

    made = {f"{name}.{end}" for name, kind in kinds.items() for end in (kind, "scale")}
    sizes = {name: shapes[name] for name in kinds}
    return tensors.only(n for n in tensors if n not in made), StreamedMatrices(kinds, sizes, make)


# Flow policies: matrix by matrix, each made of a checkpoint's tensors.


class Take(Protocol):
    """What a matrix is made of: tensors float32 on the model's device, by name."""

    def __call__(self, name: str) -> torch.Tensor:
        """All of one."""
        ...

    def rows(self, name: str) -> Rows:
        """One, some of its rows at a time."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A matrix [N, K] as its rows come: ``blocks`` [n, K] of any float type, to be read once."""

    shape: tuple[int, int]
    blocks: Iterable[torch.Tensor]

    @staticmethod
    def of(matrix: torch.Tensor) -> Rows:
        """One that is there."""
        count, width = matrix.shape
        return Rows((count, width), (matrix,))

    def placed(self, like: torch.Tensor) -> torch.Tensor:
        """The matrix as ``like``: no more of it is in another type than some rows."""
        whole, begin = like.new_empty(self.shape), 0
        for block in self.blocks:
            whole[begin : begin + len(block)].copy_(block)
            begin += len(block)
        return whole


#: What makes a matrix [N, K], and a bias [N] if it has one, of tensors
Make = Callable[[Take], tuple[Rows, torch.Tensor | None]]
MakeMatrix = Callable[[Take], torch.Tensor | Rows]
MakeLinear = Callable[[Take], Linear | tuple[Rows, torch.Tensor]]
Made = tuple[Weight, torch.Tensor | None]


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """y = W x + b, W in any format."""

    weight: Weight
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(slots=True)
class Record:
    """What a directory in these formats holds: ``kept``, the names of a checkpoint's tensors that
    are read as they are, and ``made``, tensors on the CPU by their names there, unless ``counting``
    alone is wanted: of the bytes that are ``saved``."""

    counting: bool = False
    saved: int = 0
    kept: set[str] = field(default_factory=set)
    made: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, name: str, kind: str, few: Stored, bias: torch.Tensor | None, size: int) -> None:
        """A matrix that would be ``size`` bytes otherwise."""
        self.saved += size - few.nbytes
        if self.counting:
            return
        stored = {f"{name}.{kind}": few.values, f"{name}.scale": few.scale}
        if bias is not None:
            stored[f"{name}.bias"] = bias
        self.made |= {n: t.cpu() for n, t in stored.items()}


class QuantizingWeights(Weights):
    """Weights whose matrices are quantized as they are read."""

    def __init__(self, within: Weights, formats: Formats, record: Record | None = None) -> None:
        self._within, self._formats = within, formats
        self._record = record
        self._making = False

    def take(self, name: str) -> torch.Tensor:
        if self._record is not None and not self._making:
            self._record.kept.add(name)
        return self._within.take(name)

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        if self._record is not None and not self._making:
            self._record.kept.add(name)
        return self._within.blocks(name)

    def shape(self, name: str) -> Shape:
        return self._within.shape(name)

    def take_row(self, name: str, row: int) -> torch.Tensor:
        if self._record is not None:
            self._record.kept.add(name)
        taken: torch.Tensor = self._within.take_row(name, row)  # type: ignore[attr-defined]
        return taken

    def made(self, name: str, part: str, like: torch.Tensor, make: Make, take: Take) -> Made:
        """A matrix and its bias in the format of their part."""
        kind = getattr(self._formats, part)
        if kind == STORED:
            return plain(like, make, take)
        self._making = True
        try:
            rows, bias = make(take)
            few = _quantized(rows.blocks, *rows.shape, kind)
        finally:
            self._making = False
        if self._record is not None:
            self._record.add(name, kind, few, bias, few.parameters * like.itemsize)
        return few.ready(), None if bias is None else bias.to(like)


class PreparedWeights(Weights):
    """Weights whose matrices, where no format has them, come as ``prepare`` makes them: laid out as
    a CPU multiplies, or tuned. Those of some ``parts``: others' products could have gradients."""

    def __init__(
        self, within: Weights, parts: Collection[str], prepare: Callable[[torch.Tensor], Weight]
    ) -> None:
        self.within, self.parts, self.prepare = within, parts, prepare

    def take(self, name: str) -> torch.Tensor:
        return self.within.take(name)

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        return self.within.blocks(name)

    def shape(self, name: str) -> Shape:
        return self.within.shape(name)

    def take_row(self, name: str, row: int) -> torch.Tensor:
        taken: torch.Tensor = self.within.take_row(name, row)  # type: ignore[attr-defined]
        return taken


class QuantizedWeights(FileWeights):
    """Weights of a folder that was quantized ahead of time, read back. All names and the shapes of
    what was kept are checked here, a matrix' when it is read."""

    def __init__(self, directory: Path, expected: Expected, origin: Origin) -> None:
        (self._path,) = weight_files(directory)
        self._formats, self._expected = origin.formats, expected
        self._found = found = read_headers([self._path])
        made = (*KINDS, "scale", "bias")
        must, listed = expected.must, set(origin.tensors)
        self._kept = kept = {n for n in found if n.rpartition(".")[2] not in made or n in must}
        lists = {
            "missing": [n for n in origin.tensors if n not in found],
            "extra": [n for n in found if n not in listed or n in kept - set(must)],
            "of the wrong shape": [
                f"{n} is {list(found[n].shape)}, wanted {list(must[n])}"
                for n in found
                if n in must and found[n].shape != tuple(must[n])
            ],
        }
        refuse_faults(directory, lists)
        self._names = {name: name for name in found}
        self._tensor = TensorReader(found)

    def take_row(self, name: str, row: int | None) -> torch.Tensor:
        """A tensor as it is stored. CheckpointError: a matrix of fewer bits lies there."""
        self._refuse_lost(name)
        return super().take_row(name, row)

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        self._refuse_lost(name)
        return super().blocks(name)

    def shape(self, name: str) -> Shape:
        self._refuse_lost(name)
        return super().shape(name)

    def read_all(self, names: Iterable[str]) -> tuple[str, ...]:
        """Read every matrix once; returns those of ``names`` that can be taken."""
        for name in self._found:
            if name not in self._kept:
                self._tensor(name)
        return tuple(name for name in names if name in self._kept)

    def made(self, name: str, part: str, like: torch.Tensor, make: Make, take: Take) -> Made:
        """A matrix and its bias in the format of their part."""
        kind = getattr(self._formats, part)
        if kind == STORED:
            return plain(like, make, take)
        rows, bias = make(_Shapes(self._expected.must))
        count, width = rows.shape
        values, scale = (
            self._of_shape(f"{name}.{what}", shape).to(like.device)
            for what, shape in zip(
                (kind, "scale"), low_bit.stored_shapes(count, width, kind), strict=True
            )
        )
        few = low_bit.from_stored(kind, values, scale, width)
        if bias is None:
            return few.ready(), None
        return few.ready(), self._of_shape(f"{name}.bias", tuple(bias.shape)).to(like)

    def _of_shape(self, name: str, shape: Shape) -> torch.Tensor:
        self._refuse_lost(name)
        tensor = self._tensor(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{self._path}: {name} is {list(tensor.shape)}, wanted {list(shape)}"
            )
        return tensor.clone()

    def _refuse_lost(self, name: str) -> None:
        if name not in self._names:
            raise CheckpointError(f"{self._path} lacks {name}: quantize the checkpoint again")


def quantized_weights(directory: Path, expected: Expected) -> QuantizedWeights | None:
    """None: nothing in this folder is quantized. CheckpointError: it is, and is no good."""
    origin = read_origin(directory)
    return None if origin is None else QuantizedWeights(directory, expected, origin)


def matrix(
    weights: Weights, name: str, part: str, like: torch.Tensor, make: MakeMatrix | None = None
) -> Weight:
    """The matrix ``name`` of a ``part``, in its format or in the dtype of ``like``, on its device.

    ``make`` is given what takes tensors, float32 on that device, and takes each once; without it
    the matrix is the weight of that name.
    """

    def alone(take: Take) -> tuple[Rows, None]:
        made = take.rows(f"{name}.weight") if make is None else make(take)
        return Rows.of(made) if isinstance(made, torch.Tensor) else made, None

    return _made(weights, name, part, like, alone)[0]


def mapped(
    weights: Weights, name: str, part: str, like: torch.Tensor, make: MakeLinear | None = None
) -> Map:
    """A matrix as of :func:`matrix`, and its bias; without ``make`` these are two tensors."""

    def both(take: Take) -> tuple[Rows, torch.Tensor]:
        if make is None:
            return take.rows(f"{name}.weight"), take(f"{name}.bias")
        made = make(take)
        return (Rows.of(made.weight), made.bias) if isinstance(made, Linear) else made

    weight, bias = _made(weights, name, part, like, both)
    assert bias is not None
    return Map(weight, bias)


def read_table(weights: Weights, name: str, like: torch.Tensor) -> torch.Tensor:
    """A tensor that is no matrix of a map, such as word embeddings, as ``like``."""
    whole, begin = like.new_empty(weights.shape(name)), 0
    for block in weights.blocks(name):
        whole[begin : begin + len(block)].copy_(block)
        begin += len(block)
    return whole


def placed(module: torch.nn.Module, maps: Mapping[str, Map]) -> dict[str, torch.Tensor]:
    """Put those of few bits, or that are prepacked, in the place of a module's maps; returns the
    tensors of the others, by their names in its state."""
    state: dict[str, torch.Tensor] = {}
    for path, made in maps.items():
        if isinstance(made.weight, torch.Tensor):
            state |= {f"{path}.weight": made.weight, f"{path}.bias": made.bias}
            continue
        assert not isinstance(made.weight, TunedWeight)
        place, _, own = path.rpartition(".")
        setattr(module.get_submodule(place), own, LowBitLinear(made.weight, made.bias))
    return state


def plain(like: torch.Tensor, make: Make, take: Take) -> Made:
    """The map as it is stored."""
    rows, bias = make(take)
    return rows.placed(like), None if bias is None else bias.to(like)


def as_it_is(name: str) -> Callable[[Take], Linear]:
    """The maker of a map that is nothing but its two tensors."""
    return lambda take: Linear(take(f"{name}.weight"), take(f"{name}.bias"))


class _Taking:
    """Tensors of some weights on a device."""

    def __init__(self, weights: Weights, device: torch.device) -> None:
        self._weights, self._device = weights, device

    def __call__(self, name: str) -> torch.Tensor:
        return self._weights.take(name).to(self._device)

    def rows(self, name: str) -> Rows:
        count, width = self._weights.shape(name)
        blocks = (block.to(self._device) for block in self._weights.blocks(name))
        return Rows((count, width), blocks)


class _Shapes:
    """Tensors of these shapes that hold nothing: a matrix is put together in its shape alone."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self._shapes = shapes

    def __call__(self, name: str) -> torch.Tensor:
        return torch.empty(self._shapes[name], device="meta")

    def rows(self, name: str) -> Rows:
        return Rows.of(self(name))


def _made(weights: Weights, name: str, part: str, like: torch.Tensor, make: Make) -> Made:
    take = _Taking(weights, like.device)
    source, prepare = weights, None
    while (within := getattr(source, "within", None)) is not None:  # such as checked tables
        if isinstance(source, PreparedWeights) and part in source.parts:
            prepare = source.prepare
        source = within
    if isinstance(source, QuantizingWeights | QuantizedWeights):
        weight, bias = source.made(name, part, like, make, take)
    else:
        weight, bias = plain(like, make, take)
    if prepare is not None and isinstance(weight, torch.Tensor):
        weight = prepare(weight)
    return weight, bias
