"""Seeing: from an observation to patches; and seeing the next frame while a pass still runs.

A pass waits for weights and products, vision for launches and the host: beside each other they
take less than in turn. But evidence must not get older by it. So the next frame is seen *just in
time*: as late in the pass as preprocessing and vision just fit, the newest frame then; and if a
newer one has come when the pass is done, that one is taken and what was seen is dropped. Every
action rests on the frame that it would rest on without all this, or on a newer one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from vla_ros.core import Observation, Timeline
from vla_ros.engine.model import VLAModel
from vla_ros.engine.packed.streams import Apart
from vla_ros.engine.request import Pending
from vla_ros.engine.stages import StageTimer
from vla_ros.timing import MS, Clock

#: the newest frame that waits under the instruction of now, None where there is none
Coming = Callable[[], Observation | None]
#: pixels [images, 3, s, s] per vision tower
See = Callable[[Observation], tuple[torch.Tensor, ...]]

_REMEMBERED = 9  # durations, of which the median counts
_ENOUGH = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """An observation as far as the language model is not needed; ``patches`` [n, C]."""

    observation: Observation
    stages: StageTimer
    pixels: tuple[torch.Tensor, ...]
    features: torch.Tensor
    patches: torch.Tensor


class Durations:
    """The last few of something, in ns."""

    def __init__(self) -> None:
        self._kept: deque[int] = deque(maxlen=_REMEMBERED)

    def add(self, ns: int) -> None:
        self._kept.append(ns)

    @property
    def usual(self) -> int | None:
        """None while too few are known."""
        return int(median(self._kept)) if len(self._kept) >= _ENOUGH else None


class Sight:
    """Preprocessing and vision. ``beside``: on a stream of their own, beside all else.

    Then all seeing is there, one frame behind the other: it has buffers that only one frame at a
    time can use.
    """

    def __init__(self, model: VLAModel, pixels: See, beside: bool) -> None:
        self._model, self._pixels = model, pixels
        self.apart = Apart(model.device) if beside else None
        self._ahead: Seen | None = None
        self.host = Durations()  # how long the caller is busy with a frame

    def see(self, observation: Observation, timeline: Timeline, clock: Clock) -> Seen:
        """What is known of the frame, seen now or ahead; usable on the current stream.

        Its timeline is the given one, with preprocess and vision; of a frame that was seen ahead
        its own, in which the wait for the pass counts as queue.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.observation is observation:
            self._join(ahead)
            ahead.stages.mark("queue")
            return ahead
        seen = self._look(observation, timeline, clock, behind=True)
        self._join(seen)
        return seen

    def look_ahead(self, observation: Observation, clock: Clock) -> None:
        """See a frame that may be asked for next, beside what the device does."""
        timeline = Timeline(observation.received_steady_ns).mark("queue", clock.steady_ns())
        self._ahead = self._look(observation, timeline, clock, behind=False)

    def drop(self) -> None:
        """Forget what was seen ahead."""
        self._ahead = None

    def _look(
        self, observation: Observation, timeline: Timeline, clock: Clock, behind: bool
    ) -> Seen:
        def look() -> Seen:
            stages = StageTimer(timeline, clock, self._model.device)
            pixels = self._pixels(observation)
            stages.mark("preprocess")
            features = self._model.features(pixels)
            patches = self._model.project(features)
            stages.mark("vision")
            return Seen(observation, stages, pixels, features, patches)

        begun = clock.steady_ns()
        seen = look() if self.apart is None else self.apart.run(look, behind)
        self.host.add(clock.steady_ns() - begun)
        return seen

    def _join(self, seen: Seen) -> None:
        if self.apart is not None:
            self.apart.join((*seen.pixels, seen.features, seen.patches))


class Ahead:
    """Waits for a pass, and has the next frame seen meanwhile, just in time."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight
        self._coming: Coming | None = None
        self._passes, self._looks = Durations(), Durations()

    def watch(self, coming: Coming) -> None:
        """Ask this for frames from now on."""
        self._coming = coming

    def learn(self, timeline: Timeline) -> None:
        """How long seeing takes, of an answer's timeline."""
        spent = timeline.durations_ms()
        self._looks.add(round((spent.get("preprocess", 0.0) + spent.get("vision", 0.0)) * MS))

    def meanwhile(self, pending: Pending, clock: Clock) -> None:
        """Return when the answer is there. Where there is nothing to do meanwhile, at once.

        Looks again and again, as torch's own wait for the device does.
        """
        if self._sight.apart is None or pending.arrived():
            return
        since, until = self._window()
        begun = now = clock.steady_ns()
        while not pending.arrived():
            now = clock.steady_ns()
            if self._coming is None or not since <= now - begun <= until:
                continue
            observation = self._coming()
            if observation is not None:
                until = -1  # one a pass
                self._try(observation, clock)
        self._passes.add(now - begun)

    def _window(self) -> tuple[int, int]:
        """From when to when after its submission a pass leaves room for seeing, in ns: it is over
        when the pass is, and the host has the time before the answer is there."""
        whole, look, host = self._passes.usual, self._looks.usual, self._sight.host.usual
        if whole is None or look is None or host is None:
            return 0, -1
        return max(0, whole - max(look, host)), whole - host

    def _try(self, observation: Observation, clock: Clock) -> None:
        """What is wrong with a frame is said when it is asked for, not to who asked for another."""
        try:
            self._sight.look_ahead(observation, clock)
        except Exception:
            self._sight.drop()
