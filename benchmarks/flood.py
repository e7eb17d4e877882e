"""A flood beside a robot: what one client of `vla-ros serve` costs another one, attack by attack.

Three processes: the server, an honest robot that asks again as soon as it has its answer, and an
attacker, who comes again when it is thrown out.

    python benchmarks/flood.py                                     policy zero: the server alone
    python benchmarks/flood.py --seconds 20 -- shipped:tabletop    with a model behind it
    python benchmarks/flood.py --attack pings --attack connects

A row is an attack, the robot's round trips beside it (p50 and p99 in ms), what the server's memory
grew by and the lines that it logged. The last line of --json is the same as a list.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

ZERO = ("--policy", "zero", "--names", "libero")
START_S = 120.0  # for a model to load
HALF_OPEN = 200  # handshakes that are begun and never finished
NICE = 10  # of the attacker, who would sit at another machine: the robot has its processor first
MASK = b"\0\0\0\0"
HELLO = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def frame(opcode: int, data: bytes, final: bool = True) -> bytes:
    """A client's frame (RFC 6455, 5.2), with a mask of zeros."""
    size = len(data)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + struct.pack("!H", size)
    else:
        length = b"\xff" + struct.pack("!Q", size)
    return bytes([0x80 * final | opcode]) + length + MASK + data


def observation(side: int = 256, words: bool = False) -> bytes:
    """An observation of two cameras and 8 values of state, as LIBERO's table names them."""
    image = np.zeros((side, side, 3), np.uint8)
    said: dict[str, Any] = {
        "observation/image": image,
        "observation/wrist_image": image,
        "observation/state": np.zeros(8, np.float32),
        "prompt": "put the green cube on the red cube",
    }
    return bytes(msgpack.packb({"x": 1} if words else said, default=_array))


def _array(value: Any) -> dict[bytes, Any]:
    data = value.tobytes()
    return {b"__ndarray__": True, b"data": data, b"dtype": value.dtype.str, b"shape": value.shape}


# Attackers. Each gets an address and returns when it is thrown out.

Address = tuple[str, int]


def _open(address: Address) -> socket.socket:
    """A connection after its handshake and the server's metadata."""
    raw = socket.create_connection(address, 5.0)
    raw.sendall(HELLO)
    raw.recv(1 << 16)
    return raw


def _sends(block: bytes, first: bytes = b"", reads: bool = True) -> Callable[[Address], None]:
    """An attacker that sends a block again and again, and reads what it gets."""

    def attack(address: Address) -> None:
        with _open(address) as raw:
            if reads:
                threading.Thread(target=_drain, args=(raw,), daemon=True).start()
            raw.sendall(first)
            while True:
                raw.sendall(block)

    return attack


def _drain(raw: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while raw.recv(1 << 18):
            pass


def _connects(address: Address) -> None:
    socket.create_connection(address, 5.0).close()


def _handshakes(address: Address) -> None:
    _open(address).close()


def _says(words: bytes) -> Callable[[Address], None]:
    """A program that takes the port for something else's."""

    def attack(address: Address) -> None:
        with socket.create_connection(address, 5.0) as raw:
            raw.sendall(words)
            raw.recv(1 << 16)

    return attack


def _half_open(address: Address) -> None:
    half = []
    for _ in range(HALF_OPEN):
        half.append(socket.create_connection(address, 5.0))
        half[-1].sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
    while half:
        for one in list(half):
            try:
                one.sendall(b"a")
            except OSError:
                half.remove(one)
        time.sleep(0.05)


def attacks() -> dict[str, Callable[[Address], None]]:
    """The attackers by name."""
    deep = b"\x81\xa1a" + b"\x91" * 400 + b"\x01"
    wide = msgpack.packb({"a": [[0] * 4096 for _ in range(900)]})
    return {
        "pings": _sends(frame(9, b"12345678") * 2000),
        "pings, unread": _sends(frame(9, b"12345678") * 2000, reads=False),
        "pongs": _sends(frame(10, b"12345678") * 2000),
        "empty fragments": _sends(frame(0, b"", False) * 5000, frame(2, b"", False)),
        "small fragments": _sends(frame(0, b"0123456789", False) * 2000, frame(2, b"", False)),
        "many fragments": _sends(frame(0, bytes(256), False) * 500, frame(2, b"", False)),
        "empty messages": _sends(frame(2, b"") * 5000),
        "big messages": _sends(frame(2, observation(2200))),
        "wrong messages": _sends(frame(2, observation(words=True)) * 500),
        "deep messages": _sends(frame(2, deep) * 50),
        "wide messages": _sends(frame(2, wide)),
        "slow reader": _sends(frame(2, observation()), reads=False),
        "connects": _connects,
        "handshakes": _handshakes,
        "half handshakes": _half_open,
        "HTTP POST": _says(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"),
        "TLS hello": _says(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" * 20),
    }  # fmt: skip


def be_attacker(name: str, address: Address) -> None:
    """Attack until this process is killed."""
    os.nice(NICE)
    attack = attacks()[name]
    print("ready", flush=True)
    while True:
        with contextlib.suppress(OSError):
            attack(address)


def be_robot(address: Address, seconds: float) -> None:
    """Ask for so long; prints the round trips in seconds as a list."""
    asked = observation()
    took: list[float] = []
    url = f"ws://{address[0]}:{address[1]}"
    with connect(url, compression=None, max_size=None, ping_interval=1.0) as server:
        server.recv()
        for _ in range(5):  # the first opens the session
            server.send(asked)
            server.recv()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                server.send(asked)
                server.recv(seconds + 30.0)
            except (ConnectionClosed, TimeoutError) as error:
                print(json.dumps({"lost": str(error)}))
                return
            took.append(time.monotonic() - began)
    print(json.dumps(took))


# The table


@dataclass(frozen=True)
class Row:
    """What an attack cost the robot and the server."""

    attack: str
    trips: int
    p50_ms: float
    p99_ms: float
    grew_mb: float
    lines: int


class Served:
    """`vla-ros serve` as a process, while a block runs."""

    def __init__(self, words: tuple[str, ...] = ZERO) -> None:
        self._words = words
        self.lines: list[str] = []  # of its log

    def __enter__(self) -> Served:
        command = [sys.executable, "-m", "vla_ros.cli.main", "serve", "--port", "0", *self._words]
        self._log: IO[str] = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        killer = threading.Timer(START_S, self._process.kill)
        killer.start()
        greeting = self._process.stdout.readline()
        killer.cancel()
        if " at ws://" not in greeting:
            self._process.kill()
            self._log.seek(0)
            raise SystemExit(f"the server did not start: {self._log.read()[-2000:]}")
        host, _, port = greeting.split(" at ws://")[1].split()[0].rpartition(":")
        self.address: Address = (host, int(port))
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        self._process.kill()
        self._process.wait()

    def memory_mb(self) -> float:
        """Resident memory."""
        text = Path(f"/proc/{self._process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def log(self) -> list[str]:
        """Lines that it logged since it was asked before."""
        self._log.seek(0)
        every = self._log.read().splitlines()
        new, self.lines = every[len(self.lines) :], every
        return new


def _myself(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def attacker(name: str, address: Address) -> Iterator[None]:
    """An attack by a process of its own, under way while the block runs."""
    if not name:
        yield
        return
    process = _myself("--be-attacker", name, *map(str, address))
    try:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)  # the time to get going
        yield
    finally:
        process.kill()
        process.wait()


def row(served: Served, attack: str, seconds: float) -> Row:
    """The robot beside an attack; "": beside none."""
    served.log()
    before = served.memory_mb()
    with attacker(attack, served.address):
        robot = _myself("--be-robot", *map(str, served.address), str(seconds))
        said, _ = robot.communicate()
        after = served.memory_mb()
    found = json.loads(said or "{}")
    if isinstance(found, dict):
        print(f"beside {attack} the robot was lost: {found.get('lost')}", file=sys.stderr)
    took = np.array(found if isinstance(found, list) and found else [np.inf]) * 1000
    p50, p99 = (float(np.percentile(took, n)) for n in (50, 99))
    return Row(attack or "none", len(took), p50, p99, after - before, len(served.log()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of a row (5)")
    parser.add_argument("--attack", action="append", help="these alone")
    parser.add_argument("--json", action="store_true", help="the rows as the last line")
    parser.add_argument("serve", nargs="*", help="arguments of vla-ros serve, behind --")
    args = parser.parse_args()
    rows: list[Row] = []
    print(f"{'attack':16} {'trips':>6} {'p50 ms':>9} {'p99 ms':>9} {'grew MB':>8} {'lines':>6}")
    with Served(tuple(args.serve) or ZERO) as served:
        row(served, "", 1.0)  # warm
        for name in ["", *(args.attack or attacks()), ""]:
            rows.append(one := row(served, name, args.seconds))
            print(f"{one.attack:16} {one.trips:6} {one.p50_ms:9.2f} {one.p99_ms:9.2f}"
                  f" {one.grew_mb:8.1f} {one.lines:6}", flush=True)  # fmt: skip
    if args.json:
        print(json.dumps([asdict(one) for one in rows]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--be-attacker"]:
        be_attacker(sys.argv[2], (sys.argv[3], int(sys.argv[4])))
    elif sys.argv[1:2] == ["--be-robot"]:
        be_robot((sys.argv[2], int(sys.argv[3])), float(sys.argv[4]))
    else:
        main()
