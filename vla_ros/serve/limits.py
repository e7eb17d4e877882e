"""A client's connection with limits that hold before anything is decoded: apart from the server
since it cannot be imported without websockets.

websockets parses all that a read from the network brings before anybody sees a frame of it: 43,000
empty frames, or pings that are all answered, in one step of the event loop. Here the heads of the
frames (RFC 6455, 5.2) are read first, and its parser gets frame after frame. A client that sends
what no robot needs is closed with 1008 and the reason; one that sends more observations than are
answered waits.

A connection whose first words are those of an HTTP POST is handed to :mod:`vla_ros.serve.act`.
"""

from __future__ import annotations

import time
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter, Transport
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.protocol import State

from vla_ros.policies.remote.act import HEAD
from vla_ros.serve.log import ClientLog, peer

VIOLATION = 1008  # RFC 6455: the client's message violates the policy
CONTROLS_HZ, CONTROLS = 10.0, 50.0  # pings and pongs of a client; robots send one in some seconds
FRAGMENTS = 64  # of a message, and one more for each of these bytes: libraries cut at 1 KiB or so
FRAGMENT_BYTES = 256
TURN = 16  # frames that one client may have parsed in one turn of the loop
LARGE = 1 << 18  # bytes of a frame that is parsed in parts, as it comes
HALF_OPEN = 64  # connections before their websocket; the next one takes the oldest one's place
LINGER_S = 0.2  # for the close frame to be read, before the connection is cut
_CONTROL, _FINAL, _MASKED = 0x8, 0x80, 0x80
_POST = b"POST "
_TLS = 0x16  # first byte of its handshake; none of HTTP's


class Door:
    """Connections of one server that are no websockets yet, and the log of those thrown out.

    ``max_bytes``: of a message. ``threw_out`` is called with each. ``posts`` takes over a
    connection that begins with an HTTP POST.
    """

    def __init__(
        self,
        log: ClientLog,
        max_bytes: int,
        threw_out: Callable[[], None],
        posts: Callable[[StreamReader, StreamWriter], None],
    ) -> None:
        self.log, self.max_bytes, self.threw_out, self.posts = log, max_bytes, threw_out, posts
        self._waiting: dict[LimitedConnection, None] = {}  # the oldest first

    def open(self, *args: Any, **words: Any) -> LimitedConnection:
        """Another connection, as websockets makes them."""
        return LimitedConnection(self, *args, **words)

    def enter(self, connection: LimitedConnection) -> None:
        """Let a connection begin its handshake, in place of the oldest where too many have."""
        self._waiting[connection] = None
        if len(self._waiting) > HALF_OPEN:
            next(iter(self._waiting)).throw_out(f"{HALF_OPEN} others wait for their handshake too")

    def leave(self, connection: LimitedConnection) -> None:
        """A handshake is over."""
        self._waiting.pop(connection, None)


class LimitedConnection(ServerConnection):  # type: ignore[misc]  # typed as Any without websockets
    """A server's end of a websocket that reads no more than a robot has to send."""

    def __init__(self, door: Door, *args: Any, **words: Any) -> None:
        super().__init__(*args, **words)
        self.spent_s = 0.0  # for what it sent, since its reader set it to 0
        self._door = door
        self._held = b""  # received, and not yet parsed
        self._began = False  # its first words are no POST
        self._goes_on = False
        self._frame_left = 0  # bytes of the frame under way
        self._large: _Head | None = None  # of the frame under way, where it is a large one
        self._fragments = self._message_bytes = 0  # of the message under way
        self._controls, self._controls_s = CONTROLS, time.monotonic()
        self.thrown_out = False

    def connection_made(self, transport: Transport) -> None:
        """Called by asyncio."""
        super().connection_made(transport)
        self.recv_messages.resume = self._later
        self._door.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio."""
        silent = self.request is None and error is None and self.protocol.handshake_exc is None
        if silent and not self.thrown_out:  # of which websockets says nothing
            self._door.log.warning("%s asked for no websocket in time", peer(self))
        self._door.leave(self)
        self._held = b""
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio, which gives up to 256 KiB."""
        if self.thrown_out:
            self.transport.pause_reading()
            return
        self._held += data
        if not self._began and _POST.startswith(self._held[: len(_POST)]):
            if len(self._held) >= len(_POST):
                self._hand_over()
            return
        self._began = True
        self._parse()

    def _hand_over(self) -> None:
        """Leave the connection to who answers POSTs: to websockets it is over."""
        data, self._held, self.thrown_out = self._held, b"", True  # of which nothing is logged
        transport, loop = self.transport, self.loop
        self.transport: Any = _NoTransport()
        self._door.leave(self)
        super().connection_lost(None)
        reader = StreamReader(limit=HEAD, loop=loop)
        protocol = StreamReaderProtocol(reader, loop=loop)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        reader.feed_data(data)
        self._door.posts(reader, StreamWriter(transport, protocol, reader, loop))

    def _later(self) -> None:
        """Go on in the loop's next turn, after the other clients."""
        if not self._goes_on:
            self._goes_on = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if not self.thrown_out:
            self._parse()

    def _parse(self) -> None:
        """Parse what is held, :data:`TURN` frames at most; read more when all was parsed, and the
        messages before it were taken."""
        began, data, at, turn = time.perf_counter(), self._held, 0, TURN
        self._held = b""
        while at < len(data) and not self.thrown_out:
            if self.request is None:  # a line of HTTP: frames begin right behind its last one
                if data[at] == _TLS:
                    self.throw_out("it speaks TLS and this port does not: use ws:// and http://")
                    return
                end = data.find(b"\n", at) + 1 or len(data)
                super().data_received(data[at:end])
            elif self._frame_left:
                end = min(at + self._frame_left, len(data))
                self._frame_left -= end - at
                super().data_received(self._fragment(data[at:end]))
            elif turn == 0 or (head := _Head.at(data, at)) is None:
                break
            elif wrong := self._excess(head):
                self.throw_out(wrong)
                return
            else:
                turn -= 1
                self._frame_left, self._large, end = head.size + head.length, None, at
                if LARGE <= head.length <= self._door.max_bytes:  # more is refused by its head
                    self._frame_left, self._large, end = head.length, head, at + head.size
            at = end
        if self.request is not None:
            self._door.leave(self)
        self._held = data[at:]
        self.spent_s += time.perf_counter() - began
        if self.recv_messages.paused:  # it calls _later when they were taken
            return
        if turn == 0 and self._held:
            self.transport.pause_reading()
            self._later()
        else:
            self.transport.resume_reading()

    def _fragment(self, data: bytes) -> bytes:
        """Bytes of the frame under way for websockets' parser: of a large one as a fragment, so
        that it is unmasked as it comes and not all at once at its end."""
        if (head := self._large) is None:
            return data
        first = head.first if self._frame_left == 0 else head.first & ~_FINAL
        self._large = head.behind(data)
        return bytes([first, _MASKED | 127]) + len(data).to_bytes(8, "big") + head.mask + data

    def _excess(self, head: _Head) -> str:
        """What a frame is too much of; "": it is not."""
        if head.first & _CONTROL:
            now = time.monotonic()
            gained = (now - self._controls_s) * CONTROLS_HZ
            self._controls, self._controls_s = min(self._controls + gained, CONTROLS) - 1.0, now
            return f"more than {CONTROLS_HZ:g} pings a second" if self._controls < 0 else ""
        if head.first & _FINAL:
            self._fragments = self._message_bytes = 0
            return ""
        self._fragments += 1
        self._message_bytes += head.length
        much = self._fragments > FRAGMENTS + self._message_bytes // FRAGMENT_BYTES
        return f"a message in {self._fragments} fragments of a few bytes" if much else ""

    def throw_out(self, why: str) -> None:
        """Close with a reason, and read nothing any more."""
        self.thrown_out, self._held = True, b""
        self._door.leave(self)
        self._door.threw_out()
        self._door.log.warning("%s was thrown out: %s", peer(self), why)
        if self.protocol.state is not State.OPEN:
            self.transport.abort()
            return
        self.protocol.fail(VIOLATION, why)
        self.send_data()
        self.recv_messages.close()  # who waits for a message learns that it is over
        self.transport.pause_reading()
        self.loop.call_later(LINGER_S, self.transport.abort)


class _NoTransport:
    """What websockets may still abort of a connection that it has no more."""

    def abort(self) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class _Head:
    """Head of a frame: its first byte (end of a message, opcode), its own size, that of the data
    behind it, and what masks them ("" where nothing does, which websockets refuses)."""

    first: int
    size: int
    length: int
    mask: bytes

    @staticmethod
    def at(data: bytes, at: int) -> _Head | None:
        """The head that begins there; None: more of it must come."""
        second = data[at + 1] if at + 1 < len(data) else 0
        length, size = second & 0x7F, 2
        if length > 125:
            size += 2 if length == 126 else 8
            length = int.from_bytes(data[at + 2 : at + size], "big")
        masked = at + size
        size += 4 if second & _MASKED else 0
        if len(data) < at + size:
            return None
        return _Head(data[at], size, length, data[masked : at + size])

    def behind(self, data: bytes) -> _Head:
        """Head of the rest of a frame as a fragment of its own, behind these data."""
        turn = len(data) % 4
        return replace(self, first=self.first & _FINAL, mask=self.mask[turn:] + self.mask[:turn])
