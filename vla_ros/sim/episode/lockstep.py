"""Lock-step: a frame is shown, its answer is awaited, the world takes one step.

Time is the world's own and stands still meanwhile, so an episode is the same however long the
policy takes. A frame without an answer is shown again; after a few times the episode is given up.
"""

from __future__ import annotations

from collections import deque

from vla_ros.core import Command
from vla_ros.sim.env import SimObservation
from vla_ros.sim.episode.body import Body, Outcome
from vla_ros.sim.episode.desk import Desk
from vla_ros.sim.episode.state import EpisodeOptions, EpisodeState, EpisodeView, Outlet
from vla_ros.timing import SECOND, Clock

SIM_START_NS = SECOND  # a stamp of zero would mean "no stamp"
MAX_RESENDS = 5
_REMEMBERED = 20  # answers whose times say how long the next may take


class _Unanswered(Exception):
    """The text says which frame."""


class Lockstep:
    """See the module's text. Lives as long as its runner: its time never goes back."""

    def __init__(
        self, desk: Desk, body: Body, outlet: Outlet, clock: Clock, options: EpisodeOptions
    ) -> None:
        self._desk = desk
        self._body = body
        self._outlet = outlet
        self._clock = clock
        self._least_wait_s = options.answer_timeout_s
        self._period_ns = round(SECOND / desk.spec.control_rate_hz)
        self._answer_times: deque[float] = deque(maxlen=_REMEMBERED)
        self._now_ns = SIM_START_NS

    def now_ns(self) -> int:
        """Simulated time."""
        return self._now_ns

    def announce(self) -> None:
        """Another episode comes. Time passes now, so that it has everywhere when a frame comes."""
        self._tick()

    def judge(self, view: EpisodeView) -> str:
        """Nothing to say: the world waits for everybody."""
        return view.reason

    def play(self, stamp_ns: int, observation: SimObservation) -> Outcome:
        """From the first frame to the end of the episode. Interrupted."""
        while True:
            try:
                command = self._answer(observation)
            except _Unanswered as error:
                return Outcome(EpisodeState.FAILURE, str(error), observation)
            step, outcome = self._body.step(command)
            self._tick()
            observation = step.observation
            if outcome is not None:
                self._outlet.observation(self._now_ns, observation)
                return outcome

    def rest(self, seen: SimObservation | None, pause_s: float | None) -> None:
        """Between episodes time stands still: there is nothing to show and nothing to wait for."""

    def _tick(self) -> None:
        self._now_ns += self._period_ns
        self._outlet.clock(self._now_ns)

    def _answer(self, observation: SimObservation) -> Command | None:
        """Show the frame until its answer comes."""
        self._desk.expect_answer(self._now_ns)
        shown_ns = self._clock.steady_ns()
        for attempt in range(MAX_RESENDS + 1):
            if attempt:
                self._desk.count(resends=1)
                self._outlet.clock(self._now_ns)
            self._outlet.observation(self._now_ns, observation)
            slowest = max(self._answer_times, default=0.0)
            if self._desk.await_answer(max(2 * slowest, self._least_wait_s)):
                self._answer_times.append((self._clock.steady_ns() - shown_ns) / SECOND)
                return self._desk.take(self._now_ns)
        step = self._desk.view().step
        reason = f"no answer to the frame of step {step} after {MAX_RESENDS} resends"
        if rejection := self._desk.last_rejection:
            reason += f"; the last command was rejected: {rejection}"
        raise _Unanswered(reason)
