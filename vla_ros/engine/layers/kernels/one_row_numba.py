"""A pass of one token on one core of a CPU: a layer of Llama's is one function, by Numba.

Such a pass waits for its weights, so they have to come as fast as memory gives them, and little may
stand between: torch takes 18 operators a layer, and oneDNN's product of one row reads at two thirds
of that pace. Weights are read where oneDNN keeps them, so none lies twice in memory: blocks of 64
rows of the matrix (32 of bfloat16 where a CPU has AMX), a block column by column, of bfloat16 two
columns in a word and of int8 four. oneDNN promises this order to nobody, so :func:`blocks` compares
it with the matrix. Of int8 up to eight rows are multiplied so, by the processor's own instruction
for four products of bytes.

Sums are float32, those of int8 integers. Nothing is rounded to bfloat16 on the way but what goes to
the KV cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import binding, ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from vla_ros.engine.layers.devices import warn_once
from vla_ros.engine.layers.kernels.fused import Heads

WIDE, AMX_WIDE = 64, 32  # rows of a matrix that lie side by side
_FAST = {"reassoc", "contract", "nsz"}  # sums in any order; NaN and infinity stay what they are
_U16 = np.uint32(16)
_HIGH = np.uint32(0xFFFF0000)
NO_SCALE = np.empty(0, np.float32)
#: whether Numba compiles for this processor itself, and it has VNNI: for another, LLVM ends the
#: process over the instruction, so nothing that holds it may be compiled there
HAS_VNNI = (
    not config.CPU_NAME
    and not config.CPU_FEATURES
    and bool(binding.get_host_cpu_features().get("avx512vnni"))
)
_FEATURES = {} if config.CPU_NAME else binding.get_host_cpu_features()
#: whether one stream of a matrix is read as fast as memory gives it, as with AVX-512 on a Zen 4 (25
#: GB/s); with AVX2 (a Zen 3: 17 of 25) and with AMX (a Xeon: 8 of 12) it takes four
ONE_STREAM = bool(_FEATURES.get("avx512f")) and not _FEATURES.get("amx-tile")
#: of a word: how many columns' values of a row it holds, and what they are compared as
_VALUES = {torch.float32: (1, np.uint32), torch.bfloat16: (2, np.uint16), torch.int8: (4, np.int8)}
#: the orders that are looked for
_WIDTHS = {torch.float32: (WIDE,), torch.bfloat16: (WIDE, AMX_WIDE), torch.int8: (WIDE,)}


def blocks(packed: torch.Tensor, matrix: torch.Tensor) -> np.ndarray[Any, Any] | None:
    """oneDNN's memory of ``packed`` as words uint32 (float32 as such) [N / wide, K / values, wide];
    valid as long as ``packed`` lives. None where the ``matrix`` [N, K] of float32, bfloat16 or int8
    has another size, or another order there, which is logged."""
    count, width = matrix.shape
    values, _ = _VALUES[matrix.dtype]
    if count % WIDE or width % (16 * values):
        return None
    words = count * width // values
    if torch.ops.mkldnn._nbytes(packed) < 4 * words:
        return None
    address = torch.ops.mkldnn.data_ptr(packed)
    flat = np.ctypeslib.as_array((ctypes.c_uint32 * words).from_address(address))
    for wide in _WIDTHS[matrix.dtype]:
        found = flat.reshape(count // wide, width // values, wide)
        if all(_is_block(found[n], matrix[n * wide :][:wide]) for n in {0, len(found) - 1}):
            return found.view(np.float32) if values == 1 else found
    name = str(matrix.dtype).removeprefix("torch.")
    warn_once(
        "a pass of one token: Numba's product does not read oneDNN's order of"
        f" {name} on this CPU: torch runs instead"
    )
    return None


def _is_block(words: np.ndarray[Any, Any], rows: torch.Tensor) -> bool:
    """Whether words [K / values, wide] are these rows [wide, K], column by column."""
    values, kind = _VALUES[rows.dtype]
    bits = rows.contiguous().view(torch.int16) if values == 2 else rows.contiguous()
    own = words.view(kind).reshape(len(words), len(rows), values).transpose(1, 0, 2)
    return np.array_equal(own.reshape(rows.shape), bits.numpy().view(kind))


def product(weight: Any, scale: Any, x: Any) -> Any:
    """Weights as :func:`blocks` gives them, of int8 with the ``scale`` float32 [N] of each row
    (else float32 [0]), times x float32 [K] -> float32 [N]. Within Numba's functions alone."""
    raise NotImplementedError


@overload(product, jit_options={"fastmath": _FAST})
def _product(weight: Any, scale: Any, x: Any) -> Any:
    return _of_words if HAS_VNNI and weight.dtype != types.float32 else _of_floats


def _of_words(weight: Any, scale: Any, x: Any) -> Any:
    if len(scale):
        return of_int8(weight, scale, x)
    return of_floats(weight, x)


def _of_floats(weight: Any, scale: Any, x: Any) -> Any:
    return of_floats(weight, x)


def given(weight: Any, x: Any, at: int) -> Any:
    """What column ``at`` of a block's words is multiplied with: two numbers, of float32 the first.
    They are read ahead of the rows, which else are not done 16 at a time."""
    raise NotImplementedError


@overload(given, inline="always")
def _given(weight: Any, x: Any, at: int) -> Any:
    return _given_one if weight.dtype == types.float32 else _given_two


def _given_one(weight: Any, x: Any, at: int) -> Any:
    return x[at], np.float32(0)


def _given_two(weight: Any, x: Any, at: int) -> Any:
    return x[2 * at], x[2 * at + 1]


def term(word: Any, even: Any, odd: Any) -> Any:
    """What a word adds to the sum of its row."""
    raise NotImplementedError


@overload(term, inline="always", jit_options={"fastmath": _FAST})
def _term(word: Any, even: Any, odd: Any) -> Any:
    return _term_of_one if word == types.float32 else _term_of_two


def _term_of_one(word: Any, even: Any, odd: Any) -> Any:
    return even * word


def _term_of_two(word: Any, even: Any, odd: Any) -> Any:
    low = np.uint32(word << _U16).view(np.float32)
    return even * low + odd * np.uint32(word & _HIGH).view(np.float32)


def _in_one_stream(wide: int) -> Any:
    @njit(fastmath=_FAST, boundscheck=False, nogil=True)
    def times(weight: Any, x: Any) -> Any:
        count, width, _ = weight.shape
        out = np.empty(count * wide, np.float32)
        for b in range(count):
            sums = np.zeros(wide, np.float32)
            for k in range(width):
                even, odd = given(weight, x, k)
                for j in range(wide):
                    sums[j] += term(weight[b, k, j], even, odd)
            out[b * wide : (b + 1) * wide] = sums
        return out

    return times


def _in_four_streams(wide: int) -> Any:
    """Four columns of a block at a time, a quarter of it apart: memory is fetched ahead for all."""

    @njit(fastmath=_FAST, boundscheck=False, nogil=True)
    def times(weight: Any, x: Any) -> Any:
        count, width, _ = weight.shape
        part = width // 4  # :func:`blocks` takes multiples of 16 alone
        out = np.empty(count * wide, np.float32)
        for block in range(count):
            first, second = weight[block], weight[block, part:]
            third, fourth = weight[block, 2 * part :], weight[block, 3 * part :]
            sums = np.zeros(wide, np.float32)
            for k in range(part):
                a, b = given(weight, x, k)
                c, d = given(weight, x, part + k)
                e, f = given(weight, x, 2 * part + k)
                g, h = given(weight, x, 3 * part + k)
                for j in range(wide):
                    early = term(first[k, j], a, b) + term(second[k, j], c, d)
                    late = term(third[k, j], e, f) + term(fourth[k, j], g, h)
                    sums[j] += early + late
            out[block * wide : (block + 1) * wide] = sums
        return out

    return times


_read = _in_one_stream if ONE_STREAM else _in_four_streams
_by_64, _by_32 = _read(WIDE), _read(AMX_WIDE)


@njit(fastmath=_FAST, boundscheck=False, nogil=True, cache=True)
def of_floats(weight: Any, x: Any) -> Any:
    """Blocks of float32 or bfloat16 times x float32 [K] -> float32 [N]."""
    if weight.shape[2] == WIDE:
        return _by_64(weight, x)
    return _by_32(weight, x)


def _of_block(rows: int) -> Any:
    """A function of Numba's by VNNI, four columns of 16 weights an instruction, for so many rows of
    codes (their sums lie in registers, 4 at most).

    It takes weights as :func:`blocks` gives them and which block, uint8 codes [M, K] and which row
    is the first, and int32 [M + 1, 64] that it writes from that row on: the sums of weights times
    codes, and behind them those of the weights alone. (The arrays, not their addresses: Numba frees
    an array whose address alone is still in use.)
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, place = ir.IntType(32), ir.IntType(64)
        weight, block, codes, begin, out = arguments
        held_by = [
            context.make_array(kind)(context, builder, array)
            for kind, array in zip(signature.args[::2], (weight, codes, out), strict=True)
        ]
        quads = builder.extract_value(held_by[0].shape, 1)
        sixteen = ir.VectorType(word, 16)
        none, ones = ir.Constant(sixteen, [0] * 16), ir.Constant(sixteen, [0x01010101] * 16)
        nobody = ir.Constant(sixteen, ir.Undefined)
        dot = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(sixteen, [sixteen] * 3),
            "llvm.x86.avx512.vpdpbusd.512",
        )

        def first(array: Any, kind: Any, row: Any, bytes_: Any) -> Any:
            at = builder.add(builder.ptrtoint(array.data, place), builder.mul(row, bytes_))
            return builder.inttoptr(at, kind.as_pointer())

        row_bytes = builder.mul(quads, ir.Constant(place, 4))
        words = first(held_by[0], sixteen, block, builder.mul(row_bytes, ir.Constant(place, WIDE)))
        given = first(held_by[1], word, begin, row_bytes)
        sums = first(held_by[2], sixteen, begin, ir.Constant(place, 4 * WIDE))
        held = [[cgutils.alloca_once_value(builder, none) for _ in "0123"] for _ in range(rows + 1)]
        for own in (own for row in held for own in row):
            builder.store(none, own)  # a block after another comes here again
        with cgutils.for_range(builder, quads) as loop:
            times = []
            for row in range(rows):
                at = builder.add(builder.mul(quads, ir.Constant(place, row)), loop.index)
                code = builder.load(builder.gep(given, [at]))
                code = builder.insert_element(nobody, code, ir.Constant(word, 0))
                times.append(builder.shuffle_vector(code, nobody, none))  # to all sixteen
            for j in range(4):
                at = builder.add(
                    builder.mul(loop.index, ir.Constant(place, 4)), ir.Constant(place, j)
                )
                four = builder.load(builder.gep(words, [at]), align=4)
                for kept, each in zip(held, (*times, ones), strict=True):
                    made = builder.call(dot, [builder.load(kept[j]), each, four])
                    builder.store(made, kept[j])
        for number, own in enumerate(own for row in held for own in row):
            target = builder.gep(sums, [ir.Constant(place, number)])
            builder.store(builder.load(own), target, align=4)
        return context.get_dummy_value()

    def sums_of_block(
        typing: Any, weight: Any, block: Any, codes: Any, begin: Any, out: Any
    ) -> Any:
        return types.void(weight, types.intp, codes, types.intp, out), build

    return intrinsic(sums_of_block)


_one, _four = _of_block(1), _of_block(4)
MOST = 8  # rows of :func:`of_int8_rows`


@njit(fastmath=_FAST, boundscheck=False, nogil=True, cache=True)
def of_int8_rows(weight: Any, scale: Any, x: Any) -> Any:
    """x float32 [M, K], :data:`MOST` rows at most -> [M, N]; each row is rounded as
    ``IntegerProduct`` rounds it, and its result does not depend on the others."""
    count, quads, _ = weight.shape
    rows = len(x)
    room = 1 if rows == 1 else 4 if rows <= 4 else 8
    codes, factors = np.zeros((room, 4 * quads), np.uint8), np.empty(rows, np.float32)
    for r in range(rows):
        largest, finite = np.float32(1e-30), np.float32(0)
        for k in range(4 * quads):
            largest = max(largest, abs(x[r, k]))
            finite += x[r, k] * np.float32(0)  # 0, or NaN
        for k in range(4 * quads):
            codes[r, k] = np.uint8(np.float32(128.5) + x[r, k] * (np.float32(127) / largest))
        factors[r] = largest / np.float32(127) + finite
    out, sums = np.empty((rows, count * WIDE), np.float32), np.empty((room + 1, WIDE), np.int32)
    for b in range(count):
        if room == 1:
            _one(weight, b, codes, 0, sums)
        for begin in range(0, room - 1, 4):  # the second time the block comes from the cache
            _four(weight, b, codes, begin, sums)
        for r in range(rows):
            for j in range(WIDE):
                total = sums[r, j] - 128 * sums[room, j]  # the codes' middle is 128
                place = b * WIDE + j
                out[r, place] = np.float32(total) * scale[place] * factors[r]
    return out


@njit(fastmath=_FAST, boundscheck=False, nogil=True, cache=True)
def of_int8(weight: Any, scale: Any, x: Any) -> Any:
    return of_int8_rows(weight, scale, x.reshape(1, len(x)))[0]


@njit(fastmath=_FAST, boundscheck=False, nogil=True, cache=True)
def multiply(weight: Any, scale: Any, x: Any) -> Any:
    """:func:`product`, for who has no function of Numba's around it."""
    return product(weight, scale, x)


def wide(value: Any) -> Any:
    """A bfloat16 as uint16, or a float32 -> float32."""
    raise NotImplementedError


@overload(wide, inline="always")
def _wide(value: Any) -> Any:
    return _same if value == types.float32 else _widened


def _same(value: Any) -> Any:
    return value


def _widened(value: Any) -> Any:
    return np.uint32(np.uint32(value) << _U16).view(np.float32)


def store(row: Any, value: Any, place: int) -> None:
    """Puts a float32 into a row of bfloat16 (as uint16, to the nearest even) or float32."""
    raise NotImplementedError


@overload(store, inline="always")
def _store(row: Any, value: Any, place: int) -> Any:
    return _put if row.dtype == types.float32 else _put_rounded


def _put(row: Any, value: Any, place: int) -> None:
    row[place] = value


def _put_rounded(row: Any, value: Any, place: int) -> None:
    bits = np.float32(value).view(np.uint32)
    up = np.uint32(0x7FFF) + np.uint32((bits >> _U16) & np.uint32(1))
    bits = np.uint32(0x7FC00000) if np.isnan(value) else np.uint32(bits + up)
    row[place] = np.uint16(bits >> _U16)


@njit(fastmath=_FAST, boundscheck=False, inline="always")
def _exp(x: Any) -> Any:
    """Cephes' expf, within two units of the last place, in a form that is done 16 at a time."""
    x = np.float32(min(max(x, np.float32(-87.0)), np.float32(88.0)))
    whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    power = np.uint32(np.uint32(np.int32(whole) + np.int32(127)) << np.uint32(23)).view(np.float32)
    return (p * r * r + r + np.float32(1)) * power


@njit(fastmath=_FAST, boundscheck=False, inline="always")
def _normed(x: Any, weight: Any, eps: Any) -> Any:
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * x[i]
    factor = np.float32(1) / np.sqrt(total / np.float32(len(x)) + eps)
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = x[i] * factor * weight[i]
    return out


@njit(fastmath=_FAST, boundscheck=False, inline="always")
def _rotate(head: Any, cos: Any, sin: Any, out: Any) -> None:
    half = len(head) // 2
    for d in range(half):
        out[d] = head[d] * cos[d] + head[d + half] * sin[d]
        out[d + half] = head[d + half] * cos[d + half] + head[d] * sin[d + half]


@njit(fastmath=_FAST, boundscheck=False, nogil=True, cache=True)
def attend(qkv: Any, cos: Any, sin: Any, keys: Any, values: Any, place: int, sees: Any) -> Any:
    """A fused projection float32 [(H + 2 G) D] -> what its H queries see float32 [H D], after K
    and V were put into ``place`` of ``keys`` and ``values`` [G, S, D]. ``sees`` are entries."""
    groups, _, dim = keys.shape
    heads = len(qkv) // dim - 2 * groups
    turned = np.empty(dim, np.float32)
    for g in range(groups):
        at = (heads + g) * dim
        _rotate(qkv[at : at + dim], cos, sin, turned)
        for d in range(dim):
            store(keys[g, place], turned[d], d)
            store(values[g, place], qkv[at + groups * dim + d], d)
    out, scores = np.zeros(heads * dim, np.float32), np.empty(len(sees), np.float32)
    scale = np.float32(1) / np.sqrt(np.float32(dim))
    for h in range(heads):
        g = h // (heads // groups)
        _rotate(qkv[h * dim : (h + 1) * dim], cos, sin, turned)
        largest = np.float32(-np.inf)
        for i in range(len(sees)):
            row, score = keys[g, sees[i]], np.float32(0)
            for d in range(dim):
                score += turned[d] * wide(row[d])
            scores[i] = score * scale
            largest = max(largest, scores[i])
        total = np.float32(0)
        for i in range(len(sees)):
            scores[i] = _exp(scores[i] - largest)
            total += scores[i]
        mine = out[h * dim : (h + 1) * dim]
        for i in range(len(sees)):
            row, share = values[g, sees[i]], scores[i] / total
            for d in range(dim):
                mine[d] += share * wide(row[d])
    return out


@njit(fastmath=_FAST, boundscheck=False, nogil=True, cache=True)
def layer(
    x: Any,
    eps: Any,
    norm1: Any,
    qkv: Any,
    bias: Any,
    out: Any,
    norm2: Any,
    gate_up: Any,
    down: Any,
    cos: Any,
    sin: Any,
    keys: Any,
    values: Any,
    place: int,
    sees: Any,
) -> None:
    """The residual stream ``x`` float32 [C] becomes that behind the layer. ``qkv``, ``out``,
    ``gate_up`` and ``down`` are pairs of weight and scale, see :func:`product`; ``bias`` [0] for
    none; the rest as for :func:`attend`."""
    made = product(qkv[0], qkv[1], _normed(x, norm1, eps))
    for i in range(len(bias)):
        made[i] += bias[i]
    seen = attend(made, cos, sin, keys, values, place, sees)
    added = product(out[0], out[1], seen)
    for i in range(len(x)):
        x[i] += added[i]
    both = product(gate_up[0], gate_up[1], _normed(x, norm2, eps))
    half = len(both) // 2
    middle = np.empty(half, np.float32)
    for i in range(half):
        middle[i] = both[i] / (np.float32(1) + _exp(-both[i])) * both[half + i]
    added = product(down[0], down[1], middle)
    for i in range(len(x)):
        x[i] += added[i]


@njit(fastmath=_FAST, boundscheck=False, nogil=True, cache=True)
def normed(x: Any, weight: Any, eps: Any) -> Any:
    """RMSNorm of float32 [C]."""
    return _normed(x, weight, eps)


def check() -> None:
    """A product in each format, against torch's. Raises where one is wrong."""
    random = torch.Generator().manual_seed(0)
    matrix = torch.randint(-127, 128, (2 * WIDE, 128), generator=random, dtype=torch.int8)
    x = torch.randn(128, generator=random)
    for kind, wide in ((kind, wide) for kind, found in _WIDTHS.items() for wide in found):
        columns, _ = _VALUES[kind]
        if columns == 4 and not HAS_VNNI:
            continue
        rows = matrix.to(kind).view(-1, wide, 128 // columns, columns).transpose(1, 2).contiguous()
        words = rows.view(torch.float32 if columns == 1 else torch.int32).flatten(2).numpy()
        scale = np.ones(2 * WIDE if columns == 4 else 0, np.float32)
        found = multiply(words if columns == 1 else words.view(np.uint32), scale, x.numpy())
        exact = matrix.float() @ x
        off = float((torch.from_numpy(found) - exact).norm() / exact.norm())
        if not off < (0.02 if columns == 4 else 1e-5):
            raise RuntimeError(f"its product in {kind} is off by {off:.2g}")
        for count in (3, MOST) if columns == 4 else ():
            several = np.outer(np.arange(1, count + 1), x.numpy()).astype(np.float32)
            alone = [multiply(words.view(np.uint32), scale, row) for row in several]
            if not np.array_equal(of_int8_rows(words.view(np.uint32), scale, several), alone):
                raise RuntimeError("its product of several rows is not that of each")


def as_floats(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """Any tensor as float32, contiguous."""
    return x.detach().float().contiguous().numpy()


class OneRow:
    """Layers of Llama's for one token; each is the arguments ``norm1`` to ``down`` of
    :func:`layer`. ``final_norm`` [C]."""

    def __init__(
        self, layers: Sequence[tuple[Any, ...]], final_norm: torch.Tensor, eps: float
    ) -> None:
        self._layers, self._eps = list(layers), np.float32(eps)
        self._final_norm = as_floats(final_norm)

    def tried(self, heads: Heads, dim: int, dtype: torch.dtype) -> OneRow:
        """Compiles, and multiplies zeros: 5 seconds, later starts have it from Numba's cache.
        Raises what does not run here, and where the result is no numbers."""
        bits = torch.float32 if dtype == torch.float32 else torch.uint16
        entries = torch.zeros(heads.kv, 2, dim, dtype=dtype).view(bits).numpy()
        cache = [(entries, entries.copy())] * len(self._layers)
        x, turn = torch.zeros(1, len(self._final_norm), dtype=dtype), torch.zeros(1, dim)
        states, _ = self(x, turn, turn, cache, 0, np.zeros(1, np.int64))
        if not states.isfinite().all():
            raise RuntimeError("it does not give numbers")
        return self

    def __call__(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: Sequence[tuple[Any, Any]],
        place: int,
        sees: Any,
        taps: Sequence[int] = (),
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [1, C], cos and sin [1, D], of each layer keys and values [G, S, D] -> normed [1, C],
        and what the layers ``taps`` gave [1, taps * C]."""
        stream = as_floats(x[0]) if x.dtype != torch.float32 else x[0].numpy().copy()
        turn, seen = (as_floats(cos[0]), as_floats(sin[0])), []
        for number, (own, entries) in enumerate(zip(self._layers, cache, strict=True)):
            layer(stream, self._eps, *own, *turn, *entries, place, sees)
            if number in taps:
                seen.append((number, torch.from_numpy(stream.copy())))
        states = torch.from_numpy(normed(stream, self._final_norm, self._eps)).to(x.dtype)[None]
        found = dict(seen)
        tapped = torch.cat([found[n] for n in taps])[None] if taps else x[:, :0]
        return states, tapped.to(x.dtype)
