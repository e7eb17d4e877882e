"""Real time: the world takes a step every control period, whether or not a command came.

Periods are those of the steady clock, stamps are wall time; a late command costs success. Between
episodes the world stands still, and its camera goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vla_ros.core import Image
from vla_ros.sim.env import SimObservation
from vla_ros.sim.episode.body import Body, Outcome
from vla_ros.sim.episode.desk import Desk
from vla_ros.sim.episode.state import EpisodeOptions, EpisodeView, Outlet
from vla_ros.timing import SECOND, Clock

_JUDGED_STEPS = 20  # before the rate that was reached says something
_KEEPS_UP = 0.9  # part of the control rate that counts as keeping up


class Realtime:
    """See the module's text."""

    def __init__(
        self, desk: Desk, body: Body, outlet: Outlet, clock: Clock, options: EpisodeOptions
    ) -> None:
        self._desk = desk
        self._body = body
        self._outlet = outlet
        self._clock = clock
        rate_hz = desk.spec.control_rate_hz
        self._period_ns = round(SECOND / rate_hz)
        self._steps_per_image = max(1, round(rate_hz / (options.camera_rate_hz or rate_hz)))
        self._images: Mapping[str, Image] = {}  # the last that were rendered

    def now_ns(self) -> int:
        """Wall time."""
        return self._clock.now_ns()

    def announce(self) -> None:
        """Another episode comes: time passes by itself."""

    def judge(self, view: EpisodeView) -> str:
        """What to say of a running episode: whether a step takes longer than the robot has."""
        wanted = self._desk.spec.control_rate_hz
        if view.step < _JUDGED_STEPS or view.achieved_rate_hz >= _KEEPS_UP * wanted:
            return ""
        return (
            f"the simulation cannot keep up: {view.achieved_rate_hz:.1f} instead of {wanted:g}"
            " steps a second; lower image_size or camera_rate_hz, or use lockstep"
        )

    def play(self, stamp_ns: int, observation: SimObservation) -> Outcome:
        """From the first frame to the end of the episode. Interrupted."""
        self._show(stamp_ns, observation)
        due = self._clock.steady_ns() + self._period_ns
        count = 0
        while True:
            self._desk.sleep_until(due)
            began = self._clock.steady_ns()
            late_ns = began - due
            if late_ns > self._period_ns / 2:
                self._desk.count(late=1)
            # A world that fell behind does not catch up: time lost is lost.
            due = (due if late_ns < self._period_ns else began) + self._period_ns
            stamp_ns, count = self._clock.now_ns(), count + 1
            render = count % self._steps_per_image == 0
            step, outcome = self._body.step(self._desk.take(stamp_ns), render)
            self._show(stamp_ns, step.observation)
            if outcome is not None:
                return outcome

    def rest(self, seen: SimObservation | None, pause_s: float | None) -> None:
        """Between episodes, until ``pause_s`` are over; None: until Interrupted.

        The world stands still and is shown on, at the camera's rate: a robot's camera does not
        stop because a task is done, and one that stops is a fault to whoever watches it.
        """
        if pause_s is None and seen is None:
            return
        due = self._clock.steady_ns()
        end = float("inf") if pause_s is None else due + pause_s * SECOND
        while due < end:
            due += self._period_ns * self._steps_per_image
            self._desk.sleep_until(round(min(due, end)))
            if seen is not None:
                still = replace(seen, images=self._images)
                self._outlet.observation(self._clock.now_ns(), still)

    def _show(self, stamp_ns: int, observation: SimObservation) -> None:
        self._images = observation.images or self._images
        self._outlet.observation(stamp_ns, observation)
