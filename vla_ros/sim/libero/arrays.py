"""LIBERO's initial states, read without running what a pickle may ask for.

The files are pickles inside zip archives, as torch.save writes them. The pickles hold one
NumPy array; an unpickler that is given nothing but three stand-ins for NumPy's own
constructors cannot build, import or call anything else.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from pathlib import Path
from typing import Final

import numpy as np

from vla_ros.core import Floats
from vla_ros.sim.env import SimError

_LARGEST: Final = 64 << 20  # bytes; the benchmark's own files have 80 kB


class _DType:
    """Stands for numpy.dtype: little-endian float64 and no other."""

    def __init__(self, code: object, *_: object) -> None:
        if code != "f8":
            raise pickle.UnpicklingError(f"numbers of type {code!r}, expected f8")

    def __setstate__(self, state: tuple[object, ...]) -> None:
        if state[1] != "<":
            raise pickle.UnpicklingError("numbers are not little-endian")


class _Array:
    """Stands for an array that is being unpickled; becomes one by :meth:`numbers`."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[object, ...] = ()

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self._state = state

    def numbers(self) -> Floats:
        """float64, of the shape that the pickle gave it."""
        try:
            _, shape, dtype, fortran, data = self._state
        except ValueError:
            raise pickle.UnpicklingError("an array without contents") from None
        sides = isinstance(shape, tuple) and all(type(side) is int and side > 0 for side in shape)
        if not (sides and isinstance(dtype, _DType) and isinstance(data, bytes)):
            raise pickle.UnpicklingError("an array of something else than numbers")
        assert isinstance(shape, tuple)
        if math.prod(shape) * 8 != len(data):
            raise pickle.UnpicklingError("an array whose length is not that of its contents")
        order: Final = "F" if fortran else "C"
        flat = np.frombuffer(data, "<f8")
        return np.ascontiguousarray(flat.reshape(shape, order=order), np.float64)


def _encode(text: str, encoding: str) -> bytes:
    """Stands for _codecs.encode, by which old pickles carry bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding!r}")
    return text.encode("latin1")


def _reconstruct(*_: object) -> _Array:
    return _Array()


class _ArrayUnpickler(pickle.Unpickler):
    """Knows the names an array is pickled with; each is one of the stand-ins above."""

    _NAMES: Final = {
        ("_codecs", "encode"): _encode,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _DType,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    }

    def find_class(self, module: str, name: str) -> object:
        try:
            return self._NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("it refers to other files")


def load_array(data: bytes) -> Floats:
    """The one float64 array in a pickle. UnpicklingError: it holds or asks for more."""
    try:
        found = _ArrayUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a torn pickle fails in every way there is
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from None
    if not isinstance(found, _Array):
        raise pickle.UnpicklingError(f"a {type(found).__name__}, expected an array")
    return found.numbers()


def load_states(path: Path) -> Floats:
    """The initial states of a task: float64 [states, size of the simulator's state].

    SimError: the file is missing, or not what LIBERO ships.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [e for e in archive.infolist() if e.filename.endswith("data.pkl")]
            if len(entries) != 1 or entries[0].file_size > _LARGEST:
                raise pickle.UnpicklingError("not one data.pkl of a moderate size")
            states = load_array(archive.read(entries[0]))
        if states.ndim != 2 or not np.isfinite(states).all():
            raise pickle.UnpicklingError(f"an array of shape {states.shape} or not finite")
    except (OSError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise SimError(f"cannot read the initial states in {path}: {error}") from error
    return states
