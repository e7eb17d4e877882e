"""The client's end of GR00T's own server: ZeroMQ and msgpack, no pickle.

Source: Isaac-GR00T ``gr00t/policy/server_client.py`` and ``getting_started/policy.md``. A request
is ``{"endpoint", "data", "api_token"}``. An observation is ``{"video": {name: [B, T, H, W, 3]},
"state": {name: [B, T, D]}, "language": {name: [[text]]}}``; the table of
:mod:`vla_ros.policies.remote.names` says ``video.name`` and so on. The answer is ``[{group:
[B, T, D]}, info]``, whose groups are put side by side in the order of the server's config.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from vla_ros.policies.base import Unreachable
from vla_ros.policies.remote.codec import MAX_BYTES, Malformed, need, pack, unpack_groot
from vla_ros.policies.remote.link import TOKEN, ServerError, last_line


class GrootLink:
    """Connection to a GR00T server, used like a
    :class:`vla_ros.policies.remote.link.Connection`. One thread.

    ZeroMQ gives each request a number, which a server's answer has, too: no other one is taken. It
    does not report a lost server: it does not answer in time. ``metadata`` is the
    server's modality config. Each connection begins with the server's ``reset``.
    """

    def __init__(self, url: str) -> None:
        self._url, self._zmq = url, need("zmq")
        need("msgpack")
        self._context = self._zmq.Context.instance()
        self._socket: Any = None
        self.metadata: dict[Any, Any] = {}
        self.connections = 0

    @property
    def connected(self) -> bool:
        """True if it was connected when it was used last."""
        return self._socket is not None

    def connect(self, timeout_s: float) -> None:
        """Connect, unless it is connected."""
        if self._socket is not None:
            return
        until = time.monotonic() + timeout_s
        self._socket = self._context.socket(self._zmq.REQ)
        self._socket.setsockopt(self._zmq.LINGER, 0)
        self._socket.setsockopt(self._zmq.MAXMSGSIZE, MAX_BYTES)
        self._socket.setsockopt(self._zmq.RCVHWM, 4)  # no more of them are kept
        self._socket.setsockopt(self._zmq.REQ_CORRELATE, 1)  # only the answer with its number
        self._socket.connect(self._url)
        try:
            self._put("get_modality_config", None)
            found = self._get(until - time.monotonic())
            self.metadata = found if isinstance(found, dict) else {}
            self._refuse_history()
            self._put("reset", {"options": None})
            self._get(until - time.monotonic())
        except BaseException:
            self.close()
            raise
        self.connections += 1

    def send(self, message: Mapping[str, Any], timeout_s: float) -> None:
        """Send an observation."""
        self.connect(timeout_s)
        self._put("get_action", {"observation": _observation(message), "options": None})

    def receive(self, timeout_s: float) -> dict[Any, Any]:
        """The answer ``{"actions": float64 [T, D]}``. Malformed. ServerError: the server's
        refusal."""
        answer = self._get(timeout_s)
        groups = answer[0] if isinstance(answer, list) and answer else None
        if not isinstance(groups, dict):
            raise Malformed("an answer that is no pair of actions and info")
        order = self._modality("action", tuple(groups))
        try:
            rows = [np.asarray(groups[name], np.float64)[0] for name in order]
            return {"actions": np.concatenate(rows, axis=-1)}
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Malformed(f"actions of {sorted(map(str, groups))}: {error!r:.200}") from error

    def close(self) -> None:
        """Close the connection."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def _refuse_history(self) -> None:
        for modality in ("video", "state"):
            config = self.metadata.get(modality)
            moments = config.get("delta_indices") if isinstance(config, dict) else None
            if isinstance(moments, list) and len(moments) > 1:
                raise ServerError(f"it looks at {modality} of {len(moments)} moments: one is sent")

    def _modality(self, name: str, otherwise: tuple[Any, ...]) -> tuple[Any, ...]:
        config = self.metadata.get(name)
        keys = config.get("modality_keys") if isinstance(config, dict) else None
        return tuple(keys) if isinstance(keys, list) and keys else otherwise

    def _put(self, endpoint: str, data: Any) -> None:
        request = {"endpoint": endpoint}
        if data is not None:
            request["data"] = data
        if token := os.environ.get(TOKEN):
            request["api_token"] = token
        try:
            self._socket.send(pack(request, as_npy=True))
        except self._zmq.ZMQError as error:
            self.close()
            raise Unreachable(f"{self._url}: {error}") from error

    def _get(self, timeout_s: float) -> Any:
        try:
            answer = unpack_groot(self._received(time.monotonic() + timeout_s))
        except Malformed:
            self.close()
            raise
        if isinstance(answer, dict) and "error" in answer:
            raise ServerError(last_line(str(answer["error"])))
        return answer

    def _received(self, until: float) -> bytes:
        """The next message. What is there may be another one's, and then there is none yet."""
        while True:
            if not self._socket.poll(max(until - time.monotonic(), 0.001) * 1000):
                raise Unreachable(f"{self._url} does not answer: does a GR00T server run there?")
            try:
                message: bytes = self._socket.recv(self._zmq.NOBLOCK)
                return message
            except self._zmq.Again:
                if time.monotonic() >= until:
                    raise Unreachable(f"{self._url} answers what was not asked") from None


def _observation(message: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Observation of one robot and moment: arrays [1, 1, ...], an instruction [[instruction]]."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in message.items():
        modality, _, name = key.partition(".")
        batched = [[value]] if isinstance(value, str) else np.asarray(value)[None, None]
        found.setdefault(modality, {})[name] = batched
    return found
