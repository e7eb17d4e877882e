"""Both engines over the same frames: the reference first, freed before the other one is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core.console import Report
from vla_ros.core.errors import UserError
from vla_ros.engine import InvalidAction, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.options import FLOW, TOKENS
from vla_ros.engine.verdicts import Precision, StoredVerdict
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.conventions import Conventions, settle
from vla_ros.policies.vla import engine_options
from vla_ros_lab.precision.compare import Comparison, compare_frame, summed
from vla_ros_lab.precision.judge import PrecisionVerdict, Thresholds
from vla_ros_lab.precision.watch import EngineTrace, FlowWatch, ProbeFrame, TokenWatch

REFERENCE = "float32"
#: Makes the engine of a spec; tests give a faulty one.
Load = Callable[[PolicySpec, Conventions], Engine]


@dataclass(frozen=True, slots=True)
class PrecisionMeasurement:
    """Comparison of both engines. ``sha256``: of the checkpoint that was measured."""

    comparison: Comparison
    sha256: str
    space: ActionSpace


class Broken(Exception):
    """No action at all came of what is measured, as where float16 overflows: it did not pass."""

    def __init__(self, sha256: str, reason: str) -> None:
        super().__init__(reason)
        self.sha256 = sha256


def load(spec: PolicySpec, used: Conventions) -> Engine:
    """The engine that the policy ``vla`` would run, with all that it would run it with."""
    return load_engine(engine_options(spec, used))


def measure(
    spec: PolicySpec,
    frames: Sequence[ProbeFrame],
    report: Report,
    reference: PolicySpec | None = None,
    make: Load = load,
) -> PrecisionMeasurement:
    """``spec`` against ``reference``: by default the same checkpoint in float32, as it is stored.

    PolicyRefused, CheckpointError or ValueError where it cannot be loaded; InvalidAction where the
    reference gives no action, Broken where what is measured gives none.
    """
    reference = reference or replace(spec, engine=replace(spec.engine, dtype=REFERENCE, weights=""))
    # What is measured runs as it serves (graphs, tuned products, padding), the reference plainly.
    plain = replace(reference.engine, cuda_graphs=False, gemm="torch")
    reference = replace(reference, engine=plain)
    used, _ = settle(spec)
    rights = _traces(reference, used, frames, report, make)
    name = _named(spec)
    report(f"load {name}", 0, len(frames))
    engine = make(spec, used)
    watch, space = _watch(engine, used), engine.info.action_space
    sha256 = engine.info.checkpoint_sha256
    found = []
    for number, frame in enumerate(frames):
        right, rights[number] = rights[number], None  # each goes when it was compared
        assert right is not None
        try:
            trace = watch.trace(frame, right)
        except InvalidAction as error:
            raise Broken(sha256, f"frame {number}: {error}") from error
        found.append(compare_frame(number, right, trace, space))
        report(name, number + 1, len(frames))
    return PrecisionMeasurement(summed(found), sha256, space)


def _traces(
    spec: PolicySpec, used: Conventions, frames: Sequence[ProbeFrame], report: Report, make: Load
) -> list[EngineTrace | None]:
    """Traces of the reference on all frames; its engine is gone afterwards."""
    report("load reference", 0, len(frames))
    watch = _watch(make(spec, used), used)
    out: list[EngineTrace | None] = []
    for number, frame in enumerate(frames, 1):
        out.append(watch.trace(frame))
        report("reference", number, len(frames))
    return out


def _watch(engine: Engine, used: Conventions) -> TokenWatch | FlowWatch:
    space = engine.info.action_space
    scale = np.ones(space.width)
    if space == END_EFFECTOR_DELTA:
        scale[:6] = used.action_scale
    if engine.policy.group == FLOW:
        return FlowWatch(engine, scale)
    if engine.policy.group != TOKENS:
        raise UserError(f"{engine.options.checkpoint}: precision is not checked of pi0_fast")
    return TokenWatch(engine, scale)


def _named(spec: PolicySpec) -> str:
    return f"{spec.engine.weights} {spec.engine.dtype}".strip()


@dataclass(frozen=True, slots=True)
class Result:
    """A check's whole result. ``frames_from``: one line about the frames; ``reference``: the
    checkpoint that it is held to, in float32."""

    checkpoint: str
    reference: str
    sha256: str
    precision: Precision
    frames_from: str
    comparison: Comparison
    thresholds: Thresholds
    verdict: PrecisionVerdict

    def figures(self) -> dict[str, Any]:
        """All figures but the profiles of the stages, which are the page's images."""
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

    def stored(self) -> StoredVerdict:
        """The verdict that is kept."""
        return StoredVerdict(
            self.sha256, self.precision, self.verdict.passed, self.verdict.reasons, self.figures()
        )

    def as_json(self) -> dict[str, Any]:
        """The verdict beside the figures."""
        return {
            "passed": self.verdict.passed,
            "reasons": list(self.verdict.reasons),
            "checkpoint_sha256": self.sha256,
            **asdict(self.precision),
            **self.figures(),
        }
