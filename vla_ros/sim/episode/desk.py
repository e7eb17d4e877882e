"""What the threads of an episode share: the request that comes next, the view, the commands.

Every method may be called from any thread; each is one step under the one lock. Those that the
episode's own thread calls raise :class:`Interrupted` once the episode is not wanted any more, so
that it never changes the view of the next one.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from vla_ros.core import Command
from vla_ros.sim.commands import CommandCounts, CommandInbox
from vla_ros.sim.env import EnvSpec
from vla_ros.sim.episode.state import EpisodeRequest, EpisodeState, EpisodeView
from vla_ros.timing import SECOND, Clock


class Interrupted(Exception):
    """Another episode was asked for, or the end."""


class Desk:
    """``first``: what the view is about until something is requested. Durations are ``clock``'s."""

    def __init__(self, spec: EnvSpec, clock: Clock, first: EpisodeRequest) -> None:
        self.spec = spec
        self._clock = clock
        self._bell = threading.Condition()
        self._inbox = CommandInbox()
        self._next: EpisodeRequest | None = None
        self._stopped = False
        self._began_ns = 0
        self._view = self._fresh_view(first, 0)

    # ------------------------------------------------------------------ from outside

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

    # ------------------------------------------------------------------ from the episode's thread

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
