"""An episode of a simulated robot: its request, its state that threads share, its world. No ROS.

:mod:`vla_ros.sim.runner` plays episodes, :mod:`vla_ros.sim.commands` holds their commands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Protocol

import numpy as np

from vla_ros.core.clock import SECOND, Clock
from vla_ros.core.types import GRIPPER, Command
from vla_ros.sim.commands import OPEN, CommandCounts, CommandInbox, environment_action, opening_of
from vla_ros.sim.env import Environment, EnvSpec, SimObservation, SimStep


class Mode(str, Enum):
    """Time of episodes: the world waits for answers, or does not."""

    LOCKSTEP = "lockstep"
    REALTIME = "realtime"


class EpisodeState(IntEnum):
    """State of an episode; the values are those of EpisodeStatus.msg."""

    RESETTING = 0
    RUNNING = 1
    SUCCESS = 2
    FAILURE = 3


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """Request of an episode. ``max_steps`` counts actions, 0 means the task's own limit;
    ``instruction`` "" the task's own; a blank one gives the policy no task, which means stop."""

    task: str
    initial_state: int = 0
    seed: int = 0
    max_steps: int = 0
    instruction: str = ""

    def instruction_for(self, own: str) -> str:
        """The policy's instruction, where ``own`` is the task's."""
        return self.instruction.strip() if self.instruction else own


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """The episode as it stands. ``reason`` is one line, empty while all is well.

    ``step`` and ``max_steps`` count actions, so that they are comparable between control rates;
    ``control_steps`` are the world's steps, ``achieved_rate_hz`` those per second of wall time.
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
    control_steps: int = 0
    reason: str = ""
    next_s: float | None = None


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """Options of episodes. ``camera_rate_hz`` is the real-time images', 0 the action rate; in
    lock-step every control step has one.

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
    """Receiver of a runner's observations and states. All calls come from the runner's thread."""

    def clock(self, stamp_ns: int) -> None:
        """Lock-step: publish the simulated time."""

    def observation(self, stamp_ns: int, observation: SimObservation) -> None:
        """Publish an observation; every part carries the one stamp."""

    def begin(self, instruction: str, interrupted: Callable[[], bool]) -> None:
        """Wait for the policy, reset it and publish its instruction. Returns early when
        ``interrupted``; what cannot be had in reasonable time is left out with a warning."""

    def changed(self, view: EpisodeView) -> None:
        """Publish another state of the episode."""

    def rejected(self, reason: str) -> None:
        """Report a command that was not executed, in the thread that offered it."""


class Interrupted(Exception):
    """Another episode was requested, or the end."""


class EpisodeRequests:
    """State of episodes that threads share: the request that comes next, the view, the commands.

    Every method may be called from any thread; each is one step under the one lock. Those that the
    episode's own thread calls raise :class:`Interrupted` once the episode is not wanted any more,
    so that it never changes the view of the next one. ``first``: the view's request until there is
    one. Durations are ``clock``'s.
    """

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
        request = replace(request, task=task.name)  # it may have been named by an alias
        with self._bell:
            self._next = request
            self._inbox.end()
            self._inbox.counters = CommandCounts()
            self._view = self._fresh_view(request, self._view.episode + 1)
            self._bell.notify_all()
            return self._view.episode

    def offer(self, command: Command, now_ns: int) -> str:
        """Take in a command of now; returns the reason of a rejection, or ""."""
        with self._bell:
            reason = self._inbox.offer(command, now_ns)
            self._bell.notify_all()
            return reason

    def count(self, **changes: int) -> None:
        """Add to the episode's counters: ``count(late=1)``."""
        with self._bell:
            self._inbox.count(**changes)

    def stop(self) -> None:
        """End the running episode, and begin no other."""
        with self._bell:
            self._stopped = True
            self._bell.notify_all()

    def view(self) -> EpisodeView:
        """The episode as it stands now."""
        with self._bell:
            view = replace(self._view, counters=self._inbox.counters)
            if view.state is not EpisodeState.RUNNING or not view.control_steps:
                return view
            wall_s = (self._clock.steady_ns() - self._began_ns) / SECOND
            return replace(view, achieved_rate_hz=view.control_steps / wall_s)

    def interrupted(self) -> bool:
        """True once the episode is not wanted any more."""
        return self._stopped or self._next is not None

    # From the episode's thread

    def await_request(self) -> EpisodeRequest | None:
        """Wait for the next episode; None after :meth:`stop`."""
        with self._bell:
            self._bell.wait_for(self.interrupted)
            request, self._next = self._next, None
            return None if self._stopped else request

    def explain(self, reason: str) -> None:
        """Set the reason for which the episode does not run yet."""
        with self._bell:
            self._check()
            self._view = replace(self._view, reason=reason)

    def begin(self, stamp_ns: int, lockstep: bool) -> None:
        """Begin to run: the first frame has that stamp."""
        with self._bell:
            self._check()
            self._inbox.begin(stamp_ns, lockstep)
            self._began_ns = self._clock.steady_ns()
            self._view = replace(self._view, state=EpisodeState.RUNNING, reason="")

    def expect_answer(self, stamp_ns: int) -> None:
        """Lock-step: let only the answer to the frame of that stamp count from now on."""
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
        """Reason of the last rejected command of this episode, or ""."""
        with self._bell:
            return self._inbox.last_rejection

    def executed(self, moved: bool) -> int:
        """Count a control step, with or without an action of the policy; returns their number."""
        with self._bell:
            self._check()  # the counts and the view are the next episode's by now
            self._inbox.count(applied=int(moved), idle=int(not moved))
            count = self._view.control_steps + 1
            step = self.spec.actions(count)
            self._view = replace(self._view, control_steps=count, step=step)
            return count

    def close(self) -> None:
        """Take no more commands: the answer to the last frame is late, and no fault."""
        with self._bell:
            self._inbox.end()

    def finish(self, state: EpisodeState, reason: str, next_s: float | None) -> None:
        """End the episode (:class:`EpisodeView`)."""
        with self._bell:
            self._check()
            rate_hz = self.view().achieved_rate_hz
            self._view = replace(
                self._view, state=state, reason=reason, achieved_rate_hz=rate_hz, next_s=next_s
            )
            self._inbox.end()

    def follow(self, request: EpisodeRequest) -> None:
        """Request the next episode, unless another was requested."""
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
            instruction=request.instruction_for(task.instruction),
            episode=episode,
            step=0,
            max_steps=request.max_steps or task.max_steps,
            achieved_rate_hz=0.0,
            counters=CommandCounts(),
        )


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """End of an episode. ``last``: the observation at its end; None where the world was lost."""

    state: EpisodeState
    reason: str = ""
    last: SimObservation | None = None


class EpisodeWorld:
    """World of an episode: commands become steps of the environment, and steps an end. Used by the
    episode's thread alone."""

    def __init__(self, environment: Environment, requests: EpisodeRequests) -> None:
        self._environment = environment
        self._spec = environment.spec
        self._requests = requests
        self._gripper = OPEN
        self._target = np.zeros(0)  # of joints: their last commanded positions

    def reset(self, request: EpisodeRequest) -> SimObservation:
        """First observation of an episode, the gripper open."""
        self._gripper = OPEN
        seen = self._environment.reset(request.task, request.initial_state, request.seed)
        space = self._spec.action_space
        if space.kind.joints:
            order = [seen.joint_names.index(name) for name in space.names]
            self._target = seen.joint_positions[order].copy()
            self._target[list(space.grippers)] = OPEN
        return seen

    def step(
        self, command: Command | None, render: bool = True
    ) -> tuple[SimStep, EpisodeOutcome | None]:
        """One control period under ``command``, and how the episode ended if it did.

        Without an action of the policy the arm stands still, of joints: at the commanded
        positions; the gripper stays as last commanded.
        """
        moved = command is not None and command.kind.moves
        if self._spec.action_space.kind.joints:
            if command is not None and moved:
                known = np.isfinite(command.action)
                self._target = np.where(known, command.action, self._target)
            action = self._target
        else:
            action = environment_action(command, self._gripper, self._spec)
            if command is not None and moved:
                self._gripper = opening_of(command, GRIPPER, self._gripper)
        step = self._environment.step(action, render)
        count = self._requests.executed(moved)
        limit = self._requests.view().max_steps
        over = count >= self._spec.control_steps(limit)
        outcome = _outcome(step, limit if over else None)
        if outcome is not None:
            self._requests.close()
        return step, outcome


def _outcome(step: SimStep, limit: int | None) -> EpisodeOutcome | None:
    """End of the episode with this step, by which the ``limit`` of actions is reached unless None;
    None: it goes on."""
    last = step.observation
    if step.success:
        return EpisodeOutcome(EpisodeState.SUCCESS, "", last)
    if step.done:
        return EpisodeOutcome(EpisodeState.FAILURE, "the task can no longer be solved", last)
    if limit is not None:
        return EpisodeOutcome(EpisodeState.FAILURE, f"not solved within {limit} steps", last)
    return None
