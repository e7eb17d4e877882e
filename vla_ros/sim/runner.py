"""One episode after another, in lock-step or in real time: the simulation bridge without ROS.

Lock-step: a frame is shown, its answer is awaited, the world takes one step. Time is the world's
own and stands still meanwhile, so an episode is the same however long the policy takes. A frame
without an answer is shown again; after a few times the episode is given up.

Real time: the world takes a step every control period, whether or not a command came. Periods are
those of the steady clock, stamps are wall time; a late command costs success. Its camera has a rate
of its own. Between episodes the world stands still, and its camera goes on.

:meth:`EpisodeRunner.run` is the environment's thread and the only one that touches it; the runner's
other methods, and a pace's ``now_ns`` and ``judge``, may be called from any. Sink calls are made
without the lock.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from vla_ros.core.clock import SECOND, Clock
from vla_ros.core.types import Command, Image
from vla_ros.sim.env import Environment, SimError, SimObservation
from vla_ros.sim.episode import (
    EpisodeOptions,
    EpisodeOutcome,
    EpisodeRequest,
    EpisodeRequests,
    EpisodeSink,
    EpisodeState,
    EpisodeView,
    EpisodeWorld,
    Interrupted,
    Mode,
)

SIM_START_NS = SECOND  # a stamp of zero would mean "no stamp"
MAX_RESENDS = 5
_REMEMBERED = 20  # answers whose times say how long the next may take


class _Unanswered(Exception):
    """No answer to a frame, which the text names."""


class Lockstep:
    """Pace of a world that takes a step when the frame was answered. Lives as long as its runner:
    its time never goes back."""

    def __init__(
        self,
        requests: EpisodeRequests,
        world: EpisodeWorld,
        sink: EpisodeSink,
        clock: Clock,
        options: EpisodeOptions,
    ) -> None:
        self._requests = requests
        self._world = world
        self._sink = sink
        self._clock = clock
        self._least_wait_s = options.answer_timeout_s
        self._period_ns = round(SECOND / requests.spec.control_rate_hz)
        self._answer_times: deque[float] = deque(maxlen=_REMEMBERED)
        self._now_ns = SIM_START_NS

    def now_ns(self) -> int:
        """Simulated time."""
        return self._now_ns

    def announce(self) -> None:
        """Before another episode: let time pass now, so that it has everywhere when a frame
        comes."""
        self._tick()

    def judge(self, view: EpisodeView) -> str:
        """The view's own reason: the world waits for every step."""
        return view.reason

    def play(self, stamp_ns: int, observation: SimObservation) -> EpisodeOutcome:
        """Play from the first frame to the end of the episode. Interrupted."""
        while True:
            try:
                command = self._answer(observation)
            except _Unanswered as error:
                return EpisodeOutcome(EpisodeState.FAILURE, str(error), observation)
            step, outcome = self._world.step(command)
            self._tick()
            observation = step.observation
            if outcome is not None:
                self._sink.observation(self._now_ns, observation)
                return outcome

    def rest(self, last: SimObservation | None, pause_s: float | None) -> None:
        """Rest between episodes: time stands still, there is nothing to publish or to wait for."""

    def _tick(self) -> None:
        self._now_ns += self._period_ns
        self._sink.clock(self._now_ns)

    def _answer(self, observation: SimObservation) -> Command | None:
        """The answer to a frame, which is published until it comes."""
        self._requests.expect_answer(self._now_ns)
        published_ns = self._clock.steady_ns()
        for attempt in range(MAX_RESENDS + 1):
            if attempt:
                self._requests.count(resends=1)
                self._sink.clock(self._now_ns)
            self._sink.observation(self._now_ns, observation)
            slowest = max(self._answer_times, default=0.0)
            if self._requests.await_answer(max(2 * slowest, self._least_wait_s)):
                self._answer_times.append((self._clock.steady_ns() - published_ns) / SECOND)
                return self._requests.take(self._now_ns)
        step = self._requests.view().control_steps
        reason = f"no answer to the frame of step {step} after {MAX_RESENDS} resends"
        if rejection := self._requests.last_rejection:
            reason += f"; the last command was rejected: {rejection}"
        raise _Unanswered(reason)


_JUDGED_ACTIONS = 20  # before the rate that was reached is judged
_KEEPS_UP = 0.9  # part of the control rate that counts as keeping up


class Realtime:
    """Pace of a world that takes a step every control period."""

    def __init__(
        self,
        requests: EpisodeRequests,
        world: EpisodeWorld,
        sink: EpisodeSink,
        clock: Clock,
        options: EpisodeOptions,
    ) -> None:
        self._requests = requests
        self._world = world
        self._sink = sink
        self._clock = clock
        spec = requests.spec
        self._period_ns = round(SECOND / spec.control_rate_hz)
        camera_hz = options.camera_rate_hz or spec.action_rate_hz
        self._images_a_step = min(1.0, camera_hz / spec.control_rate_hz)
        self._shown: Mapping[str, Image] = {}  # the images that were rendered last

    def now_ns(self) -> int:
        """Wall time."""
        return self._clock.now_ns()

    def announce(self) -> None:
        """Before another episode: time passes by itself."""

    def judge(self, view: EpisodeView) -> str:
        """Reason of a running episode where a step takes longer than a control period."""
        wanted = self._requests.spec.control_rate_hz
        if view.step < _JUDGED_ACTIONS or view.achieved_rate_hz >= _KEEPS_UP * wanted:
            return ""
        return (
            f"the simulation cannot keep up: {view.achieved_rate_hz:.1f} instead of {wanted:g}"
            " steps a second; lower image_size or camera_rate_hz, or use lockstep"
        )

    def play(self, stamp_ns: int, observation: SimObservation) -> EpisodeOutcome:
        """Play from the first frame to the end of the episode. Interrupted."""
        self._publish(stamp_ns, observation)
        due = self._clock.steady_ns() + self._period_ns
        count = 0
        while True:
            self._requests.sleep_until(due)
            began = self._clock.steady_ns()
            late_ns = began - due
            if late_ns > self._period_ns / 2:
                self._requests.count(late=1)
            # A world that fell behind does not catch up: time lost is lost.
            due = (due if late_ns < self._period_ns else began) + self._period_ns
            stamp_ns, count = self._clock.now_ns(), count + 1
            render = self._images(count) > self._images(count - 1)
            step, outcome = self._world.step(self._requests.take(stamp_ns), render)
            self._publish(stamp_ns, step.observation)
            if outcome is not None:
                return outcome

    def rest(self, last: SimObservation | None, pause_s: float | None) -> None:
        """Rest between episodes, until ``pause_s`` are over; None: until Interrupted.

        The world stands still and its last observation goes on, at the camera's rate: a robot's
        camera does not stop because a task is done, and a policy takes one that stops for a fault.
        """
        if pause_s is None and last is None:
            return
        due = self._clock.steady_ns()
        end = float("inf") if pause_s is None else due + pause_s * SECOND
        while due < end:
            due += round(self._period_ns / self._images_a_step)
            self._requests.sleep_until(round(min(due, end)))
            if last is not None:
                still = replace(last, images=self._shown)
                self._sink.observation(self._clock.now_ns(), still)

    def _images(self, steps: int) -> int:
        """Images that so many control steps have."""
        return math.floor(steps * self._images_a_step + 1e-6)

    def _publish(self, stamp_ns: int, observation: SimObservation) -> None:
        self._shown = observation.images or self._shown
        self._sink.observation(stamp_ns, observation)


_MAX_LOSSES = 3  # simulations lost in a row before auto_reset gives up


class EpisodeRunner:
    """Runner of episodes as they are requested. Begin with :meth:`request`, then let a thread
    :meth:`run`."""

    def __init__(
        self,
        environment: Environment,
        sink: EpisodeSink,
        clock: Clock,
        first: EpisodeRequest,
        options: EpisodeOptions | None = None,
    ) -> None:
        self.spec = environment.spec
        self.options = options or EpisodeOptions()
        self._sink = sink
        self._requests = EpisodeRequests(self.spec, clock, first)
        self._world = EpisodeWorld(environment, self._requests)
        self._lockstep = self.options.mode is Mode.LOCKSTEP
        pace: type[Lockstep | Realtime] = Lockstep if self._lockstep else Realtime
        self._pace = pace(self._requests, self._world, sink, clock, self.options)
        self._losses = 0

    # From any thread

    def request(self, request: EpisodeRequest) -> int:
        """End the running episode and begin this one; returns its number.

        UnknownTask: there is no such task or initial state; the running episode goes on.
        """
        return self._requests.request(request)

    def offer(self, command: Command) -> None:
        """Take in a command."""
        if reason := self._requests.offer(command, self._pace.now_ns()):
            self._sink.rejected(reason)

    def refuse(self, reason: str) -> None:
        """Count and report a message that is no command at all."""
        self._requests.count(rejected=1)
        self._sink.rejected(reason)

    def view(self) -> EpisodeView:
        """The episode as it stands now."""
        view = self._requests.view()
        if view.state is EpisodeState.RUNNING and view.control_steps:
            return replace(view, reason=self._pace.judge(view))
        return view

    def following(self) -> EpisodeRequest:
        """The request for the same task in its next initial state, the first after the last."""
        request = self.view().request
        count = self.spec.task(request.task).initial_states
        return replace(request, initial_state=(request.initial_state + 1) % count)

    def stop(self) -> None:
        """Let :meth:`run` return; it finishes the step it is in."""
        self._requests.stop()

    # The runner's thread

    def run(self) -> None:
        """Run episode after episode as requested, until :meth:`stop`."""
        while (request := self._requests.await_request()) is not None:
            with contextlib.suppress(Interrupted):
                self._finish(self._outcome(request))

    def _outcome(self, request: EpisodeRequest) -> EpisodeOutcome:
        """Outcome of an episode; an exception is its failure. Interrupted."""
        try:
            outcome = self._play(request)
        except Interrupted:
            raise
        except Exception as error:  # the edge of the thread: the next episode may go well
            self._losses += 1
            known = isinstance(error, SimError)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            return EpisodeOutcome(EpisodeState.FAILURE, reason)
        self._losses = 0
        return outcome

    def _play(self, request: EpisodeRequest) -> EpisodeOutcome:
        self._sink.changed(self.view())
        self._pace.announce()
        observation = self._world.reset(request)
        self._requests.explain("waits for the policy")
        self._sink.changed(self.view())
        self._sink.begin(self._requests.view().instruction, self._requests.interrupted)
        stamp_ns = self._pace.now_ns()
        self._requests.begin(stamp_ns, self._lockstep)
        self._sink.changed(self.view())
        return self._pace.play(stamp_ns, observation)

    def _finish(self, outcome: EpisodeOutcome) -> None:
        """Publish how it ended, and begin the next one where that comes by itself."""
        again = self.options.auto_reset and self._losses < _MAX_LOSSES
        pause_s = (0.0 if self._lockstep else self.options.reset_pause_s) if again else None
        self._requests.finish(outcome.state, outcome.reason, pause_s)
        self._sink.changed(self.view())
        self._pace.rest(outcome.last, pause_s)
        if again:
            self._requests.follow(self.following())
