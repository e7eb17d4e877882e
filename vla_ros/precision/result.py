"""A gate's whole result: what was asked, measured and decided. Frozen; the page and the store
read it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vla_ros.precision.compare import Comparison
from vla_ros.precision.judge import Thresholds, Verdict
from vla_ros.precision.store import Precision, StoredGate


@dataclass(frozen=True, slots=True)
class Result:
    """``frames_from``: one line about the frames; ``reference``: the checkpoint that it is held
    to, in float32."""

    checkpoint: str
    reference: str
    sha256: str
    precision: Precision
    frames_from: str
    comparison: Comparison
    thresholds: Thresholds
    verdict: Verdict

    def figures(self) -> dict[str, Any]:
        """All figures but the profiles of the stages, which are the page's pictures."""
        found = asdict(self.comparison)
        for stage in found["stages"]:
            del stage["profile"], stage["layout"]
        found["checked"] = dict(self.comparison.checked)
        return {
            "checkpoint": self.checkpoint,
            "reference": self.reference,
            "frames_from": self.frames_from,
            "thresholds": asdict(self.thresholds),
            **found,
        }

    def stored(self) -> StoredGate:
        """What is kept of it."""
        return StoredGate(
            self.sha256, self.precision, self.verdict.passed, self.verdict.reasons, self.figures()
        )

    def as_json(self) -> dict[str, Any]:
        """For a program: the verdict beside the figures."""
        return {
            "passed": self.verdict.passed,
            "reasons": list(self.verdict.reasons),
            "checkpoint_sha256": self.sha256,
            **asdict(self.precision),
            **self.figures(),
        }
