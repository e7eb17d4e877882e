"""The client's end of `POST /act`: HTTP/1.1 and JSON, as OpenVLA's deploy.py answers it.

Sources: openvla ``vla-scripts/deploy.py`` (``image``, ``instruction``; one action) and openvla-oft
``vla-scripts/deploy.py`` (``full_image``, ``wrist_image``, ``state``, ``instruction``; a list of
actions). Arrays are json-numpy's maps, see :func:`vla_ros.policies.remote.codec.pack_json`.

One connection, one request at a time, each wait bounded as in :mod:`vla_ros.policies.remote.link`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from vla_ros.engine.models.cameras import MAIN, WRIST
from vla_ros.policies.base import PolicyRefused, Unreachable
from vla_ros.policies.remote.codec import MAX_BYTES, Malformed, pack_json, unpack_json
from vla_ros.policies.remote.link import OUT_OF_STEP, TOKEN, ServerError, last_line
from vla_ros.policies.remote.names import NameTable

HEAD = 16 * 1024  # bytes of a status line and its headers
_WORDS = 1000  # bytes of an answer that is no JSON, which are shown


def act_names(
    main: str = "image", more: tuple[str, ...] = (), wrist: bool = False, state: int = 0
) -> NameTable:
    """The names of OpenVLA's deploy.py. ``more``: roles of cameras beside main and wrist."""
    images = {MAIN: main, **({WRIST: "wrist_image"} if wrist else {})}
    images |= {role: f"{role}_image" for role in more}
    return NameTable(
        images=images,  # type: ignore[arg-type]
        state={"state": state} if state else {},
        prompt="instruction",
    )


class ActLink:
    """Connection to such a server, used like a :class:`vla_ros.policies.remote.link.Connection`.
    One thread. There is no metadata."""

    def __init__(self, url: str) -> None:
        self._url, at = url, urlsplit(url)
        self._tls = at.scheme == "https"
        try:
            port = at.port
        except ValueError:
            port = 0
        if not at.hostname or port == 0:
            raise PolicyRefused(f"{url} is no address: give one such as http://gpu:8000/act")
        self._at = at.hostname, port or (443 if self._tls else 80)
        self._path = at.path if at.path not in ("", "/") else "/act"
        self._loop = asyncio.new_event_loop()
        self._answers: _Answers | None = None
        self.metadata: dict[Any, Any] = {}
        self.connections = 0

    @property
    def connected(self) -> bool:
        """True if it was connected when it was used last."""
        return self._answers is not None and not self._answers.lost

    def connect(self, timeout_s: float) -> None:
        """Connect, unless it is connected."""
        if self.connected:
            return
        self.close()
        host, port = self._at
        opening = self._loop.create_connection(_Answers, host, port, ssl=self._tls or None)
        try:
            _, self._answers = self._loop.run_until_complete(
                asyncio.wait_for(opening, max(timeout_s, 0.001))
            )
        except asyncio.TimeoutError:
            raise Unreachable(f"{self._url} does not answer") from None
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            why = "connection refused: nothing listens there; is the server running?"
            raise Unreachable(
                f"{self._url}: {why if refused else last_line(str(error))}"
            ) from error
        self.connections += 1

    def send(self, message: Mapping[str, Any], timeout_s: float) -> None:
        """Send a request; where the server closed the connection meanwhile it is made anew."""
        body = pack_json(message)
        token = os.environ.get(TOKEN)
        lines = [
            f"POST {self._path} HTTP/1.1",
            f"Host: {self._at[0]}:{self._at[1]}",
            "Content-Type: application/json",
            "Accept-Encoding: identity",
            f"Content-Length: {len(body)}",
            *([f"Authorization: Bearer {token}"] if token else []),
        ]
        self._loop.run_until_complete(asyncio.sleep(0))  # learn what came since
        self.connect(timeout_s)
        assert self._answers is not None
        if not self._answers.ask("\r\n".join(lines).encode() + b"\r\n\r\n" + body):
            self.close()
            raise Unreachable(f"{self._url} {OUT_OF_STEP}: there is one that was not asked for")

    def receive(self, timeout_s: float) -> dict[Any, Any]:
        """The answer ``{"actions": [C, D] or [D]}``. Malformed. ServerError: the server's
        refusal."""
        answers = self._answers
        if answers is None:
            raise Unreachable(f"{self._url}: the connection is closed")
        waiting = asyncio.wait([answers.whole], timeout=max(timeout_s, 0.001))
        self._loop.run_until_complete(waiting)
        if not answers.whole.done():
            raise Unreachable(f"{self._url} does not answer")
        try:
            status, body = answers.whole.result()
        except OSError as error:
            self.close()
            raise Unreachable(f"{self._url}: {error}") from error
        except Malformed:
            self.close()
            raise
        return self._actions(status, body)

    def _actions(self, status: int, body: bytes) -> dict[Any, Any]:
        try:
            found = unpack_json(body)
            if isinstance(found, str) and found.startswith(("{", "[")):  # encoded twice
                found = unpack_json(found)
        except Malformed:
            if status == 200:
                raise
            found = body[:_WORDS].decode(errors="replace")
        if (
            status != 200
            or isinstance(found, str)
            or (isinstance(found, dict) and "error" in found)
        ):
            text = found.get("error", found) if isinstance(found, dict) else found
            raise ServerError(f"HTTP {status}: {last_line(str(text))}")
        if isinstance(found, dict):
            return found
        try:
            return {"actions": np.asarray(found, np.float64)}
        except (TypeError, ValueError) as error:
            raise Malformed("an answer that is no array of numbers") from error

    def close(self) -> None:
        """Close the connection."""
        answers, self._answers = self._answers, None
        if answers is not None:
            answers.close()
            with contextlib.suppress(RuntimeError):
                self._loop.run_until_complete(asyncio.sleep(0))


class _Answers(asyncio.Protocol):
    """Reader of a server's answers, one to each request. ``whole``: status and body of the one that
    is awaited; OSError, Malformed. ``lost``: the connection is over."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.whole: asyncio.Future[tuple[int, bytes]] = self._loop.create_future()
        self.lost = False
        self._transport: Any = None
        self._data = bytearray()
        self._status, self._length = 0, -1  # of the answer under way; -1: its head has not come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = transport

    def ask(self, request: bytes) -> bool:
        """Send a request. False: something is there that was not asked for."""
        if self._data:
            return False
        self.whole = self._loop.create_future()
        self._transport.write(request)
        return True

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if self.lost:
            return
        self._data += data
        try:
            self._parse()
        except Malformed as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        self._end(OSError(last_line(str(error)) if error else "the connection was closed"))

    def close(self) -> None:
        """End the connection."""
        self._transport.abort()

    def _end(self, error: Exception) -> None:
        self.lost = True
        if not self.whole.done():
            self.whole.set_exception(error)
            self.whole.exception()  # it was looked at: nobody may ask
        self._transport.abort()

    def _parse(self) -> None:
        if self._length < 0:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if len(self._data) > HEAD:
                    raise Malformed(f"an answer's head of more than {HEAD} bytes")
                return
            self._status, self._length = _head(bytes(self._data[:end]))
            del self._data[: end + 4]
        if len(self._data) < self._length:
            return
        body = bytes(self._data[: self._length])
        del self._data[: self._length]
        self._length = -1
        if self.whole.done():
            raise Malformed("an answer that was not asked for")
        self.whole.set_result((self._status, body))


def _head(text: bytes) -> tuple[int, int]:
    """Status of an answer and length of its body. Malformed."""
    first, *rest = text.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise Malformed(f"no HTTP: {last_line(first[:80])}")
    rows = [row.partition(":") for row in rest]
    headers = {name.strip().lower(): value.strip() for name, _, value in rows}
    length = headers.get("content-length", "")
    if not length.isdecimal() or len(length) > 12:
        raise Malformed("an answer without Content-Length, which alone is read")
    if int(length) > MAX_BYTES:
        raise Malformed(f"an answer of {length} bytes, at most {MAX_BYTES} are read")
    return int(words[1][:3]), int(length)
