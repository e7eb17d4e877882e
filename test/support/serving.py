"""Our own server in this process, for a policy that replays a file."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.policies.base import PolicySpec
from vla_ros.serve.server import ServeOptions, Server


def rows_file(folder: Path, rows: Any) -> str:
    """For policy replay."""
    path = folder / "rows.npy"
    np.save(path, rows)
    return str(path)


@contextlib.contextmanager
def serving(spec: PolicySpec, make: Any = None, **options: Any) -> Iterator[Server]:
    """A server that is ready while the block runs. ``make``: of what answers."""
    server = Server(spec, ServeOptions(**{"port": 0, **options}), make)
    server.load()
    up = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.run(up.set)), daemon=True)
    thread.start()
    assert up.wait(30.0)
    try:
        yield server
    finally:
        server.stop()
        thread.join(30.0)
        assert not thread.is_alive()
