"""viser's server with a guard in front of every request, web sockets included.

viser has neither a token nor a look at where a web socket's page came from. Its server is that of
the `websockets` package, which asks a function about every request: here it asks the guard first.
"""

from __future__ import annotations

import contextlib
import http
import io
import socket
import threading
from collections.abc import Iterator
from typing import Any

import viser
import websockets.asyncio.server
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from vla_ros.view.guard import Guard

_PORTS = 50  # tried after the one that was asked for
_ONE_AT_A_TIME = threading.Lock()


class GuardedServer(viser.ViserServer):
    """Raises OSError where no port is free, RuntimeError where viser cannot be guarded."""

    def __init__(self, host: str, port: int, guard: Guard) -> None:
        port = free_port(host, port)
        quiet = contextlib.redirect_stdout(io.StringIO())  # it prints a table of addresses
        with _guarded(guard) as asked, quiet:
            super().__init__(host=host, port=port, verbose=False)
        if not asked.is_set():
            self.stop()
            raise RuntimeError(
                f"viser {viser.__version__} serves in a way that cannot be guarded: use viser 1.1"
            )

    def request_share_url(self, verbose: bool = True) -> str | None:
        """Never: viser would open a tunnel for anybody on the internet, and any page may ask."""
        return None


def free_port(host: str, port: int) -> int:
    """The first free one from ``port`` on. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + _PORTS, 65_536)):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError as error:
                wrong = error
                continue
            return candidate
    raise OSError(f"no port to serve the view on, {port} and those after it: {wrong}")


@contextlib.contextmanager
def _guarded(guard: Guard) -> Iterator[threading.Event]:
    """While viser starts, `websockets` serves what passes the guard. The event says that it did."""
    serve = websockets.asyncio.server.serve
    asked = threading.Event()

    def guarded(*args: Any, process_request: Any = None, **options: Any) -> Any:
        def process(connection: Any, request: Request) -> Any:
            headers = {name.lower(): value for name, value in request.headers.raw_items()}
            answer = guard.judge(request.path, headers)
            if answer is not None:
                body = answer.body.encode()
                told = Headers({**answer.headers, "Content-Length": str(len(body))})
                status = http.HTTPStatus(answer.status)
                return Response(status.value, status.phrase, told, body)
            return process_request(connection, request)

        asked.set()
        return serve(*args, process_request=process, **options)

    with _ONE_AT_A_TIME:
        websockets.asyncio.server.serve = guarded  # type: ignore[assignment,misc]
        try:
            yield asked
        finally:
            websockets.asyncio.server.serve = serve  # type: ignore[misc]
