"""Browsers that look at the view's page, as far as its server can tell: they speak viser's protocol
and draw nothing. What they get is read, or left to pile up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_CAMERA = {
    "type": "ViewerCameraMessage",
    "wxyz": (1.0, 0.0, 0.0, 0.0),
    "position": (1.0, 0.0, 1.0),
    "fov": 1.0,
    "near": 0.01,
    "far": 100.0,
    "image_height": 600,
    "image_width": 800,
    "look_at": (0.0, 0.0, 0.0),
    "up_direction": (0.0, 0.0, 1.0),
}


@contextlib.contextmanager
def watchers(address: str, count: int, slow: int = 0) -> Iterator[list[int]]:
    """``count`` of them, of which the last ``slow`` never read; yields the bytes that each read."""
    import msgspec
    import viser
    from websockets.sync.client import ClientConnection, connect
    from websockets.typing import Subprotocol

    read = [0] * count

    def drain(index: int, connection: ClientConnection) -> None:
        with contextlib.suppress(Exception):  # it is closed at the end
            for message in connection:
                read[index] += len(message)

    with contextlib.ExitStack() as open_:
        readers = []
        for index in range(count):
            connection = open_.enter_context(
                connect(
                    address.replace("http", "ws", 1),
                    origin=address.rstrip("/"),  # type: ignore[arg-type]
                    subprotocols=[Subprotocol(f"viser-v{viser.__version__}")],
                    compression=None,
                    max_size=None,
                    close_timeout=0.1,
                )
            )
            connection.send(msgspec.msgpack.encode(_CAMERA))
            if index < count - slow:
                readers.append(threading.Thread(target=drain, args=(index, connection)))
                readers[-1].start()
        yield read
    for reader in readers:
        reader.join()
