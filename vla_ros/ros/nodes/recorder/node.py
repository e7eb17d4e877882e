"""The recorder node: a policy's inputs, commands and reports into a bag; and a flight recorder.

Subscribes everything, publishes only /diagnostics, and is a process of its own: a full disk, a
slow one or the end of this process never reaches the control tick. Messages are not decoded; they
go to the disk as they came.

Threads: all callbacks run in the node's executor and only queue; see
:mod:`vla_ros.data.bag_writer` and :mod:`vla_ros.data.flight_recorder` for those that write.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcl_interfaces.srv import GetParameters, ListParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import parameter_value_to_python
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from std_srvs.srv import Trigger

from vla_ros.core.clock import SECOND, SystemClock
from vla_ros.core.pixels import BadMessage
from vla_ros.core.resources import version
from vla_ros.core.types import PolicyState
from vla_ros.data.bag_writer import MB, BagSink, Record, SinkLimits, Topic, typestore
from vla_ros.data.flight_recorder import FlightLimits, FlightRecorder
from vla_ros.data.run_info import STATUS, TOPICS, VIDEO_TOPICS, RunInfo
from vla_ros.msg import PolicyStatus
from vla_ros.ros.common.compat import SubscriptionEventCallbacks, listener
from vla_ros.ros.common.convert import Diagnostics, status
from vla_ros.ros.common.listening import message_of
from vla_ros.ros.common.parameters import Parameter as P
from vla_ros.ros.common.parameters import declare
from vla_ros.ros.common.peer import class_of
from vla_ros.ros.common.qos_overrides import QosOverrides, warn_of_unused
from vla_ros.ros.common.spin import every, run

if TYPE_CHECKING:
    from rclpy.subscription import MessageInfo  # Jazzy and Humble lack it

# What is recorded: topics, their types, and the QoS to get every message with.


def profile_of(latched: bool, reliability: ReliabilityPolicy) -> QoSProfile:
    """Profile deep enough for a burst; of latched topics with the message before."""
    durability = DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=100, reliability=reliability, durability=durability
    )


def parse_topics(text: str) -> list[tuple[str, str]]:
    """Pairs (name, type) of 'NAME TYPE, NAME TYPE'; ValueError for anything else."""
    found = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        words = item.split()
        if len(words) != 2:
            raise ValueError(f"extra_topics: '{item}' is not 'NAME TYPE'")
        name, kind = words
        if kind not in typestore().fielddefs:
            raise ValueError(f"extra_topics: the type '{kind}' cannot be written into a bag")
        found.append((name, kind))
    return found


Known = Callable[[str, dict[str, Any]], None]


class ParameterCollector:
    """Collector of other nodes' parameters, which waits for none of them. Call :meth:`ask` now and
    then; ``known(node, parameters)`` is called once a node. Runs in the node's executor."""

    def __init__(self, node: Node, names: Iterable[str], known: Known) -> None:
        self._known = known
        self._open = {name: _Clients(node, name) for name in names}

    def ask(self) -> None:
        """Ask every node that is there and has not answered yet."""
        for name, clients in list(self._open.items()):
            if clients.ready and not clients.requested:
                clients.requested = True
                future = clients.list.call_async(ListParameters.Request())
                future.add_done_callback(lambda done, name=name: self._on_names(name, done))

    def node_is_up(self, name: str) -> None:
        """Do not wait for the next :meth:`ask`."""
        if name in self._open:
            self.ask()

    def _on_names(self, node: str, future: Any) -> None:
        answer = future.result()
        if answer is None:
            self._open[node].requested = False
            return
        names = list(answer.result.names)
        request = GetParameters.Request(names=names)
        values = self._open[node].get.call_async(request)
        values.add_done_callback(lambda done: self._on_values(node, names, done))

    def _on_values(self, node: str, names: list[str], future: Any) -> None:
        answer = future.result()
        clients = self._open.get(node)
        if answer is None or clients is None:
            return
        found = {
            name: _plain(parameter_value_to_python(value))
            for name, value in zip(names, answer.values, strict=False)
        }
        del self._open[node]
        self._known(node, {name: value for name, value in found.items() if value is not None})


class _Clients:
    def __init__(self, node: Node, name: str) -> None:
        self.list = node.create_client(ListParameters, f"{name}/list_parameters")
        self.get = node.create_client(GetParameters, f"{name}/get_parameters")
        self.requested = False

    @property
    def ready(self) -> bool:
        return bool(self.list.service_is_ready() and self.get.service_is_ready())


def _plain(value: Any) -> Any:
    """Value that JSON can hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [item if isinstance(item, bool | int | float | str) else str(item) for item in value]


CLOSE_S = 12.0  # to write what is held, and the index; the graph's end gives the process 16 s
STOP_S = 5.0  # to do that for a bag that ends while the node goes on
NODES = ("policy", "bridge", "monitor")  # nodes whose parameters are kept
_BAD = {PolicyState.HOLD: "hold", PolicyState.FAULT: "fault"}

TABLE = (
    P("output", "", "Folder of the bag; empty: vla_ros_<time> in the working folder", fixed=True),
    P("record", True, "Write everything into the bag", fixed=True),
    P("flight", True, "Write the last seconds at every entry into HOLD or FAULT", fixed=True),
    P(
        "flight_folder",
        "",
        "Where flight records go; empty: flight_records beside the bag, or in ROS's log folder",
        fixed=True,
    ),
    P("flight_seconds", 10.0, "Seconds before the event", 0.1, 600.0, fixed=True),
    P("flight_after_s", 1.0, "Seconds after the event", 0.0, 60.0, fixed=True),
    P("flight_mb", 512, "Most memory for the last seconds", 1, 65_536, fixed=True),
    P("flight_bags", 100, "Most flight records there; the oldest go", 1, 100_000, fixed=True),
    P("flight_disk_mb", 2048, "Most they take together; the oldest go", 1, 1_000_000, fixed=True),
    P("queue_mb", 256, "Messages waiting for the disk; more are left out", 1, 65_536, fixed=True),
    P("min_free_mb", 500, "The bag is closed before the disk has less", 0, 1_000_000, fixed=True),
    P("flush_s", 1.0, "A kill loses at most this much", 0.05, 60.0, fixed=True),
    P("extra_topics", "", "More topics, as 'NAME TYPE, NAME TYPE, ...'", fixed=True),
)


def log_folder() -> Path:
    """Folder of ROS's logs, which users look through and clear."""
    home = os.environ.get("ROS_HOME") or "~/.ros"
    return Path(os.environ.get("ROS_LOG_DIR") or f"{home}/log").expanduser()


class RecorderNode(QosOverrides, Node):
    """The node that feeds the bag and the flight recorder. ValueError: a bad parameter, or a folder
    that cannot be used.

    ``say`` gets one line for each bag that begins or ends, also from the threads that write; None:
    they are lines of its log.
    """

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        super().__init__("recorder")
        self._say = say or self.get_logger().info
        values = declare(self, TABLE)
        clock = SystemClock()
        self._created = datetime.now(timezone.utc)
        self._run = RunInfo(version=version(), created=self._created.isoformat(timespec="seconds"))
        self._latched: dict[str, Record] = {}  # the newest of each: the next bag begins with them
        self._values, self._time, self._first = values, clock, True
        self._sink = self._open_sink(self._created) if values["record"] else None
        self._flight = self._open_flight(values, clock) if values["flight"] else None
        if self._sink is None and self._flight is None:
            raise ValueError("record and flight are both false: nothing to do")
        self._state: int | None = None
        self._collector = ParameterCollector(self, NODES, self._parameters_known)
        video = [one for one in VIDEO_TOPICS if class_of(one[1]) is not None]
        topics = [*TOPICS, *video, *parse_topics(values["extra_topics"])]
        for name, kind in topics:
            self._listen(name, kind)
        self.create_service(Trigger, "~/record", self._on_record)
        self.create_service(Trigger, "~/stop", self._on_stop)
        every(self, 0.1, self._poll)
        every(self, 1.0, self._collector.ask)
        self._diagnostics = Diagnostics(self)
        every(self, 1.0, self._diagnose)
        self._begun_ns = clock.steady_ns()
        warn_of_unused(self)
        only = "" if self._sink is not None else "flight records only, into "
        self._say(f"recording: {only}{self._where()}")

    # Bags

    def _bag_path(self, begun: datetime) -> Path:
        """Folder of the next bag: ``output`` itself for the first, beside it for the others."""
        output = self._values["output"]
        if output and self._first:
            return Path(output).absolute()
        return Path(f"{output or 'vla_ros'}_{begun:%Y%m%d_%H%M%S}").absolute()

    def _open_sink(self, begun: datetime) -> BagSink:
        values = self._values
        limits = SinkLimits(values["queue_mb"] * MB, values["min_free_mb"] * MB, values["flush_s"])
        try:
            sink = BagSink(self._bag_path(begun), self._run, limits, self._time, self._warn)
        except OSError as error:
            raise ValueError(f"output: {error}") from None
        self._first = False
        return sink

    def _on_record(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Begin a bag, with the newest messages of latched topics in it."""
        if self._sink is not None and not self._sink.ended:
            response.message = f"it records already, into {self._where()}"
            return response
        if self._sink is not None:
            self._end_bag()
        begun = datetime.now(timezone.utc)
        self._run = replace(self._run, created=begun.isoformat(timespec="seconds"))
        try:
            self._sink = self._open_sink(begun)
        except ValueError as error:
            response.message = str(error)
            return response
        for record in self._latched.values():
            self._sink.put(record)
        self._begun_ns = self._time.steady_ns()
        response.success, response.message = True, self._where()
        self._say(f"recording: {self._where()}")
        return response

    def _on_stop(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """Close the bag; flight records go on."""
        if self._sink is None:
            response.message = "nothing is recorded"
            return response
        response.message = self._end_bag()
        response.success = True
        return response

    def _end_bag(self, timeout_s: float = STOP_S) -> str:
        """Close the bag; returns the line that sums it up."""
        seconds, sink = self.seconds, self._sink
        assert sink is not None
        if not sink.close(timeout_s):
            self._warn("the disk did not take the rest in time: the bag has no index")
        line = f"{self.summary} in {seconds:.0f} s: {self._where()}"
        self._sink = None
        self._say(line)
        return line

    def _open_flight(self, values: dict[str, Any], clock: SystemClock) -> FlightRecorder:
        limits = FlightLimits(
            values["flight_seconds"],
            values["flight_after_s"],
            values["flight_mb"] * MB,
            values["flight_bags"],
            values["flight_disk_mb"] * MB,
        )
        beside = Path(values["output"]).absolute().parent if values["output"] else log_folder()
        folder = Path(values["flight_folder"] or beside / "flight_records").absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"flight_folder: {error}") from None
        return FlightRecorder(folder, limits, clock, self._say)

    def _where(self) -> str:
        if self._sink is not None:
            return str(self._sink.path)
        return str(self._flight.folder) if self._flight is not None else ""

    @property
    def summary(self) -> str:
        """Counts of messages and bytes that were written so far."""
        parts = []
        if self._sink is not None:
            parts = [f"{self._sink.written} messages", f"{self._sink.bytes / MB:.1f} MB"]
            parts += [f"{self._sink.dropped} not recorded"] if self._sink.dropped else []
        if self._flight is not None and (self._flight.bags or self._sink is None):
            more = (
                f" of {self._flight.bags + again} events"
                if (again := self._flight.repeated)
                else ""
            )
            parts.append(f"{self._flight.bags} flight records{more}")
        return ", ".join(parts)

    @property
    def seconds(self) -> float:
        """Duration of the recording, s."""
        return (self._time.steady_ns() - self._begun_ns) / SECOND

    def _warn(self, text: str) -> None:
        self.get_logger().warning(text)

    # Subscriptions

    def _listen(self, name: str, kind: str) -> None:
        """Subscribe reliably, to lose nothing; best effort where a writer offers no more."""
        topic = Topic(self.resolve_topic_name(name), kind.rstrip("*"), kind.endswith("*"))
        message_type = class_of(topic.kind)
        if message_type is None:
            raise ValueError(f"no message type {topic.kind} is installed")
        is_status = name == STATUS

        def on_message(data: bytes, info: MessageInfo) -> None:
            received = int(info["received_timestamp"] or 0) or self._time.now_ns()
            record = Record(topic, received, data)
            if topic.latched:
                self._latched[topic.name] = record
            if self._sink is not None:
                self._sink.put(record)
            if self._flight is not None:
                self._flight.add(record)
            if is_status:
                self._on_status(data)

        callback = listener(on_message)
        reliable = profile_of(topic.latched, ReliabilityPolicy.RELIABLE)
        events = SubscriptionEventCallbacks(incompatible_qos=lambda _: again())
        subscription: Any = None
        replaced = False

        def again() -> None:
            """Subscribe best effort: the writer offers no more."""
            nonlocal replaced
            if not replaced:
                replaced = True
                modest = profile_of(False, ReliabilityPolicy.BEST_EFFORT)
                self.create_subscription(message_type, topic.name, callback, modest, raw=True)
                self.destroy_subscription(subscription)

        subscription = self.create_subscription(
            message_type, topic.name, callback, reliable, raw=True, event_callbacks=events
        )

    def _on_status(self, data: bytes) -> None:
        try:
            status = message_of(data, PolicyStatus)
        except BadMessage as error:  # malformed: the bytes are kept, the state is unknown
            self._warn(f"a status cannot be read: {error}")
            return
        self._collector.node_is_up("policy")
        if status.state != PolicyState.UNCONFIGURED:  # it names the policy that is loaded
            self._set_run(self._with_policy(status))
        before, self._state = self._state, status.state
        bad = _BAD.get(status.state)  # another version may know other states
        if bad and before != status.state and self._flight is not None:
            self._flight.trigger(bad, replace(self._run, reason=f"{bad}: {status.reason}"))

    def _with_policy(self, status: PolicyStatus) -> RunInfo:
        return replace(
            self._run,
            policy=status.policy,
            decoding=status.decoding,
            checkpoint=status.checkpoint,
            checkpoint_sha256=status.checkpoint_sha256,
            device=status.device,
            dtype=status.dtype,
        )

    def _parameters_known(self, node: str, parameters: dict[str, Any]) -> None:
        self._set_run(replace(self._run, parameters={**self._run.parameters, node: parameters}))

    def _set_run(self, info: RunInfo) -> None:
        if info == self._run:
            return
        self._run = info
        if self._sink is not None:
            self._sink.set_run(info)

    def _poll(self) -> None:
        if self._flight is not None:
            self._flight.poll()

    def _diagnose(self) -> None:
        """Publish a status: a recording that ended is an error, one with losses a warning."""
        sink = self._sink
        level, message = 0, f"records: {self.summary}"
        if sink is not None and sink.ended:
            level, message = 2, f"recording ended: {sink.ended}"
        elif sink is not None and sink.dropped:
            level, message = 1, f"the disk is too slow: {self.summary}"
        self._diagnostics.publish(status(level, "bag", message, [("path", self._where())]))

    def close(self) -> None:
        """Write everything that is still held, and close the bags, within CLOSE_S."""
        until = self._time.steady_ns() + round(CLOSE_S * SECOND)
        if self._flight is not None and not self._flight.finish(CLOSE_S / 2):
            self._warn("the disk did not take a flight record in time: it has no index")
        if self._sink is None:
            self._say(f"{self.summary}: {self._where()}")
            return
        self._end_bag((until - self._time.steady_ns()) / SECOND)


def main(
    args: Sequence[str] | None = None,
    make: Callable[[], RecorderNode] = RecorderNode,
    before_end: Callable[[RecorderNode], None] = RecorderNode.close,
) -> int:
    """Record until SIGINT or SIGTERM, then 0; 2 for a bad parameter."""
    executor: Callable[[], SingleThreadedExecutor] = SingleThreadedExecutor
    return run(lambda _: make(), before_end, args, executor, end_s=CLOSE_S + 3.0)


if __name__ == "__main__":
    sys.exit(main())
