"""What `/metrics` says, by Prometheus' own client."""

from __future__ import annotations

from vla_ros.policies.remote.codec import need

_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """Counts of one server. Any thread."""

    def __init__(self) -> None:
        prometheus = need("prometheus_client")
        self._text = prometheus.generate_latest
        self.registry = prometheus.CollectorRegistry()
        words = {"namespace": "vla_ros", "registry": self.registry}
        self.sessions = prometheus.Gauge("sessions", "Clients that are connected", **words)
        self.observations = prometheus.Counter("observations", "Observations answered", **words)
        self.refused = prometheus.Counter(
            "refused", "Connections and observations refused, by the reason", ["why"], **words
        )
        self.passed = prometheus.Histogram(
            "pass_seconds", "Time of a pass of the policy", buckets=_SECONDS, **words
        )
        self.batch = prometheus.Histogram(
            "batch_size", "Observations that a pass answered", buckets=(1, 2, 4, 8, 16, 32), **words
        )
        self.age = prometheus.Histogram(
            "age_seconds", "From an observation's receipt to its answer", buckets=_SECONDS, **words
        )

    def saw_pass(self, count: int, seconds: float) -> None:
        """One pass of the policy is over."""
        self.passed.observe(seconds)
        self.batch.observe(count)

    def frames_a_pass(self) -> float:
        """Observations that a pass answered, in the mean."""
        passes, frames = (
            self.registry.get_sample_value(f"vla_ros_batch_size_{name}")
            for name in ("count", "sum")
        )
        return (frames or 0.0) / (passes or 1.0)

    def text(self) -> str:
        """In Prometheus' format."""
        return str(self._text(self.registry), "utf-8")
