"""One episode after another, as requested: everything the simulation bridge does, without ROS.

An :class:`EpisodeRunner` drives the environment, takes commands and shows what happens through an
:class:`vla_ros.sim.episode.state.Outlet`.

Threads: :meth:`EpisodeRunner.run` is the environment's thread and the only one that touches
it; everything else may be called from any thread. Outlet calls are made without the lock.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Protocol

from vla_ros.core import Command
from vla_ros.sim.env import Environment, SimError, SimObservation
from vla_ros.sim.episode.body import Body, Outcome
from vla_ros.sim.episode.desk import Desk, Interrupted
from vla_ros.sim.episode.lockstep import Lockstep
from vla_ros.sim.episode.realtime import Realtime
from vla_ros.sim.episode.state import (
    EpisodeOptions,
    EpisodeRequest,
    EpisodeState,
    EpisodeView,
    Mode,
    Outlet,
)
from vla_ros.timing import Clock

_MAX_LOSSES = 3  # simulations lost in a row before auto_reset gives up


class Pace(Protocol):
    """When the world takes its steps; see :class:`Lockstep` and :class:`Realtime`.

    The episode's thread uses it; ``now_ns`` and ``judge`` may be called from any.
    """

    def now_ns(self) -> int: ...

    def announce(self) -> None: ...

    def judge(self, view: EpisodeView) -> str: ...

    def play(self, stamp_ns: int, observation: SimObservation) -> Outcome: ...

    def rest(self, seen: SimObservation | None, pause_s: float | None) -> None: ...


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
        self.spec = environment.spec
        self.options = options or EpisodeOptions()
        self._outlet = outlet
        self._desk = Desk(self.spec, clock, first)
        self._body = Body(environment, self._desk)
        self._lockstep = self.options.mode is Mode.LOCKSTEP
        pace = Lockstep if self._lockstep else Realtime
        self._pace: Pace = pace(self._desk, self._body, outlet, clock, self.options)
        self._losses = 0

    # ------------------------------------------------------------------ from any thread

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

    # ------------------------------------------------------------------ the runner's thread

    def run(self) -> None:
        """Run episode after episode as requested, until :meth:`stop`."""
        while (request := self._desk.await_request()) is not None:
            with contextlib.suppress(Interrupted):
                self._finish(self._outcome(request))

    def _outcome(self, request: EpisodeRequest) -> Outcome:
        """Play the episode; whatever breaks is its failure. Interrupted."""
        try:
            outcome = self._play(request)
        except Interrupted:
            raise
        except Exception as error:  # the edge of the thread: the next episode may go well
            self._losses += 1
            known = isinstance(error, SimError)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            return Outcome(EpisodeState.FAILURE, reason)
        self._losses = 0
        return outcome

    def _play(self, request: EpisodeRequest) -> Outcome:
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

    def _finish(self, outcome: Outcome) -> None:
        """Say how it ended, and begin the next one where nobody needs to ask for it."""
        again = self.options.auto_reset and self._losses < _MAX_LOSSES
        pause_s = (0.0 if self._lockstep else self.options.reset_pause_s) if again else None
        self._desk.finish(outcome.state, outcome.reason, pause_s)
        self._outlet.changed(self.view())
        self._pace.rest(outcome.seen, pause_s)
        if again:
            self._desk.follow(self.following())
