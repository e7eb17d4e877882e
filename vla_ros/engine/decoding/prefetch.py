"""Encoding of observations, and prefetch: the next frame encoded while a pass still runs.

A pass waits for weights and products, vision for launches and the host: beside each other they
take less than in turn. But observations must not get older by it. So the next frame is encoded
*just in time*: as late in the pass as preprocessing and vision just fit, the newest frame then; and
if a newer one has come when the pass is done, that one is taken and what was encoded is dropped.
Every action rests on the frame that it would rest on without prefetch, or on a newer one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from vla_ros.core.clock import MS, Clock
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine.layers.devices import Apart
from vla_ros.engine.layers.request import Pending, StageTimer
from vla_ros.engine.models.openvla import VLAModel

#: the newest frame that waits under the instruction of now, None where there is none
Newest = Callable[[], Observation | None]
#: pixels [images, 3, s, s] per vision tower
Prepare = Callable[[Observation], tuple[torch.Tensor, ...]]

_REMEMBERED = 9  # durations, of which the median counts
_ENOUGH = 3


@dataclass(frozen=True, slots=True)
class Encoded:
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


class ObservationEncoder:
    """Preprocessing and vision. ``beside``: on a stream of their own, beside all else.

    Then all encoding is there, one frame behind the other: it has buffers that only one frame at a
    time can use.
    """

    def __init__(self, model: VLAModel, prepare: Prepare, beside: bool) -> None:
        self._model, self._prepare = model, prepare
        self.apart = Apart(model.device) if beside else None
        self._prefetched: Encoded | None = None
        self.host = Durations()  # how long the caller is busy with a frame

    def encode(self, observation: Observation, timeline: Timeline, clock: Clock) -> Encoded:
        """What is known of the frame, encoded now or before; usable on the current stream.

        Its timeline is the given one, with preprocess and vision; of a prefetched
        frame its own, in which the wait for the pass counts as queue.
        """
        ready, self._prefetched = self._prefetched, None
        if ready is not None and ready.observation is observation:
            self._join(ready)
            ready.stages.mark("queue")
            return ready
        encoded = self._encode(observation, timeline, clock, behind=True)
        self._join(encoded)
        return encoded

    def prefetch(self, observation: Observation, clock: Clock) -> None:
        """Encode a frame that may be asked for next, beside what the device does."""
        timeline = Timeline(observation.received_steady_ns).mark("queue", clock.steady_ns())
        self._prefetched = self._encode(observation, timeline, clock, behind=False)

    def drop(self) -> None:
        """Forget what was prefetched."""
        self._prefetched = None

    def _encode(
        self, observation: Observation, timeline: Timeline, clock: Clock, behind: bool
    ) -> Encoded:
        def run() -> Encoded:
            stages = StageTimer(timeline, clock, self._model.device)
            pixels = self._prepare(observation)
            stages.mark("preprocess")
            features = self._model.features(pixels)
            patches = self._model.project(features)
            stages.mark("vision")
            return Encoded(observation, stages, pixels, features, patches)

        begun = clock.steady_ns()
        encoded = run() if self.apart is None else self.apart.run(run, behind)
        self.host.add(clock.steady_ns() - begun)
        return encoded

    def _join(self, encoded: Encoded) -> None:
        if self.apart is not None:
            self.apart.join((*encoded.pixels, encoded.features, encoded.patches))


class Prefetcher:
    """Waits for a pass, and has the next frame encoded meanwhile, just in time."""

    def __init__(self, encoder: ObservationEncoder) -> None:
        self._encoder = encoder
        self._newest: Newest | None = None
        self._passes, self._looks = Durations(), Durations()

    def watch(self, newest: Newest) -> None:
        """Ask this for frames from now on."""
        self._newest = newest

    def learn(self, timeline: Timeline) -> None:
        """How long encoding takes, of an answer's timeline."""
        spent = timeline.durations_ms()
        self._looks.add(round((spent.get("preprocess", 0.0) + spent.get("vision", 0.0)) * MS))

    def meanwhile(self, pending: Pending, clock: Clock) -> None:
        """Return when the answer is there. Where there is nothing to do meanwhile, at once.

        Looks again and again, as torch's own wait for the device does.
        """
        if self._encoder.apart is None or pending.arrived():
            return
        since, until = self._window()
        begun = now = clock.steady_ns()
        while not pending.arrived():
            now = clock.steady_ns()
            if self._newest is None or not since <= now - begun <= until:
                continue
            observation = self._newest()
            if observation is not None:
                until = -1  # one a pass
                self._try(observation, clock)
        self._passes.add(now - begun)

    def _window(self) -> tuple[int, int]:
        """From when to when after its submission a pass leaves room for encoding, in ns: it is over
        when the pass is, and the host has the time before the answer is there."""
        whole, look, host = self._passes.usual, self._looks.usual, self._encoder.host.usual
        if whole is None or look is None or host is None:
            return 0, -1
        return max(0, whole - max(look, host)), whole - host

    def _try(self, observation: Observation, clock: Clock) -> None:
        """What is wrong with a frame is said when it is asked for, not to who asked for another."""
        try:
            self._encoder.prefetch(observation, clock)
        except Exception:
            self._encoder.drop()
