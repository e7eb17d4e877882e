"""A plain client of Foxglove's web socket protocol, version 1: what the app says and hears.

https://github.com/foxglove/ws-protocol/blob/main/docs/spec.md
"""

from __future__ import annotations

import contextlib
import json
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

PROTOCOLS = ("foxglove.sdk.v1", "foxglove.websocket.v1")
WAIT_S = 30.0


class App:
    """Remembers the channels that are offered; messages come out of :meth:`message`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.info: dict[str, Any] = {}
        self.channels: dict[str, dict[str, Any]] = {}  # by topic
        self._said = 0
        self._messages: list[tuple[int, bytes]] = []

    def _hear(self, until: float) -> None:
        said = self._connection.recv(timeout=max(0.01, until - time.monotonic()))
        if isinstance(said, bytes):
            if said[0] == 1:  # message data: subscription, time, bytes
                number, _ = struct.unpack_from("<IQ", said, 1)
                self._messages.append((number, said[13:]))
            return
        told = json.loads(said)
        if told["op"] == "serverInfo":
            self.info = told
        elif told["op"] == "advertise":
            self.channels |= {one["topic"]: one for one in told["channels"]}
        elif told["op"] == "unadvertise":
            gone = set(told["channelIds"])
            self.channels = {t: c for t, c in self.channels.items() if c["id"] not in gone}

    def until(self, true: Callable[[], bool], seconds: float = WAIT_S) -> None:
        """Listen until it is so; TimeoutError."""
        until = time.monotonic() + seconds
        while not true():
            self._hear(until)

    def subscribe(self, topic: str) -> int:
        """By the number of its channel, which its messages come with."""
        number = int(self.channels[topic]["id"])
        self._send(op="subscribe", subscriptions=[{"id": number, "channelId": number}])
        return number

    def unsubscribe(self, topic: str) -> None:
        self._send(op="unsubscribe", subscriptionIds=[int(self.channels[topic]["id"])])

    def message(self, number: int, seconds: float = WAIT_S) -> bytes:
        """The next one of a subscription."""
        self.until(lambda: any(n == number for n, _ in self._messages), seconds)
        found = next(i for i, (n, _) in enumerate(self._messages) if n == number)
        return self._messages.pop(found)[1]

    def say(self, topic: str, text: str) -> None:
        """A std_msgs/String as JSON, as the app's Publish panel does."""
        self._said += 1
        number = self._said
        channel = {
            "id": number,
            "topic": topic,
            "encoding": "json",
            "schemaName": "std_msgs/msg/String",
        }
        self._send(op="advertise", channels=[channel])
        data = json.dumps({"data": text}).encode()
        self._connection.send(struct.pack("<BI", 1, number) + data)

    def _send(self, **what: Any) -> None:
        self._connection.send(json.dumps(what))


@contextlib.contextmanager
def connected(port: int) -> Iterator[App]:
    """A client of the server at this port of this machine."""
    from websockets.sync.client import connect

    address = f"ws://127.0.0.1:{port}"
    with connect(address, subprotocols=list(PROTOCOLS), max_size=None) as connection:
        yield App(connection)
