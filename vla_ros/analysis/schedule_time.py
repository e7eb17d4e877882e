"""The time of a schedule: seconds an inference by phase, behind a camera, and what a chunk of its
actions gives."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.analysis.roofline import Roofline

PHASES = ("vision", "projector", "prefill", "decode", "draft", "head")


@dataclass(frozen=True, slots=True)
class Clocked:
    """Behaviour behind a camera: answers a second, and seconds from the capture of a frame to
    its answer, on average and at worst."""

    rate_hz: float
    latency_s: float
    worst_s: float


@dataclass(frozen=True, slots=True)
class ScheduleTime:
    """One schedule. Seconds an inference by phase; ``worst_s`` when every guess is wrong.

    ``passes`` of the target an answer; ``depth`` inferences from a frame to its answer;
    ``alpha`` the acceptance assumed, where there is a draft; ``coverage`` the chance that the
    right token is among the children of a node of a recursive head's tree,
    which has ``draft_levels``.
    """

    name: str
    phases: tuple[tuple[str, float], ...]
    passes: float
    depth: int = 1
    chunk: int = 1
    draft_passes: float = 0.0
    alpha: float | None = None
    slowest_s: float | None = None
    coverage: float | None = None
    draft_levels: int = 0

    @property
    def seconds(self) -> float:
        """From one answer to the next when frames are always waiting."""
        return sum(seconds for _, seconds in self.phases)

    @property
    def worst_s(self) -> float:
        return self.seconds if self.slowest_s is None else self.slowest_s

    @property
    def rate_hz(self) -> float:
        return 1.0 / self.seconds

    @property
    def latency_s(self) -> float:
        """Free-running, frame taken at the start: observation to action."""
        return self.depth * self.seconds

    @property
    def shares(self) -> dict[str, float]:
        """The part of the time each phase takes, as in vla.cpp's tables (arXiv 2606.08094)."""
        return {name: seconds / self.seconds for name, seconds in self.phases}

    def clocked(self, camera_hz: float) -> Clocked:
        """Behind a camera; the newest frame wins, none is used twice."""
        return clocked(self.seconds, self.worst_s, self.depth, camera_hz)


@dataclass(frozen=True, slots=True)
class Served:
    """What a schedule gives that executes ``executed`` actions of every chunk, as often as chunks
    come: actions a second, and seconds from the frame to a command, on average and at worst."""

    executed: int
    actions_hz: float
    age_s: float
    worst_s: float


def served(found: ScheduleTime, camera_hz: float, executed: int | None = None) -> Served:
    """Behind a camera; ``executed`` actions of a chunk, or half of it.

    They last until the next answer, 1 / rate, so the command of a chunk is issued its latency and
    half of that after the frame on average, all of it at worst. A slower robot waits longer: see
    `vla-ros advise`, which is told its rate.
    """
    actions = executed or max(found.chunk // 2, 1)
    run = found.clocked(camera_hz)
    period = 1.0 / run.rate_hz
    return Served(actions, actions * run.rate_hz, run.latency_s + period / 2, run.worst_s + period)


def clocked(seconds: float, worst_s: float, depth: int, camera_hz: float) -> Clocked:
    """Rate and latency of an inference of ``seconds`` behind a camera of period Tc.

    Fast enough (T <= Tc): every frame is answered, after (depth - 1) Tc + T. Slower: inferences
    follow each other, the newest frame has waited between 0 and Tc at the start, so depth T +
    Tc / 2 on average, depth T + Tc at worst. Derived here; frames arrive exactly every Tc.
    """
    period = 1.0 / camera_hz

    def latency(each: float, wait: float) -> float:
        return (depth - 1) * period + each if each <= period else depth * each + wait * period

    rate = min(camera_hz, 1.0 / seconds)
    return Clocked(rate, latency(seconds, 0.5), latency(max(seconds, worst_s), 1.0))


def image_phases(roof: Roofline) -> list[tuple[str, float]]:
    """The phases before the decoder."""
    return [("vision", roof.vision().seconds), ("projector", roof.projector().seconds)]
