"""Metrics of a server for `/metrics`, by Prometheus' own client."""

from __future__ import annotations

from vla_ros.policies.remote.codec import need

_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """Counts of one server. Any thread."""

    def __init__(self) -> None:
        prometheus = need("prometheus_client")
        self._text = prometheus.generate_latest
        self.registry = prometheus.CollectorRegistry()
        common = {"namespace": "vla_ros", "registry": self.registry}
        self.sessions = prometheus.Gauge("sessions", "Clients that are connected", **common)
        self.observations = prometheus.Counter("observations", "Observations answered", **common)
        self.refused = prometheus.Counter(
            "refused", "Connections and observations refused, by the reason", ["why"], **common
        )
        self.passed = prometheus.Histogram(
            "pass_seconds", "Time of a pass of the policy", buckets=_SECONDS, **common
        )
        self.batch = prometheus.Histogram(
            "batch_size",
            "Observations that a pass answered",
            buckets=(1, 2, 4, 8, 16, 32),
            **common,
        )
        self.age = prometheus.Histogram(
            "age_seconds", "From an observation's receipt to its answer", buckets=_SECONDS, **common
        )

    def saw_pass(self, count: int, seconds: float) -> None:
        """Count a pass of the policy."""
        self.passed.observe(seconds)
        self.batch.observe(count)

    def frames_a_pass(self) -> float:
        """Mean number of observations that a pass answered."""
        passes, frames = (
            self.registry.get_sample_value(f"vla_ros_batch_size_{name}")
            for name in ("count", "sum")
        )
        return (frames or 0.0) / (passes or 1.0)

    def text(self) -> str:
        """The metrics in Prometheus' format."""
        return str(self._text(self.registry), "utf-8")
