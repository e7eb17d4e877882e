"""The nouns of a comparison: what a policy said about the frames of a run, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vla_ros.action_space import END_EFFECTOR_DELTA
from vla_ros.core import INFERENCE_STAGES, CommandKind
from vla_ros.timing import MS, Distribution

#: Which frame, and which action of the chunk that it gave.
Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Said:
    """One command. ``action``: its numbers, ``names`` and ``units`` what they are; empty for those
    of one end effector, as in recordings of the first release. Stamps in ns, stages in ms.

    ``at_ns``: when it was recorded or received, on a clock that runs evenly.
    """

    kind: CommandKind
    observed_ns: int  # 0: rests on no observation
    latest_ns: int
    published_ns: int
    at_ns: int
    action: tuple[float, ...]
    epoch: int = 0
    chunk_index: int = 0
    schedule: str = ""
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return self.observed_ns, self.chunk_index

    @property
    def age_ms(self) -> float:
        """Observation age at publication, by the stamps."""
        return (self.published_ns - self.observed_ns) / MS

    @property
    def inference_ms(self) -> float:
        return sum(self.stages_ms.get(stage, 0.0) for stage in INFERENCE_STAGES)


@dataclass(frozen=True, slots=True)
class Run:
    """Everything a policy said in one run, in the order it said it.

    ``tokens``: of every frame that was answered with tokens, by its stamp. ``answer_ms``: from
    showing a frame to its answer, by the steady clock; empty for recorded runs.
    """

    said: tuple[Said, ...]
    tokens: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    frames: int = 0
    answer_ms: Distribution = Distribution()
    policy: str = ""
    schedule: str = ""
    checkpoint: str = ""
    checkpoint_sha256: str = ""
    device: str = ""
    dtype: str = ""
    pipeline_depth: int = 1

    @property
    def actions(self) -> dict[Key, Said]:
        """The policy's own actions by frame; neither holding still nor stopping is one."""
        return {s.key: s for s in self.said if s.kind is CommandKind.POLICY}

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers of an action are; of a run without actions those of one end effector."""
        return (self._first.names if self._first else ()) or END_EFFECTOR_DELTA.names

    @property
    def units(self) -> tuple[str, ...]:
        """Of :attr:`names`."""
        return (self._first.units if self._first else ()) or END_EFFECTOR_DELTA.units

    @property
    def _first(self) -> Said | None:
        return next((s for s in self.said if s.kind is CommandKind.POLICY), None)

    @property
    def rate_hz(self) -> float:
        """Actions of the policy a second, from the first to the last."""
        times = [s.at_ns for s in self.said if s.kind is CommandKind.POLICY]
        span = times[-1] - times[0] if len(times) > 1 else 0
        return (len(times) - 1) * 1e9 / span if span > 0 else 0.0
