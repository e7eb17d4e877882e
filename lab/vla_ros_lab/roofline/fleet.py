"""Number of robots that one server has time for, by the roofline of a batch and by the rules of
`vla-ros serve`.

A batch of n robots reads the weights once; arithmetic, caches and activations are n times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from vla_ros.runtime.scheduler import BatchCosts, capacity
from vla_ros_lab.roofline.advice import CandidateVerdict, Requirements
from vla_ros_lab.roofline.decodings import DecodingTime
from vla_ros_lab.roofline.roofline import Roofline

MOST = 256  # robots


@dataclass(frozen=True, slots=True)
class Fleet:
    """``robots`` that one server lets in, each asking ``rate_hz`` times a second for an answer
    whose observation is at most ``max_age_s`` old when it is made; ``alone_s`` and ``together_s``:
    a pass of one, and of all of them. ``bound``: whether it is memory that has room for no more."""

    decoding: str
    robots: int
    rate_hz: float
    max_age_s: float
    alone_s: float
    together_s: float
    bound: bool

    def __str__(self) -> str:
        if not self.robots:
            return f"robots on one server: none, a pass takes {1e3 * self.alone_s:.1f} ms"
        why = ", as many as its memory holds" if self.bound else ""
        return (
            f"robots on one server: {self.robots}{why}, by {self.decoding}, each asking"
            f" {self.rate_hz:.3g} times a second; a pass of one takes {1e3 * self.alone_s:.1f} ms,"
            f" of all {1e3 * self.together_s:.1f} ms"
        )

    def as_json(self) -> dict[str, Any]:
        """For the JSON line."""
        return asdict(self)


def fleet_of(
    roof: Roofline,
    verdicts: Iterable[CandidateVerdict],
    limits: Requirements,
    times: Callable[[Roofline], Iterable[DecodingTime]],
) -> Fleet | None:
    """The fleet of the first decoding that meets the limits alone and is batched; None: none does.

    ``times`` are those of every decoding on a roofline. A robot asks for every frame that it acts
    on, of a chunk for every S-th action; of its age limit the wait for the frame and for the ticks
    that execute the answer are taken off.
    """
    best = next((v for v in verdicts if v.meets and v.candidate.depth == 1), None)
    if best is None:
        return None
    name, executed = best.candidate.name, best.executed if best.candidate.chunk > 1 else 1
    rate_hz = min(limits.camera_hz, limits.action_hz / executed)
    max_age_s = limits.max_age_s - 1.0 / limits.camera_hz - limits.waits_s(executed)
    sizes = [n for n in (2**k for k in range(MOST.bit_length())) if n == 1 or roof.fits(n)]
    seconds = {
        n: next(s.seconds for s in times(replace(roof, robots=n)) if s.name == name) for n in sizes
    }
    costs = BatchCosts(seconds)
    count = capacity(costs, rate_hz, max(0.001, max_age_s), max(sizes))
    together = costs.of(max(1, count))
    full = count == max(sizes) < MOST
    return Fleet(name, count, rate_hz, max_age_s, seconds[1], together, full)
