"""Camera subscriptions: as reliable as the driver offers, and always the newest image.

An image of 900 kB travels in fragments. A best-effort reader loses the image with any of them:
of a driver without this package's Fast DDS profile, 9 of 10. A reliable reader asks for them
again, but does not match a best-effort writer at all, so the offer decides.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage

from vla_ros.core.clock import SECOND, Clock, Moment, moment
from vla_ros.core.pixels import BadMessage
from vla_ros.core.video import VIDEOS, codec_of
from vla_ros.ros.common import qos
from vla_ros.ros.common.compat import (
    SubscriptionEventCallbacks,
    UnsupportedEventTypeError,
    listener,
)
from vla_ros.ros.common.images import takes_long
from vla_ros.ros.common.peer import image_topic
from vla_ros.ros.common.serialized import header_stamp, read_compressed, read_image
from vla_ros.ros.common.spin import every
from vla_ros.ros.common.writers import StreamWriters

RELIABILITIES = ("auto", "reliable", "best_effort")
CHECK_S = 0.5  # how often the writers' offer is checked
OVERLAP_S = 1.0  # two readers at a time, so that nothing is lost between them
_MOST_PACKETS = 30  # of video that wait to be decoded: a second
_HEAD = 64  # bytes that tell one image from the next: its stamp is among them

Take = Callable[[bytes, Moment], None]
Received = Callable[[int, Moment], None]


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera as it is configured: the topic without its transport, the transport, one of
    :data:`RELIABILITIES`, and the height and width that its images are brought to (0: as they
    come)."""

    topic: str
    transport: str
    reliability: str = "auto"
    resize: tuple[int, int] = (0, 0)


class CameraReader:
    """Reader of one camera, until :meth:`close`: calls ``take`` with each serialized image and the
    time of its receipt.

    Raw images in the node's executor; those to be decoded or converted, in a thread of
    its own, which leaves out those that came while it decoded another, so that no camera holds up a
    service; of video it decodes every packet. ``newest``: raw ones too are left out where a newer
    one has come. ``lossy`` is called once, with the reason, where far fewer images come than the
    camera sends; ``received`` with the stamp of every image, also of those left out; ``refuse``
    with the reason why images cannot be
    used while two nodes publish them; ``offered`` now and then with the number of publishers.
    """

    def __init__(
        self,
        node: Node,
        camera: Camera,
        clock: Clock,
        take: Take,
        lossy: Callable[[str], None],
        newest: bool,
        received: Received,
        refuse: Callable[[str], None],
        offered: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._node, self._camera, self._clock = node, camera, clock
        self._kind, self._topic = image_topic(node, camera.topic, camera.transport)
        self._newest, self._lossy = newest, lossy
        self._video = camera.transport in VIDEOS
        self._received, self._refuse, self._offered = received, refuse, offered
        self._take = take
        self._decoder: Decoder | None = None  # from the first image on that needs it
        self._loss = LossWatch()
        self.topic = node.resolve_topic_name(self._topic)
        self._writers = StreamWriters(node, self._topic)
        self.reliable = camera.reliability == "reliable" or self._all_offer_reliable()
        self._counts: list[Counter[bytes]] = []  # images that each open reader has got of late
        self._left: Subscription | None = None  # the reader before this one, for a moment
        self._left_ns = 0
        self._subscription = self._subscribe()
        self._timer = every(node, CHECK_S, self._check_offer)

    def close(self) -> None:
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._subscription)
        self._forget_left()
        if self._decoder is not None:
            self._decoder.close()

    def _subscribe(self) -> Subscription:
        best, reliable = (
            (qos.PACKET_SUB, qos.RELIABLE_PACKET_SUB)
            if self._video
            else (qos.IMAGE_SUB if self._newest else qos.PART_SUB, qos.RELIABLE_IMAGE_SUB)
        )
        profile: QoSProfile = reliable if self.reliable else best
        mine: Counter[bytes] = Counter()
        self._counts.append(mine)
        loss = self._loss
        lost = SubscriptionEventCallbacks(
            message_lost=lambda event: loss.lost(event.total_count_change)
        )

        def reader(events: SubscriptionEventCallbacks | None) -> Subscription:
            return self._node.create_subscription(
                self._kind,
                self._topic,
                listener(lambda raw, info: self._on_image(raw, info, mine)),
                profile,
                event_callbacks=events,
                raw=True,
            )

        try:
            return reader(lost)
        except UnsupportedEventTypeError:  # a middleware that does not count them
            return reader(None)

    def _all_offer_reliable(self) -> bool:
        """True where every writer offers reliable transport, and there is one."""
        if self._camera.reliability != "auto":
            return False
        found = self._node.get_publishers_info_by_topic(self.topic)
        offered = [one.qos_profile.reliability for one in found]
        return bool(offered) and all(one == ReliabilityPolicy.RELIABLE for one in offered)

    def _check_offer(self) -> None:
        """Follow what the writers offer by now; warn where images are lost."""
        writers = self._node.count_publishers(self.topic)
        self._offered(writers)
        if self._camera.reliability == "auto" and writers:
            reliable = self._all_offer_reliable()
            if reliable != self.reliable:
                self.reliable = reliable
                self._loss = LossWatch()
                self._subscribe_anew()
        if self._left is None:
            self._forget_counts()
        elif self._clock.steady_ns() - self._left_ns > OVERLAP_S * SECOND:
            self._forget_left()
        if warning := self._loss.warning(self._topic, self.reliable, self._clock.steady_ns()):
            self._lossy(warning)

    def _subscribe_anew(self) -> None:
        """Read by another profile; the reader before this one stays for a moment."""
        self._forget_left()
        self._forget_counts()
        self._left, self._left_ns = self._subscription, self._clock.steady_ns()
        self._subscription = self._subscribe()

    def _forget_left(self) -> None:
        """Close the reader before this one: writers have found this one by now. Its counts stay
        until the next check, since what it has got may still wait in this one."""
        if self._left is not None:
            self._node.destroy_subscription(self._left)
            self._left = None

    def _forget_counts(self) -> None:
        del self._counts[:-1]
        self._counts[0].clear()

    def _on_image(self, raw: bytes, info: Mapping[str, Any], mine: Counter[bytes]) -> None:
        if len(self._counts) > 1:
            key = raw[:_HEAD]
            mine[key] += 1
            if any(other[key] >= mine[key] for other in self._counts if other is not mine):
                return  # the other reader had it before
        received, why = self._note(raw, info)
        if not self._video and self._is_video(raw):
            self._video = True
            self._subscribe_anew()
        while self._newest and not self._video and (newer := self._waiting()) is not None:
            raw, info = newer
            received, why = self._note(raw, info)
        if why is not None:
            if why:
                self._refuse(why)
            return
        if self._decoder is None and (self._video or self._is_coded(raw)):
            self._decoder = Decoder(self._take, _MOST_PACKETS if self._video else 1)
        take = self._take if self._decoder is None else self._decoder.put
        take(raw, received)

    def _is_coded(self, raw: bytes) -> bool:
        try:
            return self._kind is CompressedImage or takes_long(read_image(raw).encoding)
        except BadMessage:
            return False  # reported where the image is read

    def _is_video(self, raw: bytes) -> bool:
        try:
            return self._kind is CompressedImage and bool(codec_of(read_compressed(raw).format))
        except BadMessage:
            return False  # as above

    def _waiting(self) -> tuple[bytes, Mapping[str, Any]] | None:
        """Image that came after the one in hand; a reliable reader keeps some."""
        if not self.reliable:
            return None
        with self._subscription.handle:
            found: Any = self._subscription.handle.take_message(self._kind, True)
        return None if found is None else (found[0], found[1])

    def _note(self, raw: bytes, info: Mapping[str, Any]) -> tuple[Moment, str | None]:
        """Receipt of an image that has come now, and the reason why it cannot be used, from
        :meth:`StreamWriters.contested`."""
        received = moment(self._clock)
        self._loss.came()
        why = self._writers.contested([""], info, received.steady_ns).get("")
        try:
            stamp_ns = header_stamp(raw)
        except BadMessage:
            return received, why  # reported where the image is read
        self._received(stamp_ns, received)
        return received, why


class Decoder:
    """Thread that decodes the newest ``most`` images; others that wait are left out."""

    def __init__(self, take: Take, most: int) -> None:
        self._take = take
        self._bell = threading.Condition()
        self._waiting: deque[tuple[bytes, Moment]] = deque(maxlen=most)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._thread.start()

    def put(self, raw: bytes, received: Moment) -> None:
        with self._bell:
            self._waiting.append((raw, received))
            self._bell.notify()

    def close(self) -> None:
        with self._bell:
            self._over = True
            self._bell.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._bell:
                self._bell.wait_for(lambda: self._over or bool(self._waiting))
                if self._over:
                    return
                raw, received = self._waiting.popleft()
            self._take(raw, received)


class LossWatch:
    """Counts of a camera's images that came, and of those that the middleware reports lost; warns
    once where most were lost in two windows in a row. Not thread-safe."""

    WINDOW_NS = 5 * SECOND
    LEAST = 4  # lost in a window
    FEW = 0.5  # share of those sent

    def __init__(self) -> None:
        self._came = self._lost = 0  # in this window
        self._since_ns: int | None = None
        self._few = False  # in the window before
        self._warned = False

    def came(self) -> None:
        self._came += 1

    def lost(self, count: int) -> None:
        self._lost += count

    def warning(self, topic: str, reliable: bool, steady_ns: int) -> str:
        """One line, once, where far fewer come than are sent; else "". Call it now and then."""
        if self._since_ns is None:
            self._since_ns = steady_ns
        if self._warned or steady_ns - self._since_ns < self.WINDOW_NS:
            return ""
        came, sent = self._came, self._came + self._lost
        few = self._lost >= self.LEAST and came < self.FEW * sent
        self._warned, self._few = few and self._few, few
        self._came, self._lost, self._since_ns = 0, 0, steady_ns
        if not self._warned:
            return ""
        line = f"{topic}: {came} of {sent} images came in the last seconds: "
        if reliable:
            return line + "this machine or the network does not keep up: smaller or fewer images"
        return (
            line + "with each lost fragment of one a best-effort reader loses it: let the driver"
            " publish reliably (cameras.*.reliability: auto follows), or start it with"
            " FASTDDS_DEFAULT_PROFILES_FILE naming vla_ros's config/fastdds_shm.xml"
        )
