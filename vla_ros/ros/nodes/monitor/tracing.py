"""OpenTelemetry spans of the stages of an action, by its command: one trace an observation.

Of the monitor and not of the policy: every command carries its stages, which abut and sum to its
latency, so the control tick pays nothing. Where the spans go is OpenTelemetry's own business: its
OTEL_* variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES).
"""

from __future__ import annotations

from typing import Any

from vla_ros.core.clock import MS
from vla_ros.core.types import STAGES, CommandKind
from vla_ros.runtime.monitor.seen import CommandSeen, StatusSeen

_FLUSH_MS = 1_000
NEEDS = "tracing needs OpenTelemetry ({}): pip install 'vla_ros[tracing]'"


def otlp_exporter() -> Any:
    """Exporter over HTTP, to where OTEL_EXPORTER_OTLP_ENDPOINT says (localhost:4318). Raises
    ValueError where it is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ValueError(NEEDS.format(error)) from None
    return OTLPSpanExporter()


class ActionTraces:
    """Spans of the commands that are given to :meth:`command`. ``node``: its full name. Not
    thread-safe. ValueError: OpenTelemetry is not installed."""

    def __init__(self, exporter: Any, node: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ValueError(NEEDS.format(error)) from None
        resource = Resource.create({"service.name": "vla_ros", "ros.node": node})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("vla_ros")
        self._inside = trace.set_span_in_context
        self._policy: dict[str, Any] = {}
        self._last_ns = 0  # stamp of the observation that was traced last

    def status(self, seen: StatusSeen) -> None:
        """Take what the policy is, for the spans' attributes."""
        self._policy = {
            "vla.policy": seen.policy,
            "vla.decoding": seen.decoding,
            "vla.checkpoint": seen.checkpoint,
            "vla.device": seen.device,
        }

    def command(self, seen: CommandSeen) -> None:
        """The trace of the first command on each observation, from its capture to the command's
        publication in ROS time; those that follow execute the rest of its chunk."""
        observed = seen.observed_ns
        if seen.kind is not CommandKind.POLICY or observed in (0, self._last_ns):
            return
        self._last_ns = observed
        action = self._tracer.start_span(
            "action",
            start_time=observed,
            attributes={
                **self._policy,
                "vla.sequence": seen.sequence,
                "vla.chunk_index": seen.chunk_index,
                "vla.staleness_ms": seen.staleness_ms,
            },
        )
        inside, begin = self._inside(action), observed
        for stage, spent_ms in zip(STAGES, seen.stages.durations_ms, strict=True):
            end = begin + round(max(0.0, spent_ms) * MS)
            if end > begin:
                self._tracer.start_span(stage, inside, start_time=begin).end(end)
            begin = end
        action.end(max(observed, seen.published_ns))

    def close(self) -> None:
        """Send what waits; a collector that does not answer holds up no end."""
        self._provider.force_flush(_FLUSH_MS)
