"""A server of the websocket protocol that may say anything: it writes bytes, not messages.

websockets' own states are used for the handshake and for what the client says, nothing else.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from websockets.frames import OP_BINARY, Frame
from websockets.http11 import Request
from websockets.server import ServerProtocol

Write = Callable[[bytes], None]


def binary(data: bytes) -> bytes:
    """A message of one frame, as it is on the wire."""
    return Frame(OP_BINARY, data).serialize(mask=False)


class RawServer:
    """`answer` gets each whole message of a client, and how to write to it. A block is its life.

    ``begun``, where it is given, is called with the first bytes of a message that is not whole yet.
    """

    def __init__(
        self,
        metadata: bytes,
        answer: Callable[[bytes, Write], None],
        begun: Callable[[Write], None] | None = None,
    ) -> None:
        self._metadata, self._answer, self._begun = metadata, answer, begun
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._server.getsockname()[1]}"
        self._clients: list[socket.socket] = []

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._clients.append(client)
                threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        protocol = ServerProtocol(max_size=None)
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                protocol.receive_data(data)
                events = protocol.events_received()
                for event in events:
                    if isinstance(event, Request):
                        protocol.send_response(protocol.accept(event))
                        protocol.send_binary(self._metadata)
                for out in protocol.data_to_send():
                    client.sendall(out)
                for event in events:
                    if isinstance(event, Frame) and event.opcode is OP_BINARY:
                        self._answer(bytes(event.data), client.sendall)
                if not events and self._begun is not None:
                    self._begun(client.sendall)

    def __enter__(self) -> RawServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
