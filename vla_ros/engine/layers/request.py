"""A request to a decoding, its stage marks, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from vla_ros.core.clock import MS, Clock
from vla_ros.core.types import Floats, Inference, Observation, Timeline
from vla_ros.engine.layers.devices import downloaded, on_device


class StageTimer:
    """Stage marks of one request, without stopping the device.

    On a CPU a mark reads the steady clock. On CUDA, where work runs behind the caller, a mark is an
    event; the events become steady times in ``resolve``, called once, when the result was read.
    """

    def __init__(self, timeline: Timeline, clock: Clock, device: torch.device) -> None:
        self._timeline, self._clock = timeline, clock
        self._device, self._cuda = device, device.type == "cuda"
        self._events: list[tuple[str, torch.cuda.Event]] = []

    def mark(self, stage: str) -> None:
        """The stage ends here."""
        if not self._cuda:
            self._timeline = self._timeline.mark(stage, self._clock.steady_ns())
            return
        with on_device(self._device):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self._events.append((stage, event))

    def resolve(self) -> Timeline:
        """The finished timeline."""
        if not self._events:
            return self._timeline
        last = self._events[-1][1]
        last.synchronize()
        end = self._clock.steady_ns()
        timeline = self._timeline
        for stage, event in self._events:
            at = end - round(event.elapsed_time(last) * MS)
            timeline = timeline.mark(stage, max(at, timeline.end_ns))
        return timeline


@dataclass(frozen=True, slots=True)
class Decoded:
    """The answer of a decoding to one request.

    ``tokens`` are the K action tokens; ``actions`` [C, A] in [-1, 1] only where a head made them
    without tokens. ``finite`` is False when a logit was not. ``accepted`` of ``drafted`` are counts
    per position. ``own`` are the target's own choices where acceptance is lossy. ``observation``:
    the one that is answered.
    """

    stamp_ns: int
    timeline: Timeline
    tokens: tuple[int, ...]
    finite: bool = True
    target_passes: int = 0
    draft_passes: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    actions: torch.Tensor | None = None
    observation: Observation | None = field(default=None, compare=False)

    @property
    def delay_steps(self) -> int:
        """The ``delay_steps`` of the observation; 0 without one."""
        return 0 if self.observation is None else self.observation.delay_steps

    def inference(self, actions: Floats, conditioning_delay: int = 0) -> Inference:
        """The answer with these actions [C, D] in units."""
        return Inference(
            stamp_ns=self.stamp_ns,
            actions=actions,
            timeline=self.timeline,
            tokens=self.tokens,
            target_passes=self.target_passes,
            draft_passes=self.draft_passes,
            drafted=self.drafted,
            accepted=self.accepted,
            conditioning_delay=conditioning_delay,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A chunk ``values`` [H, D] in model space that a flow policy made of an observation;
    ``guided``: it continues the one that is executed."""

    observation: Observation
    stages: StageTimer
    values: torch.Tensor
    guided: bool


@dataclass(slots=True)
class Request:
    """One frame to be answered.

    ``prompt`` is [n, C], vision included, which begins at row ``front``; ``pixels``,
    ``features`` and ``observation`` are there for a draft model and for heads; ``stages``
    carries the request's own timeline through the pipeline.
    """

    stamp_ns: int
    prompt: torch.Tensor
    stages: StageTimer
    pixels: tuple[torch.Tensor, ...] = ()
    features: torch.Tensor | None = None
    observation: Observation | None = None
    front: int = 1

    def answer(self, tokens: Sequence[int], target_passes: int, *, finite: bool = True) -> Decoded:
        """The answer to this request; its last stage, decode, ends here."""
        self.stages.mark("decode")
        return Decoded(
            stamp_ns=self.stamp_ns,
            timeline=self.stages.resolve(),
            tokens=tuple(tokens),
            finite=finite,
            target_passes=target_passes,
            observation=self.observation,
        )


@dataclass(slots=True)
class Reading:
    """Choices of passes that are still on the device; :meth:`read` is the one host sync."""

    choices: list[torch.Tensor] = field(default_factory=list)
    maxima: list[torch.Tensor] = field(default_factory=list)

    def add(self, choices: torch.Tensor, maxima: torch.Tensor) -> torch.Tensor:
        """Keep the choices and maxima of a runner's ``run``; returns the choices."""
        self.choices.append(choices)
        self.maxima.append(maxima)
        return choices

    def read(self) -> tuple[list[int], bool]:
        """The tokens, and whether all logits were finite (a maximum lets NaN and +inf through)."""
        finite = torch.cat(self.maxima).isfinite().all()
        *tokens, all_finite = downloaded(torch.cat((*self.choices, finite[None].long()))).tolist()
        return tokens, bool(all_finite)
