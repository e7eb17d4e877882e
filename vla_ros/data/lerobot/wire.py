"""Messages on a pipe between this Python and LeRobot's: a line of JSON, then arrays as they are.

A message is the length of its head (uint32, little endian), the head (JSON: its fields, and name,
dtype and shape of every array), and the bytes of the arrays one after the other. Nothing in it can
run code, and neither end needs the other's packages: numpy is enough.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Message:
    """``kind`` says what it is, ``fields`` are JSON values, ``arrays`` numbers and images."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


def send(stream: IO[bytes], message: Message) -> None:
    """Write one message. OSError: nobody reads any more."""
    arrays = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()}
    described = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    head = json.dumps({"kind": message.kind, "fields": message.fields, "arrays": described})
    data = head.encode()
    stream.write(_LENGTH.pack(len(data)) + data)
    for array in arrays.values():
        stream.write(array.tobytes())
    stream.flush()


def receive(stream: IO[bytes]) -> Message | None:
    """The next message; None: the other end has closed. EOFError: in the middle of a message."""
    length = stream.read(_LENGTH.size)
    if not length:
        return None
    if len(length) < _LENGTH.size:
        raise EOFError("cut off in a length")
    head = json.loads(_exactly(stream, _LENGTH.unpack(length)[0]))
    arrays = {}
    for name, kind, shape in head["arrays"]:
        dtype = np.dtype(kind)
        data = _exactly(stream, dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
        arrays[name] = np.frombuffer(data, dtype).reshape(shape)
    return Message(head["kind"], head["fields"], arrays)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError("cut off in a message")
    return data
