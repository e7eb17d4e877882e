"""Both engines over the same frames: the reference first, freed before the other one is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vla_ros.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.engine import InvalidAction, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.flow.engine import FlowEngine
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.conventions import Conventions, settle
from vla_ros.policies.vla import engine_options
from vla_ros.precision.compare import Comparison, compare_frame, summed
from vla_ros.precision.flow import FlowWatch
from vla_ros.precision.observed import Shown, Told
from vla_ros.precision.tokens import TokenWatch

REFERENCE = "float32"
#: (what is done, frames done, frames in all)
Report = Callable[[str, int, int], None]
#: Makes the engine of a spec. Tests put a faulty one in its place.
Load = Callable[[PolicySpec, Conventions], Engine | FlowEngine]


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it. ``sha256``: of the checkpoint that was measured."""

    comparison: Comparison
    sha256: str
    space: ActionSpace


class Broken(Exception):
    """What is measured says no action at all, as where float16 overflows: it did not pass."""

    def __init__(self, sha256: str, reason: str) -> None:
        super().__init__(reason)
        self.sha256 = sha256


def load(spec: PolicySpec, used: Conventions) -> Engine | FlowEngine:
    """The engine that the policy ``vla`` would run, without graphs, which nobody can look into."""
    return load_engine(engine_options(replace(spec, cuda_graphs=False), used))


def measure(
    spec: PolicySpec,
    frames: Sequence[Shown],
    report: Report,
    reference: PolicySpec | None = None,
    make: Load = load,
) -> Measured:
    """``spec`` against ``reference``: by default the same checkpoint in float32, as it is stored.

    PolicyRefused, CheckpointError or ValueError where it cannot be loaded; InvalidAction where the
    reference says no action, Broken where what is measured does not.
    """
    reference = reference or replace(spec, dtype=REFERENCE, weights="")
    used, _ = settle(spec)
    rights = _told(reference, used, frames, report, make)
    name = _named(spec)
    report(f"load {name}", 0, len(frames))
    engine = make(spec, used)
    watch, space, sha256 = (
        _watch(engine, used),
        engine.info.action_space,
        engine.info.checkpoint_sha256,
    )
    found = []
    for number, shown in enumerate(frames):
        right, rights[number] = rights[number], None  # each goes when it was compared
        assert right is not None
        try:
            told = watch.told(shown, right)
        except InvalidAction as error:
            raise Broken(sha256, f"frame {number}: {error}") from error
        found.append(compare_frame(number, right, told, space))
        report(name, number + 1, len(frames))
    return Measured(summed(found), sha256, space)


def _told(
    spec: PolicySpec, used: Conventions, frames: Sequence[Shown], report: Report, make: Load
) -> list[Told | None]:
    """The reference on all frames; its engine is gone afterwards."""
    report("load reference", 0, len(frames))
    watch = _watch(make(spec, used), used)
    out: list[Told | None] = []
    for number, shown in enumerate(frames, 1):
        out.append(watch.told(shown))
        report("reference", number, len(frames))
    return out


def _watch(engine: Engine | FlowEngine, used: Conventions) -> TokenWatch | FlowWatch:
    space = engine.info.action_space
    scale = np.ones(space.width)
    if space == END_EFFECTOR_DELTA:
        scale[:6] = used.action_scale
    if isinstance(engine, FlowEngine):
        return FlowWatch(engine, scale)
    return TokenWatch(engine, scale)


def _named(spec: PolicySpec) -> str:
    return f"{spec.weights} {spec.dtype}" if spec.weights else spec.dtype
