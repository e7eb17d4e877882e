"""Messages as the monitor's frozen views, and its judgement as messages."""

from __future__ import annotations

import math
from collections.abc import Iterable

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.topic_endpoint_info import TopicEndpointInfo

from vla_ros.core import STAGES, CommandKind, PolicyState
from vla_ros.monitoring import (
    CommandSeen,
    Diagnostic,
    GraphReport,
    LatencySeen,
    PublisherSeen,
    StagesSeen,
    StatusSeen,
)
from vla_ros.msg import ActionCommand, Latency, MonitorReport, PolicyStatus, Stages
from vla_ros.nodes.common.convert import BadMessage, set_times, stamp_of
from vla_ros.nodes.common.diagnostics import status
from vla_ros.timing import Distribution

_GID_BYTES = 16
_LARGEST = 1e9  # of a duration in s and of a rate in Hz


def gid_of(gid: Iterable[int]) -> bytes:
    """A writer's GID in the one form that the graph and message infos share."""
    return bytes(gid)[:_GID_BYTES]


def command_seen(message: ActionCommand, publisher: bytes = b"") -> CommandSeen:
    """Raises :class:`BadMessage` for a kind that does not exist."""
    try:
        kind = CommandKind(message.kind)
    except ValueError:
        raise BadMessage(f"command of unknown kind {message.kind}") from None
    return CommandSeen(
        sequence=message.sequence,
        kind=kind,
        published_ns=stamp_of(message.header.stamp),
        observed_ns=stamp_of(message.observation_stamp),
        stages=stages_seen(message.stages),
        staleness_ms=_finite(message.staleness_s) * 1e3,
        publisher=publisher,
    )


def stages_seen(message: Stages) -> StagesSeen:
    """Durations that are no numbers count as 0, so that they cannot spoil a percentile."""
    durations = tuple(_finite(getattr(message, f"{stage}_s")) * 1e3 for stage in STAGES)
    return StagesSeen(durations, _finite(message.total_s) * 1e3)


def _finite(value: float) -> float:
    """What no clock and no rate can be counts as 0, also where it would overflow as nanoseconds."""
    return value if math.isfinite(value) and abs(value) < _LARGEST else 0.0


def status_seen(message: PolicyStatus) -> StatusSeen:
    """Raises :class:`BadMessage` for a state that does not exist."""
    try:
        state = PolicyState(message.state)
    except ValueError:
        raise BadMessage(f"policy status with unknown state {message.state}") from None
    return StatusSeen(
        state=state,
        reason=message.reason,
        policy=message.policy,
        schedule=message.schedule,
        checkpoint=message.checkpoint,
        device=message.device,
        dtype=message.dtype,
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
    )


def latency_seen(message: Latency) -> LatencySeen:
    return LatencySeen(_finite(message.tick_error_s.p99) * 1e3, _finite(message.total_s.p99) * 1e3)


def publisher_seen(endpoint: TopicEndpointInfo) -> PublisherSeen:
    """A writer as the graph query returns it, by the full name of its node."""
    name = f"{endpoint.node_namespace.rstrip('/')}/{endpoint.node_name}"
    return PublisherSeen(name, gid_of(endpoint.endpoint_gid))


def report_message(report: GraphReport) -> MonitorReport:
    """The caller stamps it."""
    out = MonitorReport(clock_offset_s=report.clock_offset_ms / 1e3)
    for name in GraphReport.__slots__:
        value = getattr(report, name)
        if isinstance(value, Distribution):
            set_times(out, name, value)
            continue
        if isinstance(value, tuple):
            value = list(value)
        setattr(out, name, int(value) if name == "level" else value)
    return out


def statuses(diagnostics: Iterable[Diagnostic]) -> list[DiagnosticStatus]:
    """As :class:`vla_ros.nodes.common.diagnostics.Diagnostics` says them."""
    return [status(d.level, d.name, d.message, d.values) for d in diagnostics]
