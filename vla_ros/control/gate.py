"""The publish gate: every command leaves the control loop here, and only here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vla_ros import safety
from vla_ros.control.commands import CommandMaker, order_of
from vla_ros.control.outlet import ControlOutlet
from vla_ros.control.queue import Answer, ChunkAction
from vla_ros.control.state import LoopState
from vla_ros.core import Command, CommandKind, Floats, PolicyState
from vla_ros.timing import MS, Moment


class PublishGate:
    """Decides by state, order, age and limits what is published. Not thread-safe.

    ``moved``: whether an action went out since the start or :meth:`forget`. ``last``: the newest
    command of this epoch. ``acted``: the action that the last :meth:`let_through` published.
    """

    def __init__(self, loop: LoopState, outlet: ControlOutlet, sim_time: bool) -> None:
        self._loop = loop
        self._outlet = outlet
        self._sim_time = sim_time
        self._commands = CommandMaker(loop.limits.space, sim_time, loop.lasting)
        self._evidence: Answer | None = None  # what the last action rests on
        self._planned: Answer | None = None  # whose actions a plan has told
        self._last_order = (0, -1)
        self.moved = False
        self.last: Command | None = None
        self.acted: safety.Gated | None = None

    def clear(self) -> None:
        """A new epoch: nothing is known to be fresh, and the robot is at rest."""
        self._evidence = self._planned = None
        self.last = None
        self._commands.rest()

    def forget(self) -> None:
        """A new activation or episode: nothing was set in motion yet, and nobody knows how the
        grippers are."""
        self._commands.forget_grippers()
        self.moved = False

    def let_through(self, action: ChunkAction | None, now: Moment) -> bool:
        """Publish ``action``; without one that may be, no motion while the evidence lasts.

        False: nothing was published and the state is none that moves; what is said then is the
        loop's to decide.
        """
        self.acted = None
        if action is not None and self._admits(action, now) and self._publish_action(action, now):
            return True
        self._planned = None  # whatever follows of it is told anew
        return self._hold_still(now)

    def stop(self, now: Moment) -> None:
        """Publish what keeps the robot where it is: no displacement, or the held pose."""
        loop = self._loop
        space = loop.limits.space
        still = loop.held_pose if space.absolute else np.zeros(space.width)
        if still is not None:
            loop.counters.stops_published += 1
            self._send(CommandKind.STOP, still, now)

    def again(self) -> None:
        """Publish the last command under a new number: it was lost on the way."""
        if self.last is not None:
            self._publish(self._commands.again(self.last))

    def _admits(self, action: ChunkAction, now: Moment) -> bool:
        """Whether the action is newer than all before it and its evidence fresh enough."""
        limits, age = self._loop.limits, self._age_ns(action.answer, now)
        ahead = action.answer.inference.stamp_ns - now.now_ns
        tolerance = limits.period_ns if self._sim_time else limits.clock_tolerance_ns
        if self._evidence is not None and order_of(action) <= self._last_order:
            reason = "an action of this or a later frame was published already"
        elif age > limits.max_age_ns:
            reason = f"its evidence is {age / MS:.0f} ms old, max_age is"
            reason += f" {limits.max_age_ns / MS:.0f} ms"
        elif ahead > tolerance:
            reason = f"its evidence lies {ahead / MS:.0f} ms in the future: the clock went back"
        else:
            return True
        self._loop.counters.blocked(reason)
        self._outlet.warn("blocked", f"action blocked: {reason}")
        return False

    def _publish_action(self, action: ChunkAction, now: Moment) -> bool:
        """Hold a fresh action to its limits and publish it if the state then allows it."""
        loop = self._loop
        before = self._before(now)
        if before is None:
            lacks = loop.where.lacks(now, loop.limits.max_age_ns)
            reason = f"a place to go to needs to know where the robot is: {lacks}"
            loop.counters.blocked(reason)
            self._outlet.warn("blocked", f"action blocked: {reason}")
            return False
        gated = safety.gate(action.action, before, loop.limits)
        if gated.clamped:
            loop.counters.actions_clamped += 1
            self._outlet.warn("clamped", f"action clamped to its {gated.clamped}")
        loop.become(safety.after_valid(loop.safety, loop.limits, gated.far, now.steady_ns))
        if loop.safety.state is not PolicyState.RUNNING:
            return False
        # A simulated world may stand still or hurry: there its own time counts.
        at_ns = now.now_ns if self._sim_time else now.steady_ns
        self._commands.move_grippers(gated.action, at_ns, loop.limits)
        self._evidence, self._last_order = action.answer, order_of(action)
        self.moved, self.acted = True, gated
        loop.counters.actions_published += 1
        plan = self._plan(action, gated, before, now)
        self._send(CommandKind.POLICY, gated.action, now, action, plan)
        loop.goals.acted(now.now_ns - action.answer.inference.stamp_ns)
        return True

    def _plan(
        self, action: ChunkAction, gated: safety.Gated, before: tuple[Floats, ...], now: Moment
    ) -> Floats | None:
        """What will be published of this chunk from here on, while its evidence lasts; None: that
        was said before."""
        limits = self._loop.limits
        if not self._loop.plans or action.newest is self._planned:
            return None
        self._planned = action.newest
        left_ns = action.answer.inference.stamp_ns + limits.max_age_ns - now.now_ns
        rows = [gated.action]
        for row in action.following[: max(0, left_ns // limits.period_ns)]:
            before = (rows[-1], *before[:1])
            rows.append(safety.gate(row, before, limits).action)
        return np.array(rows)

    def _before(self, now: Moment) -> tuple[Floats, ...] | None:
        """What the next action is a change from. A place that follows no other is one from where
        the robot is; None: nobody knows."""
        loop = self._loop
        if not loop.limits.space.absolute or (
            loop.safety.state is PolicyState.RUNNING and self._commands.before
        ):
            return self._commands.before
        here = loop.fresh_pose(now)
        return None if here is None else (here,)

    def _hold_still(self, now: Moment) -> bool:
        """A HELD command while the evidence of the last action lasts; HOLD when it does not."""
        loop = self._loop
        if loop.safety.state is not PolicyState.RUNNING or self._evidence is None:
            return False
        age = self._age_ns(self._evidence, now)
        if age > loop.limits.max_age_ns:
            reason = f"observation age {age / MS:.0f} ms exceeds max_age"
            reason += f" {loop.limits.max_age_ns / MS:.0f} ms"
            loop.become(safety.hold(loop.safety, reason, now.steady_ns))
            return False
        loop.counters.missed_deadlines += 1
        loop.counters.held_published += 1
        self._send(CommandKind.HELD, self._commands.still(), now)
        return True

    def _age_ns(self, answer: Answer, now: Moment) -> int:
        return safety.age_ns(
            now.now_ns,
            answer.inference.stamp_ns,
            now.steady_ns,
            answer.received_steady_ns,
            self._sim_time,
        )

    def _send(
        self,
        kind: CommandKind,
        action: Floats,
        now: Moment,
        origin: ChunkAction | None = None,
        plan: Floats | None = None,
    ) -> None:
        """Make a command that says what it rests on, and publish it."""
        loop = self._loop
        latest_ns = loop.latest.stamp_ns if loop.latest is not None else 0
        command = self._commands.make(kind, action, now, loop.instruction, latest_ns)
        if kind is not CommandKind.STOP and self._evidence is not None:
            command = self._commands.resting_on(command, self._evidence, loop.limits)
        if origin is not None:
            period_ns = loop.limits.period_ns
            command = replace(self._commands.accounted(command, origin, now, period_ns), plan=plan)
        self._publish(command)

    def _publish(self, command: Command) -> None:
        """The last line before the topic."""
        self.last = command
        self._outlet.publish(command)
