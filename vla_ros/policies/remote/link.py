"""The client's end of openpi's protocol: one connection, one request at a time, each wait bounded.

Answers have no number: an answer belongs to the one request that is open. So a connection on which
there is one more answer, or perhaps one more request, is closed with all that is on its way.

The loop of asyncio runs during a request, and at no other time: no thread. A server's pings are
answered then, too: one that drops a client which was silent for a minute is connected to again with
the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from vla_ros.policies.base import Unreachable
from vla_ros.policies.remote.codec import MAX_BYTES, Malformed, need, pack, unpack

TOKEN = "VLA_ROS_TOKEN"  # environment variable of both ends; a parameter would be read by all
FAREWELL_S = 0.05  # for a word that the connection ends
OUT_OF_STEP = "answers out of step"
_TURNS = 10  # of the loop, in which it reads what has arrived
Value = TypeVar("Value")


class ServerError(Exception):
    """The server's refusal to answer; the last line of its text."""


class Connection:
    """A connection that is made when it is needed. One thread.

    ``metadata`` is the server's at the last of ``connections``. Every method but ``close`` raises
    Unreachable when the time is over or there is no server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._websockets = need("websockets")
        self._client = need("websockets.asyncio.client")
        self._loop = asyncio.new_event_loop()
        self._socket: Any = None
        self.metadata: dict[Any, Any] = {}
        self.connections = 0

    @property
    def connected(self) -> bool:
        """True if it was connected when it was used last."""
        return self._socket is not None

    def connect(self, timeout_s: float) -> None:
        """Connect, unless it is connected."""
        if self._socket is None:
            self._run(self._connect(), timeout_s)
            self.connections += 1

    async def _connect(self) -> None:
        token = os.environ.get(TOKEN)
        socket = await self._client.connect(
            self._url,
            additional_headers={"Authorization": f"Api-Key {token}"} if token else None,
            compression=None,
            max_size=MAX_BYTES,
            open_timeout=None,
            ping_interval=None,
            proxy=None,
        )
        try:
            first = await socket.recv()
            if isinstance(first, str):
                raise OSError(f"it says {last_line(first)}")
            self.metadata = unpack(first)
        except BaseException:
            socket.transport.abort()
            raise
        self._socket = socket

    def send(self, message: Mapping[str, Any], timeout_s: float) -> None:
        """Send a request; where the server closed the connection meanwhile it is made anew,
        once."""
        data = pack(message)
        until = time.monotonic() + timeout_s
        fresh = self._socket is None
        while True:
            self.connect(until - time.monotonic())
            self._refuse_unasked()
            try:
                return self._run(self._socket.send(data), until - time.monotonic())
            except Unreachable:
                lost = self._socket is None
                self.close()  # it may be answered yet
                if fresh or not lost or time.monotonic() >= until:
                    raise
                fresh = True

    def receive(self, timeout_s: float) -> dict[Any, Any]:
        """The answer. Malformed. ServerError: the server's refusal, its last text on this
        connection, which openpi's servers close after that."""
        answer = self._run(self._socket.recv(), timeout_s)
        if isinstance(answer, str):
            self.close()
            raise ServerError(last_line(answer))
        self._refuse_unasked()
        return unpack(answer)

    def _refuse_unasked(self) -> None:
        """Raise Unreachable where a second answer is there: neither is known to be the right
        one."""
        if self._loop.run_until_complete(self._another()):
            self.close()
            raise Unreachable(f"{self._url} {OUT_OF_STEP}: there is one that was not asked for")

    async def _another(self) -> bool:
        """True if there is a message. Does not wait for one."""
        coming = asyncio.ensure_future(self._socket.recv())
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        coming.cancel()
        await asyncio.wait([coming])
        # Closed meanwhile: the next request finds out.
        return not coming.cancelled() and coming.exception() is None

    def close(self) -> None:
        """Close the connection, with a notice to the server."""
        socket, self._socket = self._socket, None
        if socket is not None:
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(asyncio.wait_for(socket.close(), FAREWELL_S))
            socket.transport.abort()
            self._loop.run_until_complete(asyncio.sleep(0))

    def _run(self, work: Coroutine[Any, Any, Value], timeout_s: float) -> Value:
        """Result of ``work``. Unreachable: not in time (the connection stays), or it was lost (it
        is closed)."""

        async def bounded() -> Value:
            return await asyncio.wait_for(work, max(timeout_s, 0.001))

        try:
            return self._loop.run_until_complete(bounded())
        except asyncio.TimeoutError:
            raise Unreachable(f"{self._url} does not answer") from None
        except self._websockets.exceptions.InvalidStatus as error:
            status, body = error.response.status_code, error.response.body or b""
            line = last_line(body.decode(errors="replace"))
            raise Unreachable(f"{self._url} refuses: HTTP {status} {line}".rstrip()) from error
        except (OSError, EOFError, self._websockets.exceptions.WebSocketException) as error:
            self.close()
            raise Unreachable(f"{self._url}: {_reason(error)}") from error
        except Malformed:
            self.close()
            raise
        finally:
            work.close()


def _reason(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there; is the server running?"
    with contextlib.suppress(AttributeError):
        if error.strerror:  # type: ignore[attr-defined]
            return str(error.strerror)  # type: ignore[attr-defined]
    return last_line(str(error)) or type(error).__name__


def last_line(text: str) -> str:
    """The last line of a text, which of a traceback is the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
