"""Real time: the world takes a step every control period, whether or not a command came.

Periods are those of the steady clock, stamps are wall time; a late command costs success.
"""

from __future__ import annotations

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
        self._outlet.observation(stamp_ns, observation)
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
            self._outlet.observation(stamp_ns, step.observation)
            if outcome is not None:
                return outcome
