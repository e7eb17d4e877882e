"""Both engines over the same frames: the reference first, freed before the other one is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vla_ros.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.engine import load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.flow.engine import FlowEngine
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.conventions import Conventions, settle
from vla_ros.policies.vla import engine_options
from vla_ros.precision.compare import Comparison, compare
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

    PolicyRefused, CheckpointError or ValueError where it cannot be loaded; InvalidAction where it
    says no action.
    """
    reference = reference or replace(spec, dtype=REFERENCE, weights="")
    used, _ = settle(spec)
    right, space, _ = _watch(reference, used, frames, None, report, "reference", make)
    told, _, sha256 = _watch(spec, used, frames, right, report, _named(spec), make)
    return Measured(compare(right, told, space), sha256, space)


def _watch(
    spec: PolicySpec,
    used: Conventions,
    frames: Sequence[Shown],
    teachers: Sequence[Told] | None,
    report: Report,
    name: str,
    make: Load,
) -> tuple[list[Told], ActionSpace, str]:
    """One engine on all frames; it is gone afterwards."""
    report(f"load {name}", 0, len(frames))
    engine = make(spec, used)
    space = engine.info.action_space
    scale = np.ones(space.width)
    if space == END_EFFECTOR_DELTA:
        scale[:6] = used.action_scale
    watch = (
        FlowWatch(engine, scale) if isinstance(engine, FlowEngine) else TokenWatch(engine, scale)
    )
    out = []
    for number, shown in enumerate(frames):
        out.append(watch.told(shown, None if teachers is None else teachers[number]))
        report(name, number + 1, len(frames))
    return out, space, engine.info.checkpoint_sha256


def _named(spec: PolicySpec) -> str:
    return f"{spec.weights} {spec.dtype}" if spec.weights else spec.dtype
