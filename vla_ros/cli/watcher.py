"""A node that follows one episode from outside and measures it, for `vla-ros demo`.

Its figures are those of the episode alone: they begin with the first action that is
published while the episode runs and end with its end. Callbacks run in a thread of their
own; everything they share with the caller is under one lock.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType

from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from rclpy.subscription import MessageInfo
from sensor_msgs.msg import Image

from vla_ros.cli.recorder import Recorder
from vla_ros.core import CommandKind
from vla_ros.monitoring import Arrival, CommandSeen, Monitor, MonitorConfig, Report, StatusSeen
from vla_ros.msg import ActionCommand, EpisodeStatus, PolicyStatus
from vla_ros.nodes import monitor_convert as convert
from vla_ros.nodes import qos
from vla_ros.nodes.arrivals import ArrivalClock
from vla_ros.nodes.convert import image_of
from vla_ros.timing import MS, SECOND

MAX_PIXELS = 1920 * 1200
_LONGEST_EPISODE_S = 3600.0
_ENDS = {EpisodeStatus.STATE_SUCCESS: "success", EpisodeStatus.STATE_FAILURE: "failure"}


@dataclass(frozen=True, slots=True)
class Episode:
    """The part of EpisodeStatus that the demo shows."""

    number: int
    state: int
    reason: str
    task: str
    instruction: str
    initial_state: int
    step: int
    max_steps: int

    @property
    def ended(self) -> str:
        """ "success", "failure", or empty while it goes on."""
        return _ENDS.get(self.state, "")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand. ``report`` and ``wall_s`` cover the measured part of the episode."""

    episode: Episode | None
    status: StatusSeen | None
    last: CommandSeen | None
    report: Report
    wall_s: float
    worker_restarts: int

    @property
    def age_ms(self) -> float:
        """Observation age of the newest command when it was published."""
        if self.last is None or not self.last.observed_ns:
            return 0.0
        return (self.last.published_ns - self.last.observed_ns) / MS


class Watcher:
    """Joins the graph of ``domain``; use it with `with`."""

    def __init__(self, domain: int, lockstep: bool, recorder: Recorder | None = None) -> None:
        self._lock = threading.Lock()
        self._context = Context()
        self._context.init(args=[], domain_id=domain)
        self._node = Node("demo", context=self._context, start_parameter_services=False)
        self._clock = ArrivalClock(self._node, simulated=lockstep)
        self._config = MonitorConfig(window_s=_LONGEST_EPISODE_S, sim_time=lockstep)
        self._recorder = recorder
        self._episode: Episode | None = None
        self._status: StatusSeen | None = None
        self._last: CommandSeen | None = None
        self._monitor: Monitor | None = None  # while an episode is measured
        self._begin_ns = 0
        self._restarts_before = 0
        self._final: Snapshot | None = None
        self._subscribe()
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._spin, name="watcher", daemon=True)
        self._thread.start()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(timeout=2.0)
        self._executor.shutdown(timeout_sec=0.5)
        self._node.destroy_node()
        self._context.try_shutdown()

    def snapshot(self) -> Snapshot:
        """Of this instant; after the end of the episode, that of its end."""
        with self._lock:
            return self._final or self._now()

    @property
    def ended(self) -> bool:
        """The measured episode has come to its end."""
        with self._lock:
            return self._final is not None

    def _subscribe(self) -> None:
        node = self._node
        node.create_subscription(Image, "image", self._on_image, qos.IMAGE_SUB, raw=True)
        node.create_subscription(ActionCommand, "policy/action", self._on_command, qos.ACTION)
        node.create_subscription(PolicyStatus, "policy/status", self._on_status, qos.LATCHED)
        node.create_subscription(EpisodeStatus, "bridge/episode", self._on_episode, qos.LATCHED)

    def _spin(self) -> None:
        while not self._over.is_set():
            try:
                self._executor.spin_once(timeout_sec=0.1)
            except ExternalShutdownException:
                return
            except ValueError as error:  # a malformed message says nothing about the episode
                self._node.get_logger().warning(str(error), throttle_duration_sec=1.0)

    def _on_episode(self, message: EpisodeStatus) -> None:
        with self._lock:
            before, self._episode = self._episode, _episode(message)
            if before is not None and before.number != self._episode.number:
                self._monitor = None  # another episode: measure that one
            # An episode that ended before a policy acted (the bridge waits for nobody) is not ours.
            if self._episode.ended and self._monitor is not None and self._final is None:
                self._final = self._now()

    def _on_status(self, message: PolicyStatus) -> None:
        with self._lock:
            self._status = convert.status_seen(message)
            if self._monitor is not None:
                self._monitor.status(self._status, Arrival.now(self._clock))

    def _on_command(self, message: ActionCommand, info: MessageInfo) -> None:
        gid = info.get("publisher_gid")
        seen = convert.command_seen(message, convert.gid_of(gid["data"]) if gid else b"")
        arrival = self._clock.arrival(info)
        with self._lock:
            self._last = seen
            if self._monitor is None and seen.kind is CommandKind.POLICY and self._running():
                self._begin(arrival)
            if self._monitor is not None and self._final is None:
                self._monitor.command(seen, arrival)

    def _on_image(self, raw: bytes, info: MessageInfo) -> None:
        arrival = self._clock.arrival(info)
        stamp = convert.header_stamp(raw)
        with self._lock:
            if self._monitor is None or self._final is not None:
                return
            self._monitor.camera(stamp, arrival)
        if self._recorder is not None and self._recorder.wants():
            self._recorder.add(stamp, image_of(deserialize_message(raw, Image), MAX_PIXELS))

    def _running(self) -> bool:
        return self._episode is not None and self._episode.state == EpisodeStatus.STATE_RUNNING

    def _begin(self, arrival: Arrival) -> None:
        self._monitor = Monitor(self._config, self._clock)
        self._begin_ns = arrival.steady_ns
        if self._recorder is not None:
            self._recorder.clear()
        if self._status is not None:
            self._restarts_before = self._status.worker_restarts
            self._monitor.status(self._status, arrival)

    def _now(self) -> Snapshot:
        report, wall_s, restarts = Report(), 0.0, 0
        if self._monitor is not None:
            topic = self._node.resolve_topic_name("policy/action")
            listed = self._node.get_publishers_info_by_topic(topic)
            self._monitor.publishers(tuple(convert.publisher_seen(info) for info in listed))
            report = self._monitor.judge().report
            wall_s = (self._clock.steady_ns() - self._begin_ns) / SECOND
        if self._status is not None:
            restarts = self._status.worker_restarts - self._restarts_before
        return Snapshot(self._episode, self._status, self._last, report, wall_s, restarts)


def _episode(message: EpisodeStatus) -> Episode:
    return Episode(
        number=message.episode,
        state=message.state,
        reason=message.reason,
        task=message.task,
        instruction=message.instruction,
        initial_state=message.initial_state,
        step=message.step,
        max_steps=message.max_steps,
    )
