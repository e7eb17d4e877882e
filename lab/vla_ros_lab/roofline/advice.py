"""Which decodings meet a camera, the two rates and a limit on the observation age."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from vla_ros_lab.roofline.bench_file import BOUNDS, REFERENCES, BenchFile, kind_of
from vla_ros_lab.roofline.decodings import DecodingTime, clocked

#: policy parameters of a row's decoding
PARAMETERS = {
    "flow": "decoding=auto",
    "flow_eager": "decoding=auto engine_options=[cuda_graphs=false]",
    "speculative_temporal": "decoding=speculative",
    "speculative_tree": "decoding=speculative engine_options=[drafter=temporal_tree]",
    "speculative_tree_full": "decoding=speculative"
    " engine_options=[drafter=temporal_tree,adaptive_draft=false]",
    "speculative_head": "decoding=speculative engine_options=[drafter=head,adaptive_draft=false]",
    "speculative_head_paying": "decoding=speculative engine_options=[drafter=head]",
    "heterospec_head": "decoding=heterospec engine_options=[drafter=head]",
    "heterospec_head_full": "decoding=heterospec"
    " engine_options=[drafter=head,adaptive_draft=false]",
    "speculative_relaxed": "decoding=speculative"
    " engine_options=[acceptance=relaxed,relaxed_distance=2]",
    "speculative_model": "decoding=speculative engine_options=[drafter=model,draft_checkpoint=DIR]",
}
#: how much of a chunk is executed before the next one takes over, to choose from
EXECUTED = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Requirements:
    """A robot's requirements: frames and commands a second, the oldest observation allowed (s), and
    the policy's actions a second, the rate of its data; 0: that of the commands."""

    camera_hz: float
    control_hz: float
    max_age_s: float
    action_hz: float = 0.0

    def __post_init__(self) -> None:
        if not self.action_hz:
            object.__setattr__(self, "action_hz", self.control_hz)
        for name in ("camera_hz", "control_hz", "max_age_s", "action_hz"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} is {getattr(self, name):g}: give a number above 0")

    def waits_s(self, executed: int) -> float:
        """The longest time from an answer to the last command of so many of its actions: until the
        action or the command before is over, those actions, and the commands of the last one."""
        return executed / self.action_hz + abs(1.0 / self.action_hz - 1.0 / self.control_hz)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A decoding on a device: seconds an inference (usual, worst), pipeline depth, chunk.

    ``lossless``: its actions are those of plain decoding."""

    name: str
    seconds: float
    worst_s: float
    depth: int = 1
    chunk: int = 1
    note: str = ""
    lossless: bool = True


@dataclass(frozen=True, slots=True)
class CandidateVerdict:
    """A candidate judged. ``answers_hz`` answers a second, ``actions_hz`` actions; the age
    of the observation behind a command when it is issued, ``usual_s`` on average and ``age_s`` at
    worst; ``missing`` are the limits that it fails. ``executed`` are the actions of each chunk that
    that takes."""

    candidate: Candidate
    answers_hz: float
    actions_hz: float
    usual_s: float
    age_s: float
    missing: tuple[str, ...]
    executed: int = 1

    @property
    def meets(self) -> bool:
        return not self.missing

    @property
    def parameters(self) -> str:
        name = self.candidate.name
        own = PARAMETERS.get(name, f"decoding={name}")
        return f"{own} replan_interval={self.executed}" if self.candidate.chunk > 1 else own

    @property
    def command(self) -> str:
        """Command that runs a checkpoint so; only its folder is left to fill in."""
        given = ("policy=vla", "checkpoint=DIR", *self.parameters.split())
        words = (shlex.quote(f"policy.{one}") for one in given)
        return " ".join(["vla-ros up policy", *(f"-p {word}" for word in words)])


def from_roofline(found: Iterable[DecodingTime]) -> tuple[Candidate, ...]:
    """Candidates from calculated decodings; bounds and references are not offered."""
    return tuple(
        Candidate(s.name, s.seconds, s.worst_s, s.depth, s.chunk, _assumption(s))
        for s in found
        if s.name not in BOUNDS + REFERENCES
    )


def _assumption(decoding: DecodingTime) -> str:
    if decoding.alpha is None:
        return ""
    if decoding.coverage is not None:
        return f"if the head's alternatives hold the right token {decoding.coverage:.0%} of times"
    return f"if {decoding.alpha:.0%} of drafts are accepted"


def from_bench(bench: BenchFile) -> tuple[Candidate, ...]:
    """Candidates from a measurement, those that the checkpoint can run; the worst is p95."""
    kind = kind_of(bench)
    return tuple(
        Candidate(
            row.name, row.median_ms / 1e3, max(row.p95_ms, row.median_ms) / 1e3, row.depth,
            row.chunk, "" if row.lossless else "lossy", row.lossless,
        )
        for row in bench.rows.values()
        if row.name not in BOUNDS + REFERENCES
        and (row.name == "parallel") == (kind == "parallel")
    )  # fmt: skip


def judge(
    candidate: Candidate, limits: Requirements, executed: int | None = None
) -> CandidateVerdict:
    """The verdict on one decoding.

    Between two actions commands follow a curve: their rate asks for no inference, and that of
    actions does. An answer must serve n = ceil(action rate / answer rate) of them, and n may not
    exceed its chunk; ``executed`` is another number of actions of each chunk. At one rate the n-th
    of them is issued, at worst, the latency and n periods after the frame: one period of waiting
    for a tick, and n - 1. The last command of an action that has several comes later, and so does a
    command where the robot takes fewer than it has actions. On average it is half of that.
    """
    c = candidate
    run = clocked(c.seconds, c.worst_s, c.depth, limits.camera_hz)
    needed = math.ceil(limits.action_hz / run.rate_hz - 1e-9)
    served = min(executed or needed, c.chunk)
    waits_s = limits.waits_s(served)
    age = run.worst_s + waits_s
    usual = run.latency_s + waits_s / 2
    actions = min(limits.action_hz, run.rate_hz * (served if executed else c.chunk))
    missing = []
    if needed > served:
        missing.append(f"{actions:.1f} of {limits.action_hz:g} actions/s")
    if age > limits.max_age_s:
        missing.append(f"observation up to {age * 1e3:.0f} ms old")
    return CandidateVerdict(c, run.rate_hz, actions, usual, age, tuple(missing), served)


def by_executed(candidate: Candidate, limits: Requirements) -> tuple[CandidateVerdict, ...]:
    """A verdict for each number of actions executed of a chunk; () where an answer is one
    action."""
    if candidate.chunk == 1:
        return ()
    some = sorted({*(s for s in EXECUTED if s < candidate.chunk), candidate.chunk})
    return tuple(judge(candidate, limits, s) for s in some)


def advise(
    candidates: Iterable[Candidate], limits: Requirements, executed: int | None = None
) -> tuple[CandidateVerdict, ...]:
    """The verdicts on all candidates, ``executed`` actions of each chunk or as few as will do.

    Those that meet the limits first, the lossless before the lossy, the freshest observation (on
    average) first; then the others by how few limits they miss."""

    def rank(v: CandidateVerdict) -> tuple[int, bool, float, float]:
        return len(v.missing), not v.candidate.lossless, v.usual_s, v.candidate.seconds

    return tuple(sorted((judge(c, limits, executed) for c in candidates), key=rank))
