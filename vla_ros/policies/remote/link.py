"""The client's end of openpi's protocol: one connection, one request at a time, each wait bounded.

Answers have no number: an answer belongs to the one request that is open. So a connection on which
there is one more answer, or perhaps one more request, is closed with all that is on its way, and so
is one whose answer begins before its request has left this machine.

No wait is longer than its time, whatever a server sends: frames without an end are read in slices,
and so many of them in one request are a flood, which ends the connection.

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

from vla_ros.core.text import printable
from vla_ros.policies.base import Unreachable
from vla_ros.policies.remote.codec import MAX_BYTES, Malformed, need, pack, unpack

TOKEN = "VLA_ROS_TOKEN"  # environment variable of both ends; a parameter would be read by all
FAREWELL_S = 0.05  # for a word that the connection ends
OUT_OF_STEP = "answers out of step"
FRAMES = 2000  # of an exchange, pings and fragments included: each costs some microseconds
_SLICE = 4096  # bytes of what arrived, between two looks at the count: 2048 empty frames at most
_TURNS = 10  # of the loop, in which it reads what has arrived
_LONGEST = 10_000  # characters of a text, whose last line is looked for
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
        client = need("websockets.asyncio.client")
        self._connecting, self._bounded = _direct(client), _bounded(client)
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
        socket = await self._connecting(
            self._url,
            additional_headers={"Authorization": f"Api-Key {token}"} if token else None,
            compression=None,
            create_connection=self._bounded,
            max_size=MAX_BYTES,
            open_timeout=None,
            ping_interval=None,
            proxy=None,
        )
        try:
            first = await socket.message()
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
            self._socket.begin()
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
        answer = self._run(self._socket.message(), timeout_s)
        if isinstance(answer, str):
            self.close()
            raise ServerError(last_line(answer))
        self._refuse_unasked()
        return unpack(answer)

    def _refuse_unasked(self) -> None:
        """Raise Unreachable where a message is there that was not asked for: of two answers neither
        is known to be the right one."""
        self._loop.run_until_complete(_turns())
        if self._socket.unasked:
            self.close()
            raise Unreachable(f"{self._url} {OUT_OF_STEP}: there is one that was not asked for")

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
            if location := error.response.headers.get("Location"):
                line = f"it points to {printable(location)}: give that, if it is the server"
                status = f"{status}:"
            raise Unreachable(f"{self._url} refuses: HTTP {status} {line}".rstrip()) from error
        except Malformed:
            self.close()
            raise
        except Exception as error:  # the system's and websockets', of whatever kind
            why = getattr(self._socket, "flood", "") or _reason(error)
            self.close()
            raise Unreachable(f"{self._url}: {why}") from error
        finally:
            work.close()


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _reason(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there; is the server running?"
    with contextlib.suppress(AttributeError):
        if error.strerror:  # type: ignore[attr-defined]
            return str(error.strerror)  # type: ignore[attr-defined]
    return last_line(str(error)) or type(error).__name__


def last_line(text: str) -> str:
    """The last line of a text, which of a traceback is the error."""
    lines = [line.strip() for line in text[-_LONGEST:].splitlines() if line.strip()]
    return printable(lines[-1]) if lines else ""


def _direct(client: Any) -> Any:
    """The kind of connecting that goes to the server that was named and to no other: the token is
    for that one, and older versions of websockets take it along."""

    class Direct(client.connect):  # type: ignore[misc, name-defined]
        def process_redirect(self, error: Exception) -> Exception:
            return error

    return Direct


def _bounded(client: Any) -> Any:
    """The kind of connection that a server can neither flood nor set out of step. Made here because
    websockets is imported where it is needed."""
    data_opcodes = need("websockets.frames").DATA_OPCODES

    class Bounded(client.ClientConnection):  # type: ignore[misc, name-defined]
        """Connection that holds one message. It ends itself where a second one comes, one to what
        is still being asked, or more frames than an exchange can have.

        Not websockets' own queue: a read of that which is canceled between two fragments loses
        them, and frames have no end there. ``flood``: why it ended itself.
        """

        def __init__(self, *args: Any, **words: Any) -> None:
            super().__init__(*args, **words)
            self._left = FRAMES
            self._parts: list[bytes] = []
            self._text = False
            self._message: bytes | str | None = None
            self.flood = ""
            self._waiter: asyncio.Future[None] | None = None

        def begin(self) -> None:
            """Begin an exchange: its frames count from now on."""
            self._left = FRAMES

        async def message(self) -> bytes | str:
            """The next message. OSError: it ended itself. Canceling this loses nothing."""
            while self._message is None and not self.flood:
                if self.connection_lost_waiter.done():
                    raise self.protocol.close_exc
                self._waiter = self.loop.create_future()
                await self._waiter
            if self.flood or self._message is None:
                raise OSError(self.flood)
            found, self._message = self._message, None
            return found

        @property
        def unasked(self) -> bool:
            """True if there is a message that nobody waits for."""
            return self._message is not None or self.flood.startswith(OUT_OF_STEP)

        def data_received(self, data: bytes) -> None:
            for at in range(0, len(data), _SLICE):
                if not self.flood:
                    super().data_received(data[at : at + _SLICE])

        def process_event(self, event: Any) -> None:
            self._left -= 1
            if self._left < 0:
                self._end(f"more than {FRAMES} frames without an answer: is it an openpi server?")
            elif getattr(event, "opcode", None) in data_opcodes:
                self._take(event)
            else:
                super().process_event(event)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._wake()

        def _take(self, frame: Any) -> None:
            if self.transport.get_write_buffer_size():
                return self._end(f"{OUT_OF_STEP}: there is one to what has not left yet")
            if self._message is not None:
                return self._end(f"{OUT_OF_STEP}: there is one that was not asked for")
            self._text = frame.opcode == 1 if not self._parts else self._text
            self._parts.append(bytes(frame.data))
            if frame.fin:
                data, self._parts = b"".join(self._parts), []
                self._message = data.decode(errors="replace") if self._text else data
                self._wake()
            return None

        def _end(self, flood: str) -> None:
            if not self.flood:
                self.flood = flood
                self.transport.abort()
                self._wake()

        def _wake(self) -> None:
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    return Bounded
