"""A client's connection: what is too much is closed with the reason, what a robot sends is not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket as sockets
import time

import pytest

websockets = pytest.importorskip("websockets", reason="not installed: pip install '.[serve]'")
pytest.importorskip("msgpack", reason="msgpack is not installed: pip install '.[serve]'")
pytest.importorskip("prometheus_client", reason="not installed: pip install '.[serve]'")

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from support.serving import serving
from vla_ros.policies.base import PolicySpec
from vla_ros.serve.limits import (
    CONTROLS,
    FRAGMENT_BYTES,
    FRAGMENTS,
    HALF_OPEN,
    LARGE,
    TURN,
    Door,
    LimitedConnection,
)
from vla_ros.serve.log import LINES, ClientLog

LOG = logging.getLogger("vla_ros.serve.test")
WAIT_S = 30.0
MAX_BYTES = 1 << 22


def frame(opcode: Opcode, data: bytes, final: bool = True) -> bytes:
    return Frame(opcode, data, final).serialize(mask=True)


class Echo:
    """A server with limits, a client of it, and the server's end of its connection."""

    def __init__(self) -> None:
        self.thrown_out = 0
        self._ends: asyncio.Queue[LimitedConnection] = asyncio.Queue()

    async def __aenter__(self) -> Echo:
        door = Door(ClientLog(LOG), MAX_BYTES, self._count, lambda *_: None)
        self._server = await serve(
            self._answer, "127.0.0.1", 0, create_connection=door.open, max_queue=1,
            max_size=MAX_BYTES, logger=door.log
        )  # fmt: skip
        self.port = next(iter(self._server.sockets)).getsockname()[1]
        self.client = await connect(f"ws://127.0.0.1:{self.port}", max_size=None, compression=None)
        self.end = await self._ends.get()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        self._server.close()

    def _count(self) -> None:
        self.thrown_out += 1

    async def _answer(self, connection: LimitedConnection) -> None:
        self._ends.put_nowait(connection)
        async for message in connection:
            await connection.send(message)

    async def told(self) -> tuple[int, str]:
        """Code and reason with which the client is closed."""
        with pytest.raises(ConnectionClosed) as error:
            while True:
                await asyncio.wait_for(self.client.recv(), WAIT_S)
        assert error.value.rcvd is not None
        return error.value.rcvd.code, error.value.rcvd.reason


@pytest.mark.parametrize("size", [0, 1, 125, 126, 70_000])
@pytest.mark.parametrize("piece", [1, 2, 3, 5, 13, 1000, 1 << 20])
def test_a_message_is_the_same_however_the_network_cuts_it(size, piece) -> None:
    data = bytes(n % 251 for n in range(size))
    stream = frame(Opcode.PING, b"1") + frame(Opcode.BINARY, data[: size // 2], False)
    stream += frame(Opcode.PING, b"2") + frame(Opcode.CONT, data[size // 2 :])
    stream += frame(Opcode.BINARY, b"the next")

    async def run() -> None:
        async with Echo() as echo:
            for at in range(0, len(stream), piece):
                echo.end.data_received(stream[at : at + piece])
            assert await echo.client.recv() == data
            assert await echo.client.recv() == b"the next"

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_messages_that_come_faster_than_they_are_read_wait_and_none_is_lost() -> None:
    async def run() -> None:
        async with Echo() as echo:
            echo.end.data_received(b"".join(frame(Opcode.TEXT, b"%d" % n) for n in range(500)))
            assert len(echo.end.recv_messages.frames) <= TURN
            assert [await echo.client.recv() for _ in range(500)] == [str(n) for n in range(500)]
            assert echo.thrown_out == 0

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


TOO_MUCH = {
    "more than 10 pings a second": frame(Opcode.PING, b"1") * (int(CONTROLS) + 20),
    "more than 10 pings a second ": frame(Opcode.PONG, b"") * (int(CONTROLS) + 20),
    f"a message in {FRAGMENTS + 1} fragments of a few bytes": (
        frame(Opcode.BINARY, b"", False) + frame(Opcode.CONT, b"1", False) * FRAGMENTS
    ),
}


@pytest.mark.parametrize("said", TOO_MUCH)
def test_who_sends_what_no_robot_needs_is_closed_with_the_reason(said, caplog) -> None:
    async def run() -> None:
        async with Echo() as echo:
            echo.end.data_received(TOO_MUCH[said] * 3)
            assert await echo.told() == (1008, said.strip())
            await asyncio.wait_for(echo.end.wait_closed(), WAIT_S)
            assert echo.thrown_out == 1

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    (line,) = (one.getMessage() for one in caplog.records if one.name == LOG.name)
    assert line.startswith("127.0.0.1 port ")
    assert line.endswith(f"was thrown out: {said.strip()}")


def test_what_a_robot_s_library_sends_is_none_of_it() -> None:
    """A large observation in small pieces, and as many pings as some libraries send."""
    piece = bytes(FRAGMENT_BYTES)

    async def run() -> None:
        async with Echo() as echo:
            for _ in range(int(CONTROLS) - 2):
                await (await echo.client.ping())
            await echo.client.send([piece] * 2000)
            assert await echo.client.recv() == piece * 2000
            await echo.client.send([b"1"] * (FRAGMENTS - 1))
            assert await echo.client.recv() == b"1" * (FRAGMENTS - 1)

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_handshakes_that_do_not_end_make_room_for_the_next_one() -> None:
    async def run() -> None:
        async with Echo() as echo:
            half = []
            for _ in range(HALF_OPEN + 9):
                half.append(sockets.create_connection(("127.0.0.1", echo.port)))
                half[-1].sendall(b"GET / HT")
                await asyncio.sleep(0)
            async with connect(f"ws://127.0.0.1:{echo.port}") as another:
                await another.send("here")
                assert await another.recv() == "here"
            while echo.thrown_out < 9:
                await asyncio.sleep(0.01)
            half[0].settimeout(WAIT_S)
            with contextlib.suppress(ConnectionResetError):
                assert half[0].recv(1) == b"", "the oldest is out"
            for one in half:
                one.close()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


STRANGE = {
    "it speaks TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    "connection closed": b"",
    "opening handshake failed": b"\xc1\x1b[2J\n garbage\r\n\r\n",
    "PUT": b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
}


def test_a_large_message_is_the_same_whole_and_in_fragments_however_it_is_cut() -> None:
    data = random.Random(0).randbytes(3 * LARGE + 5)
    halves = data[: LARGE + 3], data[LARGE + 3 :]
    stream = frame(Opcode.BINARY, data) + frame(Opcode.PING, b"1")
    stream += frame(Opcode.BINARY, halves[0], False) + frame(Opcode.PONG, b"")
    stream += frame(Opcode.CONT, b"", False) + frame(Opcode.CONT, halves[1])

    async def run(piece: int) -> None:
        async with Echo() as echo:
            for at in range(0, len(stream), piece):
                echo.end.data_received(stream[at : at + piece])
                await asyncio.sleep(0)
            assert await echo.client.recv() == data
            assert await echo.client.recv() == data

    for piece in (4999, 65_536, LARGE, LARGE + 1, 2 * LARGE + 3, len(stream)):
        asyncio.run(asyncio.wait_for(run(piece), WAIT_S))


@pytest.mark.parametrize("fragments", [False, True])
def test_a_message_that_is_too_large_is_refused_with_1009(fragments) -> None:
    async def run() -> None:
        async with Echo() as echo:
            size = LARGE if fragments else MAX_BYTES + 1
            echo.end.data_received(frame(Opcode.BINARY, bytes(size), not fragments))
            if fragments:
                echo.end.data_received(frame(Opcode.CONT, bytes(MAX_BYTES - LARGE + 1)))
            assert (await echo.told())[0] == 1009

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


@pytest.mark.parametrize("said", STRANGE)
def test_a_program_that_speaks_something_else_is_one_line_in_the_log(said, caplog) -> None:
    with serving(PolicySpec("zero")) as server:
        host, port = server.address.removeprefix("ws://").split(":")
        with sockets.create_connection((host, int(port)), WAIT_S) as raw:
            raw.sendall(STRANGE[said])
            raw.shutdown(sockets.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while raw.recv(1000):
                    pass
        end = time.monotonic() + WAIT_S
        while not caplog.records and time.monotonic() < end:
            time.sleep(0.01)
    (record,) = caplog.records
    assert said in record.getMessage()
    assert record.getMessage().isprintable()
    assert not record.exc_info


def test_the_log_has_so_many_lines_a_minute_and_says_how_many_more_there_were(caplog) -> None:
    now = [0.0]
    log = ClientLog(LOG, lambda: now[0])
    for number in range(LINES + 30):
        log.warning("client %d\x1b[2J", number)
    now[0] = 61.0
    log.warning("the next minute")
    lines = [one.getMessage() for one in caplog.records]
    assert lines[0] == "client 0?[2J"
    assert len(lines) == LINES + 1
    assert lines[-2].endswith(" (more of this minute are left out)")
    assert lines[-1] == "the next minute (before it 30 lines were left out)"
