"""Episodes of a simulated robot under somebody's commands, in lock-step or real time. No ROS.

:class:`EpisodeRequests`: what the threads share. :class:`EpisodeWorld`: commands become motion.
:class:`Lockstep`, :class:`Realtime`: when the world takes its steps; the episode's thread uses
them, ``now_ns`` and ``judge`` may be called from any. :class:`EpisodeRunner`: one episode after
another.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Protocol

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core.clock import MS, SECOND, Clock
from vla_ros.core.types import ACTION_DIM, GRIPPER, Command, CommandKind, Floats, Image
from vla_ros.sim.env import Environment, EnvSpec, SimError, SimObservation, SimStep

__all__ = ["EpisodeRunner"]


# Which commands a simulated robot executes, and how often: each at most once.
#
# The consumer's side of the command contract, without ROS. A command is refused when it is no
# action, when its time has passed, or when it belongs to an earlier episode; of two that come
# between two steps the newer one counts, and the loss of the older one is counted.


OPEN = 1.0  # gripper entry of a command


@dataclass(frozen=True, slots=True)
class CommandCounts:
    """Counts of one episode, as EpisodeStatus.msg explains them."""

    applied: int = 0
    idle: int = 0
    rejected: int = 0
    superseded: int = 0  # real time: replaced by a newer command before a step executed it
    late: int = 0
    resends: int = 0


def environment_action(command: Command | None, gripper: float, spec: EnvSpec) -> Floats:
    """What an environment of end-effector deltas executes: float64 [7] in [-1, 1].

    Only a POLICY command moves the arm; without one it stands still and the gripper stays
    as it was last told, ``gripper`` (0 closed to 1 open).
    """
    action = np.zeros(ACTION_DIM)
    if command is not None and command.kind.moves:
        action[:3] = command.action[:3] / spec.position_scale
        action[3:6] = command.action[3:6] / spec.rotation_scale
        gripper = opening_of(command, GRIPPER, gripper)
    action[GRIPPER] = 1.0 - 2.0 * gripper
    return np.clip(action, -1.0, 1.0)


def opening_of(command: Command, place: int, before: float) -> float:
    """A gripper's opening as a command has it; NaN leaves it as it was ``before``."""
    opening = float(command.action[place])
    return before if np.isnan(opening) else opening


class CommandInbox:
    """Commands between their arrival and the step that executes them.

    Not thread-safe: the episode's lock guards it. Rejections and losses are counted in
    ``counters`` while an episode runs; outside of one everything is ignored.
    """

    def __init__(self, space: ActionSpace = END_EFFECTOR_DELTA) -> None:
        self._space = space
        self.counters = CommandCounts()
        self.last_rejection = ""
        self._running = False
        self._start_ns = 0
        self._awaited_ns: int | None = None  # lock-step: the frame whose answer is missing
        self._lockstep = False
        self._pending: Command | None = None
        self._last = (0, -1)  # publication stamp and sequence of the newest command seen

    def begin(self, start_ns: int, lockstep: bool) -> None:
        """A new episode whose first observation is stamped ``start_ns``."""
        self.counters = CommandCounts()
        self.last_rejection = ""
        self._running, self._start_ns, self._lockstep = True, start_ns, lockstep
        self._awaited_ns = self._pending = None

    def end(self) -> None:
        """No further command counts."""
        self._running = False
        self._awaited_ns = self._pending = None

    def await_answer(self, stamp_ns: int) -> None:
        """Lock-step: from now on only the answer to the frame of that stamp is taken."""
        self._awaited_ns, self._pending = stamp_ns, None

    @property
    def answered(self) -> bool:
        """Whether a command waits to be taken."""
        return self._pending is not None

    def count(self, **changes: int) -> None:
        """Add to counters: ``count(late=1)``."""
        added = {name: getattr(self.counters, name) + more for name, more in changes.items()}
        self.counters = replace(self.counters, **added)

    def offer(self, command: Command, now_ns: int) -> str:
        """Take in a command that arrived at ``now_ns``; returns why it was rejected, or ''."""
        if not self._running:
            return ""
        reason = self._fault(command, now_ns)
        if reason:
            return self._reject(command, reason)
        self._last = (command.published_ns, command.sequence)
        waiting = self._pending
        moving = waiting is not None and waiting.kind.moves
        if moving and command.kind is CommandKind.HELD:
            return ""  # "nothing new": what waits is still to be executed
        if moving:
            self.count(superseded=1)
        self._pending = command
        self._awaited_ns = None
        return ""

    def take(self, now_ns: int) -> Command | None:
        """The command to execute now, if there is one that is still valid."""
        command, self._pending = self._pending, None
        if command is not None and (reason := _expired(command, now_ns)):
            self._reject(command, reason)
            return None
        return command

    def _fault(self, command: Command, now_ns: int) -> str:
        if command.action.shape != (self._space.width,):
            return f"its action has shape {command.action.shape}, expected ({self._space.width},)"
        grippers = np.isin(np.arange(self._space.width), self._space.grippers)
        if not (np.isfinite(command.action) | (np.isnan(command.action) & grippers)).all():
            return "its action is not finite"
        if self._origin(command) < self._start_ns:
            return "it belongs to an earlier episode"
        if self._lockstep and command.latest_ns != self._awaited_ns:
            return "it does not answer the frame that was shown last, or not first"
        if (command.published_ns, command.sequence) == self._last:
            return "it came before"
        if command.published_ns < self._last[0] and not self._lockstep:
            return "a newer one came before it"
        return _expired(command, now_ns)

    @staticmethod
    def _origin(command: Command) -> int:
        """The stamp that tells which episode a command belongs to."""
        return command.stamp_ns or command.latest_ns or command.published_ns

    def _reject(self, command: Command, reason: str) -> str:
        if not command.kind.moves:
            return ""  # it would not have moved anything
        self.count(rejected=1)
        self.last_rejection = reason
        return reason


def _expired(command: Command, now_ns: int) -> str:
    late = now_ns - command.valid_until_ns
    if command.valid_until_ns and late > 0:
        return f"it expired {late / MS:.0f} ms ago"
    return ""


# What there is to say about an episode, and where the runner says it.


class Mode(str, Enum):
    LOCKSTEP = "lockstep"
    REALTIME = "realtime"


class EpisodeState(IntEnum):
    """The values are those of EpisodeStatus.msg."""

    RESETTING = 0
    RUNNING = 1
    SUCCESS = 2
    FAILURE = 3


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """What to begin. ``max_steps`` 0 means the task's own limit, ``instruction`` "" the task's
    own instruction; a blank one tells the policy nothing at all, which means stop."""

    task: str
    initial_state: int = 0
    seed: int = 0
    max_steps: int = 0
    instruction: str = ""

    def told(self, own: str) -> str:
        """What the policy is told, where ``own`` is the task's instruction."""
        return self.instruction.strip() if self.instruction else own


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """The episode as it stands. ``reason`` is one line, empty while all is well.

    ``next_s``: after the end, seconds from it until the next begins by itself; None: on request.
    """

    state: EpisodeState
    request: EpisodeRequest
    instruction: str
    episode: int
    step: int
    max_steps: int
    achieved_rate_hz: float
    counters: CommandCounts
    reason: str = ""
    next_s: float | None = None


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """How episodes are run. ``camera_rate_hz`` 0 renders every step (lock-step always does).

    With ``auto_reset`` the next initial state follows an episode, in real time after
    ``reset_pause_s``. ``answer_timeout_s`` is the least time before an unanswered frame is shown
    again; twice the slowest of the last answers counts where that is longer.
    """

    mode: Mode = Mode.LOCKSTEP
    auto_reset: bool = False
    reset_pause_s: float = 0.0
    camera_rate_hz: float = 0.0
    answer_timeout_s: float = 1.0


class EpisodeSink(Protocol):
    """Where the runner's world becomes visible. All calls come from the runner's thread."""

    def clock(self, stamp_ns: int) -> None:
        """Lock-step: simulated time is now ``stamp_ns``."""

    def observation(self, stamp_ns: int, observation: SimObservation) -> None:
        """Show what is seen; every part carries the one stamp."""

    def begin(self, instruction: str, interrupted: Callable[[], bool]) -> None:
        """Wait for the policy, reset it and tell it the task. Returns early when
        ``interrupted``; what cannot be had in reasonable time is left out with a warning."""

    def changed(self, view: EpisodeView) -> None:
        """The state of the episode is another one."""

    def rejected(self, reason: str) -> None:
        """A command was not executed. Called by whoever offered it."""


# What the threads of an episode share: the request that comes next, the view, the commands.
#
# Every method may be called from any thread; each is one step under the one lock. Those that the
# episode's own thread calls raise :class:`Interrupted` once the episode is not wanted any more, so
# that it never changes the view of the next one.


class Interrupted(Exception):
    """Another episode was asked for, or the end."""


class EpisodeRequests:
    """``first``: what the view is about until something is requested. Durations are ``clock``'s."""

    def __init__(self, spec: EnvSpec, clock: Clock, first: EpisodeRequest) -> None:
        self.spec = spec
        self._clock = clock
        self._bell = threading.Condition()
        self._inbox = CommandInbox(spec.action_space)
        self._next: EpisodeRequest | None = None
        self._stopped = False
        self._began_ns = 0
        self._view = self._fresh_view(first, 0)

    # From outside

    def request(self, request: EpisodeRequest) -> int:
        """End the running episode and let this one be next; returns its number. UnknownTask."""
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

    def offer(self, command: Command, now_ns: int) -> str:
        """A command arrived now; returns why it is not taken, or ""."""
        with self._bell:
            reason = self._inbox.offer(command, now_ns)
            self._bell.notify_all()
            return reason

    def count(self, **changes: int) -> None:
        """Add to the episode's counters: ``count(late=1)``."""
        with self._bell:
            self._inbox.count(**changes)

    def stop(self) -> None:
        """No further episode, and the end of the running one."""
        with self._bell:
            self._stopped = True
            self._bell.notify_all()

    def view(self) -> EpisodeView:
        """The episode as it stands now."""
        with self._bell:
            view = replace(self._view, counters=self._inbox.counters)
            if view.state is not EpisodeState.RUNNING or not view.step:
                return view
            wall_s = (self._clock.steady_ns() - self._began_ns) / SECOND
            return replace(view, achieved_rate_hz=view.step / wall_s)

    def interrupted(self) -> bool:
        """Whether the episode is not wanted any more."""
        return self._stopped or self._next is not None

    # From the episode's thread

    def await_request(self) -> EpisodeRequest | None:
        """Wait for the next episode; None after :meth:`stop`."""
        with self._bell:
            self._bell.wait_for(self.interrupted)
            request, self._next = self._next, None
            return None if self._stopped else request

    def explain(self, reason: str) -> None:
        """Why the episode does not run yet."""
        with self._bell:
            self._check()
            self._view = replace(self._view, reason=reason)

    def begin(self, stamp_ns: int, lockstep: bool) -> None:
        """The episode runs, and its first frame has that stamp."""
        with self._bell:
            self._check()
            self._inbox.begin(stamp_ns, lockstep)
            self._began_ns = self._clock.steady_ns()
            self._view = replace(self._view, state=EpisodeState.RUNNING, reason="")

    def expect_answer(self, stamp_ns: int) -> None:
        """Lock-step: from now on only the answer to the frame of that stamp counts."""
        with self._bell:
            self._inbox.await_answer(stamp_ns)

    def await_answer(self, timeout_s: float) -> bool:
        """Lock-step: wait until there is something to :meth:`take`; False when time is up."""
        with self._bell:
            self._bell.wait_for(lambda: self._inbox.answered or self.interrupted(), timeout_s)
            self._check()
            return self._inbox.answered

    def take(self, now_ns: int) -> Command | None:
        """The command for the step that begins now, if there is a valid one."""
        with self._bell:
            return self._inbox.take(now_ns)

    @property
    def last_rejection(self) -> str:
        """Why a command of this episode was not taken, or ""."""
        with self._bell:
            return self._inbox.last_rejection

    def executed(self, moved: bool) -> int:
        """The world took a step, with or without an action of the policy; returns their number."""
        with self._bell:
            self._check()  # the counts and the view are the next episode's by now
            self._inbox.count(applied=int(moved), idle=int(not moved))
            self._view = replace(self._view, step=self._view.step + 1)
            return self._view.step

    def close(self) -> None:
        """Take no more commands: the answer to the last frame is too late, and no fault."""
        with self._bell:
            self._inbox.end()

    def finish(self, state: EpisodeState, reason: str, next_s: float | None) -> None:
        """The episode is over; see :class:`EpisodeView`."""
        with self._bell:
            self._check()
            rate_hz = self.view().achieved_rate_hz
            self._view = replace(
                self._view, state=state, reason=reason, achieved_rate_hz=rate_hz, next_s=next_s
            )
            self._inbox.end()

    def follow(self, request: EpisodeRequest) -> None:
        """Request the next episode, unless somebody else did."""
        with self._bell:
            self._check()
            self.request(request)

    def sleep_until(self, steady_ns: int) -> None:
        """Wait for a time of the steady clock."""
        with self._bell:
            while not self.interrupted():
                left_ns = steady_ns - self._clock.steady_ns()
                if left_ns <= 0:
                    return
                self._bell.wait_for(self.interrupted, left_ns / SECOND)
            raise Interrupted

    def _check(self) -> None:
        if self.interrupted():
            raise Interrupted

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


# The simulated robot's body: commands become steps of the environment, and steps an end.


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """How an episode ended. ``seen``: the world at its end; None where it was lost."""

    state: EpisodeState
    reason: str = ""
    seen: SimObservation | None = None


class EpisodeWorld:
    """Used by the episode's thread alone."""

    def __init__(self, environment: Environment, desk: EpisodeRequests) -> None:
        self._environment = environment
        self._spec = environment.spec
        self._desk = desk
        self._gripper = OPEN
        self._place = np.zeros(0)  # of joints: where they were last told to be

    def reset(self, request: EpisodeRequest) -> SimObservation:
        """The world as the episode begins, the gripper open."""
        self._gripper = OPEN
        seen = self._environment.reset(request.task, request.initial_state, request.seed)
        space = self._spec.action_space
        if space.kind.joints:
            order = [seen.joint_names.index(name) for name in space.names]
            self._place = seen.joint_positions[order].copy()
            self._place[list(space.grippers)] = OPEN
        return seen

    def step(
        self, command: Command | None, render: bool = True
    ) -> tuple[SimStep, EpisodeOutcome | None]:
        """One control period under ``command``, and how the episode ended if it did.

        Without an action of the policy the arm stands still, of joints: stays where it was told to
        be; the gripper stays as last told.
        """
        moved = command is not None and command.kind.moves
        if self._spec.action_space.kind.joints:
            if command is not None and moved:
                known = np.isfinite(command.action)
                self._place = np.where(known, command.action, self._place)
            action = self._place
        else:
            action = environment_action(command, self._gripper, self._spec)
            if command is not None and moved:
                self._gripper = opening_of(command, GRIPPER, self._gripper)
        step = self._environment.step(action, render)
        count = self._desk.executed(moved)
        outcome = _outcome(step, count, self._desk.view().max_steps)
        if outcome is not None:
            self._desk.close()
        return step, outcome


def _outcome(step: SimStep, count: int, limit: int) -> EpisodeOutcome | None:
    """How the episode ended with step number ``count`` of at most ``limit``; None: it goes on."""
    seen = step.observation
    if step.success:
        return EpisodeOutcome(EpisodeState.SUCCESS, "", seen)
    if step.done:
        return EpisodeOutcome(EpisodeState.FAILURE, "the task can no longer be solved", seen)
    if count >= limit:
        return EpisodeOutcome(EpisodeState.FAILURE, f"not solved within {limit} steps", seen)
    return None


# Lock-step: a frame is shown, its answer is awaited, the world takes one step.
#
# Time is the world's own and stands still meanwhile, so an episode is the same however long the
# policy takes. A frame without an answer is shown again; after a few times the episode is given up.


SIM_START_NS = SECOND  # a stamp of zero would mean "no stamp"
MAX_RESENDS = 5
_REMEMBERED = 20  # answers whose times say how long the next may take


class _Unanswered(Exception):
    """The text says which frame."""


class Lockstep:
    """The world takes a step when the frame was answered. Lives as long as its runner: its time
    never goes back."""

    def __init__(
        self,
        desk: EpisodeRequests,
        body: EpisodeWorld,
        outlet: EpisodeSink,
        clock: Clock,
        options: EpisodeOptions,
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

    def play(self, stamp_ns: int, observation: SimObservation) -> EpisodeOutcome:
        """From the first frame to the end of the episode. Interrupted."""
        while True:
            try:
                command = self._answer(observation)
            except _Unanswered as error:
                return EpisodeOutcome(EpisodeState.FAILURE, str(error), observation)
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


# Real time: the world takes a step every control period, whether or not a command came.
#
# Periods are those of the steady clock, stamps are wall time; a late command costs success. Between
# episodes the world stands still, and its camera goes on.


_JUDGED_STEPS = 20  # before the rate that was reached says something
_KEEPS_UP = 0.9  # part of the control rate that counts as keeping up


class Realtime:
    """The world takes a step every control period."""

    def __init__(
        self,
        desk: EpisodeRequests,
        body: EpisodeWorld,
        outlet: EpisodeSink,
        clock: Clock,
        options: EpisodeOptions,
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

    def play(self, stamp_ns: int, observation: SimObservation) -> EpisodeOutcome:
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


# One episode after another, as requested: everything the simulation bridge does, without ROS.
#
# Threads: :meth:`EpisodeRunner.run` is the environment's thread and the only one that touches
# it; everything else may be called from any thread. Outlet calls are made without the lock.


_MAX_LOSSES = 3  # simulations lost in a row before auto_reset gives up


class EpisodeRunner:
    """Plays episodes as they are requested. Begin with :meth:`request`, then let a thread
    :meth:`run`."""

    def __init__(
        self,
        environment: Environment,
        outlet: EpisodeSink,
        clock: Clock,
        first: EpisodeRequest,
        options: EpisodeOptions | None = None,
    ) -> None:
        self.spec = environment.spec
        self.options = options or EpisodeOptions()
        self._outlet = outlet
        self._desk = EpisodeRequests(self.spec, clock, first)
        self._body = EpisodeWorld(environment, self._desk)
        self._lockstep = self.options.mode is Mode.LOCKSTEP
        pace = Lockstep if self._lockstep else Realtime
        self._pace: Lockstep | Realtime = pace(self._desk, self._body, outlet, clock, self.options)
        self._losses = 0

    # From any thread

    def request(self, request: EpisodeRequest) -> int:
        """End the running episode and begin this one; returns its number.

        UnknownTask: there is no such task or initial state; the running episode goes on.
        """
        return self._desk.request(request)

    def offer(self, command: Command) -> None:
        """A command arrived."""
        if reason := self._desk.offer(command, self._pace.now_ns()):
            self._outlet.rejected(reason)

    def refuse(self, reason: str) -> None:
        """A message arrived that is no command at all."""
        self._desk.count(rejected=1)
        self._outlet.rejected(reason)

    def view(self) -> EpisodeView:
        """The episode as it stands now."""
        view = self._desk.view()
        if view.state is EpisodeState.RUNNING and view.step:
            return replace(view, reason=self._pace.judge(view))
        return view

    def following(self) -> EpisodeRequest:
        """The request for the same task in its next initial state, the first after the last."""
        request = self.view().request
        count = self.spec.task(request.task).initial_states
        return replace(request, initial_state=(request.initial_state + 1) % count)

    def stop(self) -> None:
        """Let :meth:`run` return; it finishes the step it is in."""
        self._desk.stop()

    # The runner's thread

    def run(self) -> None:
        """Run episode after episode as requested, until :meth:`stop`."""
        while (request := self._desk.await_request()) is not None:
            with contextlib.suppress(Interrupted):
                self._finish(self._outcome(request))

    def _outcome(self, request: EpisodeRequest) -> EpisodeOutcome:
        """Play the episode; whatever breaks is its failure. Interrupted."""
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
        self._outlet.changed(self.view())
        self._pace.announce()
        observation = self._body.reset(request)
        self._desk.explain("waits for the policy")
        self._outlet.changed(self.view())
        self._outlet.begin(self._desk.view().instruction, self._desk.interrupted)
        stamp_ns = self._pace.now_ns()
        self._desk.begin(stamp_ns, self._lockstep)
        self._outlet.changed(self.view())
        return self._pace.play(stamp_ns, observation)

    def _finish(self, outcome: EpisodeOutcome) -> None:
        """Say how it ended, and begin the next one where nobody needs to ask for it."""
        again = self.options.auto_reset and self._losses < _MAX_LOSSES
        pause_s = (0.0 if self._lockstep else self.options.reset_pause_s) if again else None
        self._desk.finish(outcome.state, outcome.reason, pause_s)
        self._outlet.changed(self.view())
        self._pace.rest(outcome.seen, pause_s)
        if again:
            self._desk.follow(self.following())
