"""A graph's topics for Foxglove: its web socket protocol (https://docs.foxglove.dev/docs/sdk) by
foxglove-sdk. Messages go out in the bytes in which they came (CDR), each with the definition of its
type, so the app needs no ROS either.

The SDK's threads only put wishes into a queue and ring; whoever owns the server takes them out.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vla_ros.errors import UserError
from vla_ros.recording.typestore import typestore

BACKLOG = 64  # messages that wait for a slow client; of more the oldest is left out
SAID_KIND = "std_msgs/msg/String"


def sdk() -> Any:
    """The module `foxglove`. UserError where foxglove-sdk is missing."""
    try:
        import foxglove
        import foxglove.websocket
    except ImportError as error:
        raise UserError(
            f"foxglove-sdk is missing ({error}): pip install '.[foxglove]' in the checkout (54 MB)"
        ) from None
    return foxglove


def definition(kind: str) -> str | None:
    """A type and all it is made of, as ros2msg; None for one that nobody here knows."""
    store = typestore()
    if kind not in store.fielddefs:
        return None
    return str(store.generate_msgdef(kind, ros_version=2)[0])


@dataclass(frozen=True, slots=True)
class Wish:
    """What clients asked for: to get a topic, to get it no longer, or to say a text on one."""

    topic: str
    wanted: bool = True
    text: str | None = None


class FoxgloveServer:
    """``ring`` is called from the SDK's threads whenever there is a wish to take. ``say``: the
    topic on which clients may publish text; "": on none. OSError, RuntimeError: no such address.
    """

    def __init__(self, host: str, port: int, ring: Callable[[], None], say: str = "") -> None:
        self._sdk = sdk()
        self._context = self._sdk.Context()
        self._channels: dict[str, Any] = {}
        self._wishes: deque[Wish] = deque(maxlen=1000)
        publish = [self._sdk.websocket.Capability.ClientPublish] if say else []
        self._server = self._sdk.start_server(
            name="vla_ros",
            host=host,
            port=port,
            capabilities=publish,
            supported_encodings=["json", "cdr"] if say else [],
            server_listener=_Listener(self._wishes, ring, say),
            context=self._context,
            message_backlog_size=BACKLOG,
        )

    @property
    def port(self) -> int:
        return int(self._server.port)

    @property
    def topics(self) -> Sequence[str]:
        """Those that are offered."""
        return tuple(self._channels)

    def offer(self, topic: str, kind: str) -> bool:
        """Let clients see a topic; False: nobody here knows its type."""
        text = definition(kind)
        if text is None:
            return False
        schema = self._sdk.Schema(name=kind, encoding="ros2msg", data=text.encode())
        self._channels[topic] = self._sdk.Channel(
            topic, schema=schema, message_encoding="cdr", context=self._context
        )
        return True

    def withdraw(self, topic: str) -> None:
        """It is gone."""
        self._channels.pop(topic).close()

    def send(self, topic: str, data: bytes) -> None:
        """A serialised message, to those who subscribed. Never waits."""
        channel = self._channels.get(topic)
        if channel is not None:
            channel.log(data)

    def take(self) -> Wish | None:
        """The next wish."""
        return self._wishes.popleft() if self._wishes else None

    def close(self) -> None:
        """Let the clients go."""
        self._server.stop()


class _Listener:
    """Called from the SDK's threads."""

    def __init__(self, wishes: deque[Wish], ring: Callable[[], None], say: str) -> None:
        self._wishes, self._ring, self._say = wishes, ring, say
        self._asked: dict[str, set[int]] = {}  # topic → clients
        self._theirs: dict[tuple[int, int], Any] = {}  # channels that clients publish on

    def on_subscribe(self, client: Any, channel: Any) -> None:
        self._asked.setdefault(channel.topic, set()).add(client.id)
        self._put(Wish(channel.topic))

    def on_unsubscribe(self, client: Any, channel: Any) -> None:
        left = self._asked.get(channel.topic, set())
        left.discard(client.id)
        if not left:
            self._put(Wish(channel.topic, wanted=False))

    def on_client_advertise(self, client: Any, channel: Any) -> None:
        self._theirs[client.id, channel.id] = channel

    def on_client_unadvertise(self, client: Any, client_channel_id: int) -> None:
        self._theirs.pop((client.id, client_channel_id), None)

    def on_message_data(self, client: Any, client_channel_id: int, data: bytes) -> None:
        channel = self._theirs.get((client.id, client_channel_id))
        if channel is None or not self._say or channel.topic.strip("/") != self._say.strip("/"):
            return
        text = _text_of(channel.encoding, data)
        if text is not None:
            self._put(Wish(channel.topic, text=text))

    def _put(self, wish: Wish) -> None:
        self._wishes.append(wish)
        self._ring()


def _text_of(encoding: str, data: bytes) -> str | None:
    """Of a std_msgs/String as JSON or CDR; None: it is none."""
    try:
        if encoding == "json":
            text = json.loads(data)["data"]
        else:
            read: Any = typestore().deserialize_cdr(data, SAID_KIND)
            text = read.data
    except Exception:  # a client's bytes may be anything, and rosbags raises whatever they cause
        return None
    return text if isinstance(text, str) else None
