"""Episodes of a simulated robot under somebody's commands, in lock-step or real time.

Everything the simulation bridge does, without ROS: an :class:`EpisodeRunner` drives the
environment, takes commands and shows what happens through an
:class:`vla_ros.sim.episode_state.Outlet`.

Lock-step: a frame is shown, its answer is awaited, the world takes one step. A frame that
is not answered is shown again; after a few times the episode is aborted.
Real time: the world takes a step every control period of the steady clock whether or not a
command came, so a late command costs success.

Threads: :meth:`EpisodeRunner.run` is the environment's thread and the only one that touches
it; everything else may be called from any thread. Outlet calls are made without the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

from vla_ros.core import GRIPPER, Command, CommandKind
from vla_ros.sim.commands import OPEN, CommandCounts, CommandInbox, environment_action
from vla_ros.sim.env import Environment, SimError, SimObservation, SimStep
from vla_ros.sim.episode_state import (
    EpisodeOptions,
    EpisodeRequest,
    EpisodeState,
    EpisodeView,
    Mode,
    Outlet,
)
from vla_ros.timing import SECOND, Clock

SIM_START_NS = SECOND  # lock-step: a stamp of zero would mean "no stamp"
MAX_RESENDS = 5
_JUDGED_STEPS = 20  # real time: steps before the rate that was reached says something
_KEEPS_UP = 0.9  # part of the control rate that counts as keeping up
_MAX_LOSSES = 3  # simulations lost in a row before auto_reset gives up


class _Ended(Exception):
    """The episode is over; carries its outcome."""

    def __init__(self, state: EpisodeState, reason: str = "") -> None:
        self.state, self.reason = state, reason


class _Interrupted(Exception):
    """Another episode was asked for, or the end."""


class EpisodeRunner:
    """See the module's text. Begin with :meth:`request`, then let a thread :meth:`run`."""

    def __init__(
        self,
        environment: Environment,
        outlet: Outlet,
        clock: Clock,
        first: EpisodeRequest,
        options: EpisodeOptions | None = None,
    ) -> None:
        self._environment = environment
        self.spec = environment.spec
        self.options = options or EpisodeOptions()
        self._outlet = outlet
        self._clock = clock
        self._period_ns = round(SECOND / self.spec.control_rate_hz)
        self._bell = threading.Condition()
        self._inbox = CommandInbox()
        self._stopped = False
        self._answer_times: deque[float] = deque(maxlen=20)
        self._losses = 0
        self._sim_ns = SIM_START_NS
        self._began_ns = 0
        self._gripper = OPEN
        self._next: EpisodeRequest | None = None
        self._view = self._fresh_view(first, 0)

    @property
    def lockstep(self) -> bool:
        return self.options.mode is Mode.LOCKSTEP

    # ------------------------------------------------------------------ from any thread

    def request(self, request: EpisodeRequest) -> int:
        """End the running episode and begin this one; returns its number.

        UnknownTask: there is no such task or initial state; the running episode goes on.
        """
        task = self.spec.task(request.task)
        self.spec.check_initial_state(task, request.initial_state)
        request = replace(request, task=task.name)  # it may have been asked for by an alias
        with self._bell:
            self._next = request
            self._inbox.end()
            self._inbox.counters = CommandCounts()
            self._view = self._fresh_view(request, self._view.episode + 1)
            self._bell.notify_all()
            return self._view.episode

    def offer(self, command: Command) -> None:
        """A command arrived."""
        with self._bell:
            reason = self._inbox.offer(command, self._now_ns())
            self._bell.notify_all()
        if reason:
            self._outlet.rejected(reason)

    def refuse(self, reason: str) -> None:
        """A message arrived that is no command at all."""
        with self._bell:
            self._inbox.count(rejected=1)
        self._outlet.rejected(reason)

    def view(self) -> EpisodeView:
        """The episode as it stands now."""
        with self._bell:
            view = replace(self._view, counters=self._inbox.counters)
            if view.state is EpisodeState.RUNNING and view.step:
                wall = (self._clock.steady_ns() - self._began_ns) / SECOND
                view = replace(view, achieved_rate_hz=view.step / wall)
                if not self.lockstep and view.step >= _JUDGED_STEPS:
                    view = replace(view, reason=self._slowness(view.achieved_rate_hz))
            return view

    def _slowness(self, rate_hz: float) -> str:
        """Real time: what to say when the world takes longer for a step than the robot has."""
        wanted = self.spec.control_rate_hz
        if rate_hz >= _KEEPS_UP * wanted:
            return ""
        return (
            f"the simulation cannot keep up: {rate_hz:.1f} instead of {wanted:g} steps a second;"
            " lower image_size or camera_rate_hz, or use lockstep"
        )

    def following(self) -> EpisodeRequest:
        """The request for the same task in its next initial state, the first after the last."""
        request = self.view().request
        count = self.spec.task(request.task).initial_states
        return replace(request, initial_state=(request.initial_state + 1) % count)

    def stop(self) -> None:
        """Let :meth:`run` return; it finishes the step it is in."""
        with self._bell:
            self._stopped = True
            self._bell.notify_all()

    # ------------------------------------------------------------------ the runner's thread

    def run(self) -> None:
        """Run episode after episode as requested, until :meth:`stop`."""
        while True:
            with self._bell:
                self._bell.wait_for(lambda: self._next is not None or self._stopped)
                if self._stopped:
                    return
                request, self._next = self._next, None
                assert request is not None
            try:
                self._run_episode(request)
            except _Interrupted:
                continue
            except _Ended as end:
                self._losses = 0
                self._finish(end.state, end.reason)
            except Exception as error:  # the edge of the thread: the next episode may go well
                self._losses += 1
                known = isinstance(error, SimError)
                reason = str(error) if known else f"{type(error).__name__}: {error}"
                self._finish(EpisodeState.FAILURE, reason)

    def _run_episode(self, request: EpisodeRequest) -> None:
        self._outlet.changed(self.view())
        self._gripper = OPEN
        if self.lockstep:  # early, so that time has passed everywhere when the frame comes
            self._sim_ns += self._period_ns
            self._outlet.clock(self._sim_ns)
        observation = self._environment.reset(request.task, request.initial_state, request.seed)
        with self._bell:
            self._check_interrupted()
            self._view = replace(self._view, reason="waits for the policy")
        self._outlet.changed(self.view())
        self._outlet.begin(self._view.instruction, self._interrupted)
        with self._bell:
            self._check_interrupted()
            stamp = self._now_ns()
            self._inbox.begin(stamp, self.lockstep)
            self._began_ns = self._clock.steady_ns()
            self._view = replace(self._view, state=EpisodeState.RUNNING, reason="")
        self._outlet.changed(self.view())
        if self.lockstep:
            self._run_lockstep(observation)
        else:
            self._run_realtime(stamp, observation)

    def _finish(self, state: EpisodeState, reason: str) -> None:
        with self._bell:
            if self._interrupted():
                return
            view = self.view()
            self._view = replace(
                self._view, state=state, reason=reason, achieved_rate_hz=view.achieved_rate_hz
            )
            self._inbox.end()
        self._outlet.changed(self.view())
        if self.options.auto_reset and self._losses < _MAX_LOSSES:
            self.request(self.following())

    def _run_lockstep(self, observation: SimObservation) -> None:
        while True:
            command = self._answer(observation)
            step = self._step(command, render=True)
            self._sim_ns += self._period_ns
            self._outlet.clock(self._sim_ns)
            observation = step.observation
            self._judge(self._sim_ns, step)

    def _answer(self, observation: SimObservation) -> Command | None:
        """Show the frame until its answer comes."""
        stamp = self._sim_ns
        with self._bell:
            self._inbox.await_answer(stamp)
        shown_ns = self._clock.steady_ns()
        for attempt in range(MAX_RESENDS + 1):
            if attempt:
                with self._bell:
                    self._inbox.count(resends=1)
                self._outlet.clock(stamp)
            self._outlet.observation(stamp, observation)
            slowest = max(self._answer_times, default=0.0)
            patience_s = max(2 * slowest, self.options.answer_timeout_s)
            with self._bell:
                self._bell.wait_for(lambda: self._inbox.answered or self._interrupted(), patience_s)
                self._check_interrupted()
                if self._inbox.answered:
                    waited_ns = self._clock.steady_ns() - shown_ns
                    self._answer_times.append(waited_ns / SECOND)
                    return self._inbox.take(stamp)
        reason = f"no answer to the frame of step {self._view.step} after {MAX_RESENDS} resends"
        if self._inbox.last_rejection:
            reason += f"; the last command was rejected: {self._inbox.last_rejection}"
        raise _Ended(EpisodeState.FAILURE, reason)

    def _run_realtime(self, stamp: int, observation: SimObservation) -> None:
        self._outlet.observation(stamp, observation)
        camera = self.options.camera_rate_hz or self.spec.control_rate_hz
        every = max(1, round(self.spec.control_rate_hz / camera))
        due = self._clock.steady_ns() + self._period_ns
        while True:
            self._sleep_until(due)
            began = self._clock.steady_ns()
            late_ns = began - due
            with self._bell:
                stamp = self._now_ns()
                command = self._inbox.take(stamp)
                if late_ns > self._period_ns / 2:
                    self._inbox.count(late=1)
            # A world that fell behind does not catch up: time lost is lost.
            due = due + self._period_ns if late_ns < self._period_ns else began + self._period_ns
            render = (self._view.step + 1) % every == 0
            self._judge(stamp, self._step(command, render))

    def _step(self, command: Command | None, render: bool) -> SimStep:
        action = environment_action(command, self._gripper, self.spec)
        step = self._environment.step(action, render)
        moved = command is not None and command.kind is CommandKind.POLICY
        if command is not None and moved:
            self._gripper = float(command.action[GRIPPER])
        with self._bell:
            self._check_interrupted()  # the counts and the view are the next episode's by now
            self._inbox.count(applied=int(moved), idle=int(not moved))
            self._view = replace(self._view, step=self._view.step + 1)
        return step

    def _judge(self, stamp: int, step: SimStep) -> None:
        """Show the observation in real time, the last one always; end what is over."""
        limit = self._view.max_steps
        over = step.done or self._view.step >= limit
        if over:
            with self._bell:
                self._inbox.end()  # the answer to the last frame is too late, and no fault
        if over or not self.lockstep:
            self._outlet.observation(stamp, step.observation)
        if step.success:
            raise _Ended(EpisodeState.SUCCESS)
        if step.done:
            raise _Ended(EpisodeState.FAILURE, "the task can no longer be solved")
        if over:
            raise _Ended(EpisodeState.FAILURE, f"not solved within {limit} steps")

    def _sleep_until(self, steady_ns: int) -> None:
        with self._bell:
            while not self._interrupted():
                left_ns = steady_ns - self._clock.steady_ns()
                if left_ns <= 0:
                    return
                self._bell.wait_for(self._interrupted, left_ns / SECOND)
            raise _Interrupted

    # ------------------------------------------------------------------ small things

    def _fresh_view(self, request: EpisodeRequest, episode: int) -> EpisodeView:
        task = self.spec.task(request.task)
        return EpisodeView(
            state=EpisodeState.RESETTING,
            request=request,
            instruction=request.told(task.instruction),
            episode=episode,
            step=0,
            max_steps=request.max_steps or task.max_steps,
            achieved_rate_hz=0.0,
            counters=CommandCounts(),
        )

    def _now_ns(self) -> int:
        return self._sim_ns if self.lockstep else self._clock.now_ns()

    def _interrupted(self) -> bool:
        return self._stopped or self._next is not None

    def _check_interrupted(self) -> None:
        if self._interrupted():
            raise _Interrupted
