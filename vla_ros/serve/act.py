"""`POST /act` beside the websocket: HTTP/1.1 and JSON, as clients of OpenVLA's deploy.py send it.

The names are those of :func:`vla_ros.policies.remote.act.act_names`. A connection is a client and
an episode, as a websocket is; ``requests.post`` makes one for each observation. An answer is what
deploy.py answers: the action as an array, a chunk as a list of them. What is wrong is a status and
``{"error": one line}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from vla_ros.core.types import Floats, Observation, PolicyInfo
from vla_ros.engine.models.cameras import MAIN, WRIST
from vla_ros.policies.base import InvalidAction
from vla_ros.policies.remote.act import HEAD, act_names
from vla_ros.policies.remote.codec import pack_json, unpack_json
from vla_ros.policies.remote.names import NameTable

IDLE_S = 60.0  # of a connection between two observations
ARRIVE_S = 10.0  # for an observation to come, from its first byte on
#: Beside the observation: of deploy.py's message, and of ours.
_KNOWN = ("unnorm_key", "stamp_ns")


class Wrong(Exception):
    """A request without an answer: its status and the reason, one line."""

    def __init__(self, status: http.HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


#: Reader of a request: (ROS time, steady time) of its receipt -> observation and task. Malformed,
#: InvalidAction.
Read = Callable[[tuple[int, int]], tuple[Observation, str]]


class Served(Protocol):
    """What answers the observations of one connection. :class:`Wrong`: there is no answer."""

    async def admit(self, authorization: str) -> None:
        """Let the next request in when its time has come. Wrong: no token, one client too many."""

    async def answer(self, read: Read, size: int) -> Floats:
        """Actions [C, D] to an observation of so many bytes, which ``read`` decodes."""

    def leave(self) -> None:
        """The connection is over."""


@dataclass(frozen=True, slots=True)
class _Head:
    path: str
    length: int
    authorization: str
    closes: bool


class ActNames:
    """Observations of a policy with the needs of ``info``, by deploy.py's names. ``unnorm_key``: of
    the policy; a client that wants another one is refused."""

    def __init__(self, info: PolicyInfo, unnorm_key: str) -> None:
        more, wrist = info.camera_roles, info.cameras == 2
        self._tables = [
            act_names(main, more, wrist, info.state_dim) for main in ("image", "full_image")
        ]
        self._unnorm_key = unnorm_key

    def read(self, message: Any, received: tuple[int, int]) -> tuple[Observation, str]:
        """A message as an observation and its task. InvalidAction names what is wrong with it."""
        if not isinstance(message, dict):
            raise InvalidAction("the observation is no map of image, instruction, ...")
        table = self._tables["full_image" in message]
        wanted = message.get("unnorm_key")
        if wanted and self._unnorm_key and wanted != self._unnorm_key:
            raise InvalidAction(
                f"unnorm_key is {str(wanted)[:80]!r}, and {self._unnorm_key!r} is served"
            )
        strange = sorted({*map(str, message)} - {*_keys(table), *_KNOWN})
        if strange:
            raise InvalidAction(
                f"the observation has {', '.join(strange)[:200]}, and {', '.join(_keys(table))}"
                " are read"
            )
        stamp_ns = message.get("stamp_ns", received[0])
        if type(stamp_ns) is not int or not 0 <= stamp_ns < 1 << 63:
            raise InvalidAction(f"stamp_ns is {str(stamp_ns)[:80]}: give whole nanoseconds")
        return table.from_wire(message, stamp_ns, received)


def _keys(table: NameTable) -> list[str]:
    roles = [MAIN, WRIST, *table.more_cameras]
    images = [str(table.images[role]) for role in roles if role in table.images]  # type: ignore[index]
    return [*images, *table.state, str(table.prompt)]


async def converse(
    names: ActNames, served: Served, reader: StreamReader, writer: StreamWriter, max_bytes: int
) -> None:
    """Answer the requests of one connection until it ends."""
    patience_s = ARRIVE_S
    try:
        while await _one(names, served, reader, writer, max_bytes, patience_s):
            patience_s = IDLE_S
    except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
        pass  # the client is gone, or silent
    finally:
        served.leave()
        writer.close()
        with contextlib.suppress(Exception):
            await writer.wait_closed()


async def _one(
    names: ActNames,
    served: Served,
    reader: StreamReader,
    writer: StreamWriter,
    max_bytes: int,
    patience_s: float,
) -> bool:
    """Answer one request, whose head comes within ``patience_s``; False: it was the last."""
    closes, twice = True, False
    try:
        head = await asyncio.wait_for(_head(reader), patience_s)
        if head is None:
            return False
        if head.path != "/act":
            raise Wrong(http.HTTPStatus.NOT_FOUND, "POST goes to /act")
        await served.admit(head.authorization)
        if head.length > max_bytes:
            text = f"an observation of {head.length} bytes, at most {max_bytes} are read"
            raise Wrong(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        body = await asyncio.wait_for(reader.readexactly(head.length), ARRIVE_S)
        closes, twice = head.closes, body.lstrip()[:12].startswith(b'{"encoded"')

        def read(received: tuple[int, int]) -> tuple[Observation, str]:
            message = unpack_json(body, max_bytes)
            if isinstance(message, dict) and set(message) == {"encoded"}:
                message = unpack_json(str(message["encoded"]), max_bytes)
            return names.read(message, received)

        actions = await served.answer(read, len(body))
    except Wrong as wrong:
        closes = closes or wrong.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR
        await _send(writer, wrong.status, pack_json({"error": str(wrong)}), closes)
        return not closes
    found = pack_json(actions[0] if len(actions) == 1 else list(actions))
    await _send(writer, http.HTTPStatus.OK, _quoted(found) if twice else found, closes)
    return not closes


def _quoted(found: bytes) -> bytes:
    return json.dumps(found.decode()).encode()


async def _head(reader: StreamReader) -> _Head | None:
    """Head of the next request; None: the connection ended. Wrong."""
    bad = http.HTTPStatus.BAD_REQUEST
    try:
        text = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    except asyncio.LimitOverrunError:
        raise Wrong(bad, f"a head of more than {HEAD} bytes") from None
    first, *rest = text.decode("latin-1").rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[0] != "POST" or not words[2].startswith("HTTP/1."):
        raise Wrong(bad, "not a POST of HTTP/1.1")
    rows = [row.partition(":") for row in rest]
    headers = {name.strip().lower(): value.strip() for name, _, value in rows}
    length = headers.get("content-length", "")
    if not length.isdecimal() or len(length) > 15 or "transfer-encoding" in headers:
        raise Wrong(http.HTTPStatus.LENGTH_REQUIRED, "give Content-Length, and no chunks")
    if "100-continue" in headers.get("expect", ""):
        raise Wrong(http.HTTPStatus.EXPECTATION_FAILED, "send the observation at once")
    closes = headers.get("connection", "").lower() == "close" or words[2] == "HTTP/1.0"
    path = words[1].partition("?")[0]
    return _Head(path, int(length), headers.get("authorization", ""), closes)


async def _send(writer: StreamWriter, status: http.HTTPStatus, body: bytes, closes: bool) -> None:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: {'close' if closes else 'keep-alive'}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await asyncio.wait_for(writer.drain(), ARRIVE_S)
