"""Messages of policy servers: openpi's and GR00T's msgpack, and the JSON of `POST /act`, with NumPy
arrays as small maps, and no pickle anywhere.

openpi's array is ``{b"__ndarray__": True, b"data": bytes, b"dtype": "<f4", b"shape": [2, 3]}``, its
NumPy number ``{b"__npgeneric__": True, b"data": value, b"dtype": "<f4"}``. Input is a stranger's:
depth, number and length of its parts are checked before anything is made of them, and their entries
are counted over the message while it is unpacked: what a message costs, a few ms at most beside the
copy of its bytes, may be spent in an event loop.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image as Pillow

from vla_ros.core.errors import UserError
from vla_ros.core.files import BadFile, parse_json
from vla_ros.core.pixels import BadMessage, decompressed
from vla_ros.core.types import Image

MAX_BYTES = 32 * 1024 * 1024  # of a message: three cameras of 1080p are 19 MB
MAX_DEPTH = 6  # of maps in maps, an array's own included
MAX_PARTS = 1000  # maps and lists in a message
MAX_LENGTH = 4096  # entries of one of them; more is an array's business
MAX_ENTRIES = 4 * MAX_LENGTH  # of all of them together
JPEG = "jpeg"  # what a server of ours says that it takes
_JPEG_BEGINS = b"\xff\xd8\xff"
_KINDS = "biuf"  # truth values, integers, floats: no objects, text or times
_MAX_DIMENSIONS = 8


class Malformed(ValueError):
    """Bytes that are no message of this protocol, or of one beyond its limits."""


class Jpeg:
    """An image to be sent as JPEG, of ``quality`` 1 to 100. On the wire it is ``{b"__jpeg__": True,
    b"data": bytes}``, which only a server of ours takes, and an array again behind it."""

    def __init__(self, image: Image, quality: int) -> None:
        stream = io.BytesIO()
        Pillow.fromarray(image).save(stream, "JPEG", quality=quality)
        self.data = stream.getvalue()


class NotInstalled(UserError):
    """A package that an extra brings is missing."""


def need(module: str) -> Any:
    """The module of this name. NotInstalled names, in one line, what to install."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        extra = "ray" if name in ("ray", "starlette") else "serve"
        raise NotInstalled(
            f"{name} is not installed: pip install '.[{extra}]' in the checkout"
        ) from error


def pack(message: Mapping[str, Any], as_npy: bool = False) -> bytes:
    """A message as bytes. ``as_npy``: arrays as GR00T's servers take them. ValueError,
    TypeError, OverflowError: it holds what msgpack cannot."""
    packed: bytes = need("msgpack").packb(message, default=_npy if as_npy else _plain)
    return packed


def _npy(value: Any) -> Any:
    """An array as GR00T sends it. Source: Isaac-GR00T ``gr00t/policy/server_client.py``,
    MsgSerializer."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(value), allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": stream.getvalue()}


def _plain(value: Any) -> Any:
    if isinstance(value, Jpeg):
        return {b"__jpeg__": True, b"data": value.data}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in _KINDS:
        raise ValueError(f"an array of {value.dtype} cannot be sent")
    if isinstance(value, np.ndarray):
        return {
            b"__ndarray__": True,
            b"data": np.ascontiguousarray(value).data,
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def unpack(data: bytes, max_bytes: int = MAX_BYTES) -> dict[Any, Any]:
    """The map that a message is. Raises Malformed, and nothing else, for anything that is none.

    Arrays are read-only views of the message's bytes.
    """
    message = _unpacked(data, max_bytes, _Parts())
    if not isinstance(message, dict):
        raise Malformed(f"the message is a {type(message).__name__}, not a map")
    return message


def unpack_groot(data: bytes, max_bytes: int = MAX_BYTES) -> Any:
    """A message of a GR00T server, checked as in :func:`unpack`; it need be no map."""
    return _unpacked(data, max_bytes, _GrootParts())


def pack_json(message: Any) -> bytes:
    """A message as the JSON of `POST /act`. An array is ``{"__numpy__": base64, "dtype": "<f8",
    "shape": [7]}``, as PyPI's json-numpy has it, which OpenVLA's deploy.py uses. ValueError,
    TypeError: it holds what JSON cannot."""
    return json.dumps(message, default=_based).encode()


def unpack_json(data: bytes | str, max_bytes: int = MAX_BYTES) -> Any:
    """The inverse of :func:`pack_json`. Raises Malformed, and nothing else, for anything else."""
    if len(data) > max_bytes:
        raise Malformed(f"a message of {len(data)} bytes, at most {max_bytes} are read")
    text = data.encode(errors="replace") if isinstance(data, str) else data
    if text.count(b",") > MAX_ENTRIES or text.count(b"[") + text.count(b"{") > MAX_PARTS:
        raise Malformed("lists of too many entries: send numbers as json-numpy sends arrays")
    try:
        return _of_json(parse_json(text, "a message"))
    except Malformed:
        raise
    except BadFile as error:
        raise Malformed(f"not JSON: {error}") from error
    except Exception as error:  # of base64 and NumPy, of whatever kind
        reason = " ".join(str(error).split())[:200]
        raise Malformed(f"not JSON: {type(error).__name__}: {reason}") from error


def _based(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in _KINDS:
        raise TypeError(f"a {type(value).__name__} cannot be sent")
    data = base64.b64encode(np.ascontiguousarray(value).data).decode()
    return {"__numpy__": data, "dtype": value.dtype.str, "shape": list(value.shape)}


def _of_json(value: Any) -> Any:
    """The value with its maps of arrays as arrays."""
    if isinstance(value, list):
        return [_of_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "__numpy__" not in value:
        return {name: _of_json(one) for name, one in value.items()}
    data = base64.b64decode(value["__numpy__"], validate=True)
    return _array({b"data": data, b"dtype": value["dtype"], b"shape": value["shape"]})


def _unpacked(data: bytes, max_bytes: int, parts: _Parts) -> Any:
    msgpack = need("msgpack")
    if len(data) > max_bytes:
        raise Malformed(f"a message of {len(data)} bytes, at most {max_bytes} are read")
    limits = {f"max_{kind}_len": MAX_LENGTH for kind in ("array", "map")}
    limits |= {f"max_{kind}_len": max_bytes for kind in ("bin", "str")}
    try:
        message: Any = msgpack.unpackb(
            data, object_hook=parts.take_map, list_hook=parts.take_list, max_ext_len=0,
            strict_map_key=False, **limits,
        )  # fmt: skip
        _check_depth([message], MAX_DEPTH + 1)
    except Malformed:
        raise
    except Exception as error:  # msgpack's and NumPy's, of whatever kind
        reason = " ".join(str(error).split())[:200]
        raise Malformed(f"not a message: {type(error).__name__}: {reason}") from error
    return message


class _Parts:
    """Counter of a message's parts: msgpack calls it for every map and list as it ends, inner ones
    first."""

    def __init__(self) -> None:
        self._count = self._entries = self._pixels = 0

    def _another(self, entries: int) -> None:
        self._count += 1
        self._entries += entries
        if self._count > MAX_PARTS:
            raise Malformed(f"a message of more than {MAX_PARTS} parts")
        if self._entries > MAX_ENTRIES:
            raise Malformed(f"lists of more than {MAX_ENTRIES} entries: send numbers as an array")

    def take_list(self, values: list[Any]) -> list[Any]:
        self._another(len(values))
        return values

    def take_map(self, values: dict[Any, Any]) -> Any:
        self._another(len(values))
        if b"__ndarray__" in values:
            return _array(values)
        if b"__jpeg__" in values:
            return self._image(values[b"data"])
        if b"__npgeneric__" in values:
            return _dtype(values[b"dtype"]).type(values[b"data"])
        return values

    def _image(self, data: Any) -> Image:
        """Uint8 [H, W, 3] RGB of a JPEG; of all of a message together no more than fit into one as
        they are."""
        if not isinstance(data, bytes) or not data.startswith(_JPEG_BEGINS):
            raise Malformed("an image that is no JPEG")
        try:
            image = decompressed(SimpleNamespace(data=data, format=JPEG), MAX_BYTES // 3)
        except BadMessage as error:
            raise Malformed(str(error)) from error
        self._pixels += image.size
        if self._pixels > MAX_BYTES:
            raise Malformed(f"images of more than {MAX_BYTES} bytes")
        return image


class _GrootParts(_Parts):
    """Parts of a GR00T server's message: its arrays and configs."""

    def take_map(self, values: dict[Any, Any]) -> Any:
        self._another(len(values))
        if "__ndarray_class__" in values:
            return _array_of_npy(values["as_npy"])
        if "__ModalityConfig_class__" in values:
            return values["as_json"]
        return values


def _dtype(text: Any) -> np.dtype[Any]:
    if not isinstance(text, str) or len(text) > 8:
        raise Malformed("an array's dtype is no short text")
    dtype = np.dtype(text)
    if dtype.kind not in _KINDS or dtype.shape or dtype.itemsize > 8:
        raise Malformed(f"an array of {text!r}: numbers of at most 8 bytes are read")
    return dtype


def _array(values: dict[Any, Any]) -> np.ndarray[Any, Any]:
    dtype, data, shape = _dtype(values[b"dtype"]), values[b"data"], values[b"shape"]
    if not isinstance(data, bytes) or not isinstance(shape, list):
        raise Malformed("an array without bytes, or without a shape")
    if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise Malformed(f"an array of shape {shape!r:.80}")
    if (count := math.prod(shape)) * dtype.itemsize != len(data):
        raise Malformed(f"an array of {count} {dtype} in {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(shape)


def _array_of_npy(data: Any) -> np.ndarray[Any, Any]:
    """An array in NumPy's own file format 1.0, whose header is checked first."""
    if not isinstance(data, bytes):
        raise Malformed("an array without bytes")
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise Malformed("an array in another version of NumPy's format than 1.0")
    shape, columns_first, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=1000)
    head = {b"dtype": dtype.str, b"shape": list(shape[::-1] if columns_first else shape)}
    array = _array({**head, b"data": data[stream.tell() :]})
    return array.T if columns_first else array


def _check_depth(value: dict[Any, Any] | list[Any], left: int) -> None:
    if left == 0:
        raise Malformed(f"a message deeper than {MAX_DEPTH} levels")
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            _check_depth(inner, left - 1)
