"""A server of openpi's protocol that is none of ours: websockets and msgpack alone.

Every array on this side is made and read by hand, as openpi's documentation has it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from socket import SHUT_RDWR
from typing import Any

import msgpack
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve


def to_map(value: Any) -> Any:
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str,
            b"shape": value.shape}  # fmt: skip


def from_map(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" not in value:
        return value
    return np.ndarray(value[b"shape"], np.dtype(value[b"dtype"]), value[b"data"])


class ForeignServer:
    """`infer` answers in a thread a client; `seen` is what came, `sent` how many messages went out.
    A block is its life. A tuple of answers is as many messages.

    After an error it says the traceback and closes, as openpi's does, ``closes_after_s`` later."""

    closes_after_s = 0.0

    def __init__(self, infer: Callable[[dict[str, Any]], Any], port: int = 0, **metadata: Any):
        self.infer, self.metadata, self.seen = infer, metadata, []
        self.headers: list[str | None] = []
        self.sent = 0
        self._clients: list[ServerConnection] = []
        self._server = serve(self._talk, "127.0.0.1", port, compression=None, max_size=None)
        self.port = self._server.socket.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}"

    def _talk(self, socket: ServerConnection) -> None:
        self._clients.append(socket)
        self.headers.append(socket.request.headers.get("Authorization"))
        socket.send(msgpack.packb(self.metadata))
        with contextlib.suppress(ConnectionClosed):
            self._answer(socket)

    def _answer(self, socket: ServerConnection) -> None:
        for data in socket:
            try:
                self.seen.append(msgpack.unpackb(data, object_hook=from_map))
                answer = self.infer(self.seen[-1])
                for one in answer if isinstance(answer, tuple) else (answer,):
                    socket.send(
                        one if isinstance(one, bytes) else msgpack.packb(one, default=to_map)
                    )
                    self.sent += 1
            except ConnectionClosed:
                raise
            except Exception:
                socket.send(traceback.format_exc())
                time.sleep(self.closes_after_s)
                socket.close(1011)

    def __enter__(self) -> ForeignServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.socket.shutdown(SHUT_RDWR)
