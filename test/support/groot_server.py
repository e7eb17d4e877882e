"""A server of GR00T's protocol that is none of ours: ZeroMQ, msgpack and NumPy alone.

Made from Isaac-GR00T's description (`getting_started/policy.md`): a policy that answers maps of
arrays [B, T, D], and what its `server_client.py` puts on the wire.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import zmq


def _to_map(value: Any) -> Any:
    stream = io.BytesIO()
    np.save(stream, value, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": stream.getvalue()}


def _from_map(value: dict[str, Any]) -> Any:
    if "__ndarray_class__" in value:
        return np.load(io.BytesIO(value["as_npy"]), allow_pickle=False)
    return value


def config(*keys: str, deltas: tuple[int, ...] = (0,)) -> dict[str, Any]:
    said = {"delta_indices": list(deltas), "modality_keys": list(keys)}
    return {"__ModalityConfig_class__": True, "as_json": said}


class GrootServer:
    """`act` answers an observation; `seen` are the requests. A block is its life."""

    def __init__(
        self, act: Callable[[Any], Any], modalities: dict[str, Any], port: int = 0, token: str = ""
    ) -> None:
        self.act, self.modalities, self.token = act, modalities, token
        self.seen: list[dict[str, Any]] = []
        self._socket = zmq.Context.instance().socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        where = f"tcp://127.0.0.1:{port}" if port else "tcp://127.0.0.1:*"
        self._socket.bind(where)
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def endpoints(self) -> list[str]:
        return [request["endpoint"] for request in self.seen]

    def _run(self) -> None:
        with contextlib.closing(self._socket):
            while not self._over.is_set():
                if self._socket.poll(20):
                    self._reply(msgpack.unpackb(self._socket.recv(), object_hook=_from_map))

    def _reply(self, request: dict[str, Any]) -> None:
        self.seen.append(request)
        if self.token and request.get("api_token") != self.token:
            answer: Any = {"error": "Unauthorized: Invalid API token"}
        elif request["endpoint"] == "get_modality_config":
            answer = self.modalities
        elif request["endpoint"] == "reset":
            answer = {}
        else:
            try:
                answer = [self.act(request["data"]["observation"]), {}]
            except Exception as error:
                answer = {"error": str(error)}
        self._socket.send(
            answer if isinstance(answer, bytes) else msgpack.packb(answer, default=_to_map)
        )

    def __enter__(self) -> GrootServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5.0)
