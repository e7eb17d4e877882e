"""The monitor node: judges the policy from outside, by its topics alone.

Subscribes `policy/camera` (the stamps of the images that the policy gets: by whatever topic and
transport they come, and none of them travels twice), `policy/action` (in the shadow
`policy/shadow/action`), `policy/status` and `policy/latency`; publishes `/diagnostics` (once a
second and when a level changes) and `~/report` (once a second). It commands nothing and can be
stopped at any time.

Everything runs on one thread. Receipt is the moment at which the middleware had a message, not that
at which this process came to read it, wherever the middleware reports it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from diagnostic_msgs.msg import DiagnosticStatus
from rcl_interfaces.msg import SetParametersResult
from rclpy.exceptions import InvalidTopicNameException
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.validate_full_topic_name import validate_full_topic_name
from sensor_msgs.msg import TimeReference

from vla_ros.core.clock import SECOND, Distribution, Moment, moment
from vla_ros.core.pixels import BadMessage
from vla_ros.core.types import STAGES, CommandKind, PolicyState
from vla_ros.msg import ActionCommand, Latency, MonitorReport, PolicyStatus, Stages
from vla_ros.ros.common import qos, spin
from vla_ros.ros.common.compat import SubscriptionEventCallbacks, on_parameters
from vla_ros.ros.common.convert import Diagnostics, set_times, stamp_of, status
from vla_ros.ros.common.listening import ArrivalClock, listen
from vla_ros.ros.common.parameters import Parameter as P
from vla_ros.ros.common.parameters import declare
from vla_ros.ros.common.qos_overrides import QosOverrides, warn_of_unused
from vla_ros.ros.nodes.monitor.tracing import ActionTraces, otlp_exporter
from vla_ros.runtime.monitor.monitor import Judgement, Monitor
from vla_ros.runtime.monitor.seen import (
    CommandSeen,
    Diagnostic,
    GraphReport,
    LatencySeen,
    Level,
    MonitorConfig,
    PublisherSeen,
    StagesSeen,
    StatusSeen,
)

if TYPE_CHECKING:
    from rclpy.event_handler import QoSLivelinessChangedInfo  # Humble: rclpy.qos_event
    from rclpy.subscription import MessageInfo  # Jazzy and Humble lack it
    from rclpy.topic_endpoint_info import TopicEndpointInfo  # Lyrical: rclpy.endpoint_info


# Messages as the monitor's frozen types, and its judgement as messages.


_GID_BYTES = 16
_LARGEST = 1e9  # of a duration in s and of a rate in Hz
MAX_OUTPUTS = 32  # whose writers are queried: eight arms have as many


def gid_of(gid: Iterable[int]) -> bytes:
    """GID of a writer in the one form that the graph and message infos share."""
    return bytes(gid)[:_GID_BYTES]


def command_seen(message: ActionCommand, publisher: bytes = b"") -> CommandSeen:
    """Command of a message. Raises :class:`BadMessage` for a kind that does not exist."""
    try:
        kind = CommandKind(message.kind)
    except ValueError:
        raise BadMessage(f"command of unknown kind {message.kind}") from None
    return CommandSeen(
        sequence=message.sequence,
        kind=kind,
        published_ns=stamp_of(message.header.stamp),
        observed_ns=stamp_of(message.observation_stamp),
        chunk_index=message.chunk_index,
        stages=stages_seen(message.stages),
        staleness_ms=_finite(message.staleness_s) * 1e3,
        corrected_ns=stamp_of(message.correction_stamp),
        publisher=publisher,
    )


def stages_seen(message: Stages) -> StagesSeen:
    """Stages of a message, ms. Those that are no numbers count as 0, so that they cannot spoil a
    percentile."""
    durations = tuple(_finite(getattr(message, f"{stage}_s")) * 1e3 for stage in STAGES)
    return StagesSeen(durations, _finite(message.total_s) * 1e3)


def _finite(value: float) -> float:
    """The value; 0 for one that no clock or rate can have, or that would overflow as ns."""
    return value if math.isfinite(value) and abs(value) < _LARGEST else 0.0


def status_seen(message: PolicyStatus) -> StatusSeen:
    """Status of a message. Raises :class:`BadMessage` for a state that does not exist."""
    try:
        state = PolicyState(message.state)
    except ValueError:
        raise BadMessage(f"policy status with unknown state {message.state}") from None
    return StatusSeen(
        state=state,
        reason=message.reason,
        policy=message.policy,
        decoding=message.decoding,
        checkpoint=message.checkpoint,
        device=message.device,
        dtype=message.dtype,
        action_rate_hz=_finite(message.action_rate_hz),
        control_rate_hz=_finite(message.control_rate_hz),
        max_age_ms=_finite(message.max_age_s) * 1e3,
        pipeline_depth=message.pipeline_depth,
        worker_restarts=message.worker_restarts,
        frames_dropped=message.frames_dropped,
        last_drop=message.last_drop,
        acceptance=tuple(_finite(value) for value in message.acceptance),
        epoch=message.epoch,
        actions_clamped=message.actions_clamped,
        actions_blocked=message.actions_blocked,
        last_block=message.last_block,
        graphs_captured=message.graphs_captured,
        outputs=tuple(filter(_is_topic, message.outputs[:MAX_OUTPUTS])),
    )


def _is_topic(name: str) -> bool:
    try:
        return validate_full_topic_name(name)
    except InvalidTopicNameException:
        return False


def latency_seen(message: Latency) -> LatencySeen:
    return LatencySeen(_finite(message.tick_error_s.p99) * 1e3, _finite(message.total_s.p99) * 1e3)


def publisher_seen(endpoint: TopicEndpointInfo) -> PublisherSeen:
    """Writer of a graph query, by the full name of its node; discovery may not know it yet."""
    name = f"{endpoint.node_namespace.rstrip('/')}/{endpoint.node_name}"
    if endpoint.node_name.startswith("_NODE_NAME_UNKNOWN"):
        name = "a node whose name is not known yet"
    return PublisherSeen(name, gid_of(endpoint.endpoint_gid))


def report_message(report: GraphReport) -> MonitorReport:
    """Message of a report; the caller stamps it."""
    out = MonitorReport(clock_offset_s=report.clock_offset_ms / 1e3)
    for name in GraphReport.__slots__:
        if name == "clock_offset_ms":
            continue
        value = getattr(report, name)
        if isinstance(value, Distribution):
            set_times(out, name, value)
            continue
        if isinstance(value, tuple):
            value = list(value)
        setattr(out, name, int(value) if name == "level" else value)
    return out


def statuses(diagnostics: Iterable[Diagnostic]) -> list[DiagnosticStatus]:
    """Statuses for :class:`vla_ros.ros.common.convert.Diagnostics`."""
    return [status(d.level, d.name, d.message, d.values) for d in diagnostics]


REPORT_PERIOD_NS = SECOND
GOOD_AGAIN_NS = 3 * SECOND
COMMANDS_KEPT = 500  # a second of them, at the highest control rate

TABLE = (
    P("window_s", 10.0, "Length of the sliding window of all figures", 0.5, 600.0, fixed=True),
    P(
        "max_age_ms",
        0.0,
        "Actions on an older observation are errors; 0: the limit that the policy's status states",
        0.0,
        60_000.0,
    ),
    P("camera_timeout_s", 1.0, "No image, or none with a new stamp, for so long", 0.05, 60.0),
    P("command_timeout_s", 1.0, "RUNNING, but no command for so long", 0.05, 60.0),
    P("status_timeout_s", 3.0, "No status of the policy for so long", 1.5, 60.0),
    P("missed_fraction", 0.05, "Warn when more control periods lack an action", 0.0, 1.0),
    P("drift_ms_per_min", 1.0, "Warn when the camera's clock drifts faster", 0.01, 1000.0),
    P("hardware_id", "", "Of the robot, on /diagnostics; empty: the namespace", fixed=True),
    P(
        "tracing",
        False,
        "OpenTelemetry spans of the stages of actions, to where its OTEL_* variables say; needs"
        " vla_ros[tracing]",
        fixed=True,
    ),
    P("check_period_s", 0.2, "How often everything is judged", 0.05, 1.0, fixed=True),
)
LIMITS = tuple(row.name for row in TABLE if row.name in MonitorConfig.__slots__)


class MonitorNode(QosOverrides, Node):
    """The node around :class:`Monitor`: messages in, its judgement out."""

    def __init__(self) -> None:
        super().__init__("monitor")
        values = declare(self, TABLE)
        self._sim_time = bool(self.get_parameter("use_sim_time").value)
        self._time = ArrivalClock(self, self._sim_time)
        self._monitor = Monitor(self._config(values), self._time)
        on_parameters(self, self._may_set, self._set)
        self._traces: ActionTraces | None = None
        if values["tracing"]:
            self._traces = ActionTraces(otlp_exporter(), self.get_fully_qualified_name())
        self._subscribe()
        self._diagnostics = Diagnostics(self, values["hardware_id"])
        self._reports = self.create_publisher(MonitorReport, "~/report", qos.REPORT)
        self._outputs: tuple[str, ...] = ()  # of the policy
        self._shadow = 0  # 1: its commands move nothing, and have a topic of their own
        self._levels: tuple[Level, ...] = ()
        self._good_ns: dict[str, int] = {}  # subject -> since when its trouble is over
        self._logged: dict[str, Level] = {}  # subject -> the trouble that the log tells of
        self._published_ns = 0
        spin.every(self, values["check_period_s"], self._check)
        warn_of_unused(self)

    def _subscribe(self) -> None:
        listen(self, TimeReference, "policy/camera", self._on_image, qos.REPORT, with_info=True)
        every = qos.copy(qos.ACTION, COMMANDS_KEPT)
        commands, shadow = (partial(self._on_command, of_shadow) for of_shadow in (0, 1))
        heard = (
            listen(self, ActionCommand, "policy/action", commands, every, with_info=True),
            listen(self, ActionCommand, "policy/shadow/action", shadow, every, with_info=True),
        )
        self._action_topics = tuple(one.topic_name for one in heard)  # remappings applied
        alive = SubscriptionEventCallbacks(liveliness=self._on_liveliness)
        listen(
            self, PolicyStatus, "policy/status", self._on_status, qos.STATUS, event_callbacks=alive
        )
        listen(self, Latency, "policy/latency", self._on_latency, qos.REPORT)

    # Parameters

    def _config(self, values: dict[str, Any]) -> MonitorConfig:
        limits = {name: values[name] for name in LIMITS}
        return MonitorConfig(sim_time=self._sim_time, **limits)

    def _with(self, changed: Sequence[Parameter]) -> MonitorConfig:
        values = {name: self.get_parameter(name).value for name in LIMITS}
        return self._config(values | {p.name: p.value for p in changed})

    def _may_set(self, parameters: list[Parameter]) -> SetParametersResult:
        if any(p.name == "use_sim_time" and p.value != self._sim_time for p in parameters):
            return SetParametersResult(
                successful=False, reason="use_sim_time can only be given at start"
            )
        try:
            self._with(parameters)
        except (TypeError, ValueError) as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _set(self, parameters: list[Parameter]) -> None:
        self._monitor.set_limits(self._with(parameters))

    # Received

    def _on_image(self, message: TimeReference, info: MessageInfo) -> None:
        """Take the stamps of an image of the policy's camera. Its receipt is the policy's, whose
        clock is the one that has to agree with the camera's."""
        steady_ns = self._time.arrival(info).steady_ns
        arrival = Moment(stamp_of(message.header.stamp), steady_ns)
        self._monitor.camera(stamp_of(message.time_ref), arrival, message.source)

    def _on_command(self, shadow: int, message: ActionCommand, info: MessageInfo) -> None:
        """Take in a command of the policy; in the shadow those on the topic of others are a
        person's."""
        if shadow != self._shadow:
            return
        arrival = self._time.arrival(info)
        gid = info.get("publisher_gid")
        try:
            seen = command_seen(message, gid_of(gid["data"]) if gid else b"")
        except BadMessage as error:
            self._warn(f"command ignored: {error}")
            return
        self._monitor.command(seen, arrival)
        if self._traces is not None:
            self._traces.command(seen)

    def _on_status(self, message: PolicyStatus) -> None:
        try:
            seen = status_seen(message)
        except BadMessage as error:
            self._warn(str(error))
            return
        self._outputs, self._shadow = seen.outputs, int(seen.shadow)
        self._monitor.status(seen, moment(self._time))
        if self._traces is not None:
            self._traces.status(seen)

    def _on_liveliness(self, info: QoSLivelinessChangedInfo) -> None:
        """Take the middleware's report, within the lease, that the policy's process is gone."""
        self._monitor.policy_alive(info.alive_count > 0)

    def _on_latency(self, message: Latency) -> None:
        self._monitor.latency(latency_seen(message))

    def _warn(self, text: str) -> None:
        self.get_logger().warning(text, throttle_duration_sec=1.0)

    # Published

    def _check(self) -> None:
        self._monitor.publishers(self._writers(self._action_topics[self._shadow]))
        self._monitor.outputs({topic: self._writers(topic) for topic in self._outputs})
        judgement = self._monitor.judge()
        now = self._time.steady_ns()
        due = now - self._published_ns >= REPORT_PERIOD_NS
        if due or judgement.levels != self._levels:
            self._log_changes(judgement)
            self._levels = judgement.levels
            self._diagnostics.publish(*statuses(judgement.diagnostics))
        if due:
            # Keep to the second: a late check must not shift all that follow.
            late = (now - self._published_ns) % REPORT_PERIOD_NS if self._published_ns else 0
            self._published_ns = now - late
            report = report_message(judgement.report)
            report.header.stamp = self.get_clock().now().to_msg()
            self._reports.publish(report)

    def close(self) -> None:
        """Send the spans that wait."""
        if self._traces is not None:
            self._traces.close()

    def _writers(self, topic: str) -> tuple[PublisherSeen, ...]:
        return tuple(map(publisher_seen, self.get_publishers_info_by_topic(topic)))

    def _log_changes(self, judgement: Judgement) -> None:
        """Log one line when a subject turns bad or good again, none in between, and none about
        what a healthy graph comes through. Good is what stays so for a while: a subject that comes
        and goes is one trouble."""
        now_ns = self._time.steady_ns()
        for diagnostic in judgement.diagnostics:
            name = diagnostic.name
            level = Level.OK if diagnostic.expected else diagnostic.level
            if level is self._logged.get(name, Level.OK):
                self._good_ns.pop(name, None)
                continue
            if level is Level.OK:
                since_ns = self._good_ns.setdefault(name, now_ns)
                if now_ns - since_ns < GOOD_AGAIN_NS:
                    continue
            self._good_ns.pop(name, None)
            self._logged[name] = level
            text = f"{diagnostic.name}: {diagnostic.message}"
            if level is Level.ERROR:
                self.get_logger().error(text)
            elif level is Level.OK:
                self.get_logger().info(f"{text} (ok again)")
            else:
                self.get_logger().warning(text)


def main(args: Sequence[str] | None = None) -> int:
    """Run the node. The events executor cannot pass message infos on, so it is not used."""
    executor = SingleThreadedExecutor
    return spin.run(lambda _: MonitorNode(), MonitorNode.close, args, executor)


if __name__ == "__main__":
    sys.exit(main())
