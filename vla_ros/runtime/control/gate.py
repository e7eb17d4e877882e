"""The publish gate: every command leaves the control loop here, and only here.

A gated action becomes a command that says which observation it is made for and where the time went.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.clock import MS, Moment
from vla_ros.core.types import STAGES, Command, CommandKind, Floats, Instruction, PolicyState
from vla_ros.runtime import safety
from vla_ros.runtime.control.goals import PersistentState
from vla_ros.runtime.control.queue import Answer, ChunkAction
from vla_ros.runtime.control.takeover import Takeover, action_of
from vla_ros.runtime.safety import Gripper, Limits

if TYPE_CHECKING:
    from vla_ros.runtime.control.control import Control


LAG = 5  # commands that a servo may be behind; a robot that is farther away was moved by others


class PublishGate:
    """Decides by state, order, age and limits what is published. Under the loop's lock.

    ``moved``: whether an action went out since the start or :meth:`forget`. ``moving``: the newest
    command of all was no STOP. ``last``: the newest command of this epoch. ``acted``: the action
    that the last :meth:`let_through` published.
    """

    def __init__(self, control: Control, sim_time: bool) -> None:
        self._control = control
        self._sim_time = sim_time
        self._commands = CommandMaker(control.limits.space, control.persistent)
        self._source: Answer | None = None  # of the last action: what its age is counted from
        self._planned: Answer | None = None  # whose actions were sent as a plan
        self._last_order = (0, -1)
        self._meant: tuple[Floats, ...] = ()  # the policy's newest actions, published or not
        self._judged = (0, 0)  # stamp of a chunk, its actions that were judged in HOLD
        self.moved = self.moving = False
        self.last: Command | None = None
        self.acted: safety.Gated | None = None

    def clear(self) -> None:
        """A new epoch: nothing is known to be fresh, and the robot is at rest."""
        self._source = self._planned = None
        self._meant, self._judged = (), (0, 0)
        self.last = None
        self._commands.rest()

    def forget(self) -> None:
        """A new activation or episode: nothing was set in motion yet, and the grippers' state is
        unknown."""
        self._commands.forget_grippers()
        self.moved = False

    def let_through(self, action: ChunkAction | None, now: Moment) -> bool:
        """Publish ``action``; without one that may be, no motion while the last one's observation
        is young enough.

        False: nothing was published and the state is none that moves; what is said then is the
        loop's to decide.
        """
        self.acted = None
        if action is not None and self._admits(action, now) and self._publish_action(action, now):
            return True
        self._planned = None  # whatever follows of it is sent anew
        return self._hold_still(now)

    def let_person_through(self, takeover: Takeover, now: Moment) -> None:
        """Publish a person's command, held to the same limits; where he has said nothing new, no
        motion."""
        self.acted = self._source = self._planned = None
        self._meant = ()
        control, command = self._control, takeover.take()
        before, until_ns = self._before(now), takeover.valid_until_ns(control.limits)
        if command is None or before is None:
            if before is None:
                lacks = control.measured.lacks(now, control.limits.max_age_ns)
                control.sink.warn("takeover", f"a place to go to needs to know {lacks}")
            if before:
                control.counters.held_published += 1
                self._send(CommandKind.HELD, self._commands.still(), now, until_ns=until_ns)
            else:
                self.stop(now)
            return
        joints = control.limits.space.kind is ActionKind.JOINT_DELTA
        place = control.fresh_pose(now) if joints else (before[0] if before else None)
        openings = [g.value if g.known else None for g in self._commands.grippers]
        try:
            action = action_of(command, control.limits, place, openings)
        except ValueError as error:
            control.sink.warn("takeover", f"takeover command ignored: {error}")
            self.stop(now)
            return
        gated = safety.gate(action, before, control.limits)
        if gated.clamped:
            self._clamped(gated.clamped)
        said = [not np.isnan(command.values[at]) for at in control.limits.space.grippers]
        self._commands.move_grippers(gated.action, self._at_ns(now), control.limits, said)
        self.moved = True
        control.counters.takeover_published += 1
        plan = np.array([gated.action]) if control.plans else None
        self._send(CommandKind.TAKEOVER, gated.action, now, plan=plan, until_ns=until_ns)

    def stop(self, now: Moment) -> None:
        """Publish what keeps the robot where it is: no displacement, or the held pose. From the
        place that it is on its way to, as a servo's lag leaves it, it is led there step by step."""
        control, space = self._control, self._control.limits.space
        still = control.held_pose if space.absolute else np.zeros(space.width)
        if still is not None:
            last = self._commands.place(self._at_ns(now), control.limits)
            if last is not None:
                still = safety.approach(still, last, control.limits)
            control.counters.stops_published += 1
            self._send(CommandKind.STOP, still, now)

    def again(self) -> None:
        """Publish the last command under a new number: it was lost on the way."""
        if self.last is not None:
            self._publish(self._commands.again(self.last))

    def _admits(self, action: ChunkAction, now: Moment) -> bool:
        """Whether the action is newer than all before it and its observation young enough."""
        limits, age = self._control.limits, self._age_ns(action.answer, now)
        ahead = action.answer.inference.stamp_ns - now.now_ns
        tolerance = limits.period_ns if self._sim_time else limits.clock_tolerance_ns
        if self._source is not None and order_of(action) <= self._last_order:
            why = reason = "an action of this or a later frame was published already"
        elif age > limits.max_age_ns:
            reason = f"its evidence is {age / MS:.0f} ms old, max_age is"
            reason += f" {limits.max_age_ns / MS:.0f} ms"
            why = "answers come when their evidence is older than max_age"
        elif ahead > tolerance:
            reason = f"its evidence lies {ahead / MS:.0f} ms in the future: the clock went back"
            why = "answers are of frames in the future"
        else:
            return True
        self._block(reason, why)
        return False

    def _block(self, reason: str, why: str) -> None:
        """``why``: the same without figures, for a state that lasts."""
        control = self._control
        control.counters.blocked(reason)
        control.sink.warn("blocked", f"action blocked: {reason}")
        control.become(safety.keep(control.safety, why))

    def _publish_action(self, action: ChunkAction, now: Moment) -> bool:
        """Hold a fresh action to its limits and publish it if the state then allows it.

        Whether the policy makes sense is judged by its own motion, each action against the one
        before it. What is published changes from what the robot was told last: a ramp from rest to
        that motion is held to the limits too, and is no fault of the policy's.
        """
        control = self._control
        before = self._before(now)
        if before is None:
            lacks = control.measured.lacks(now, control.limits.max_age_ns)
            reason = f"a place to go to needs to know where the robot is: {lacks}"
            self._block(reason, reason)
            return False
        meant = safety.gate(self._candidate(action), self._meant, control.limits)
        assert meant.bounded is not None
        self._meant = (meant.bounded, *self._meant[:1])
        moved = safety.after_valid(
            control.safety, control.limits, meant.far, now.steady_ns, meant.clamped
        )
        begins = control.safety.state is PolicyState.HOLD and moved.state is PolicyState.RUNNING
        if meant.clamped and moved.state is not PolicyState.RUNNING:
            self._clamped(meant.clamped)  # before the status says what it led to
        control.become(moved)
        if control.safety.state is not PolicyState.RUNNING:
            return False
        if begins:  # at the beginning of what was judged
            self._meant = (safety.gate(action.action, (), control.limits).action,)
        gated = safety.gate(action.action, before, control.limits)
        if gated.clamped:
            self._clamped(gated.clamped)
        self._commands.move_grippers(gated.action, self._at_ns(now), control.limits)
        self._source, self._last_order = action.answer, order_of(action)
        self.moved, self.acted = True, gated
        control.counters.actions_published += 1
        plan = self._plan(action, gated, before, now)
        self._send(CommandKind.POLICY, gated.action, now, action, plan)
        control.goals.acted(now.now_ns - action.answer.inference.stamp_ns)
        return True

    def _clamped(self, over: str) -> None:
        self._control.counters.actions_clamped += 1
        self._control.sink.warn("clamped", f"action clamped to its {over}")

    def _candidate(self, action: ChunkAction) -> Floats:
        """The action to judge. In HOLD nothing is executed, so the actions of a chunk are judged
        one after the other, and it is executed from its beginning."""
        if self._control.safety.state is not PolicyState.HOLD:
            self._judged = (0, 0)
            return action.action
        stamp, count = self._judged
        if stamp != action.newest.inference.stamp_ns:
            stamp, count = action.newest.inference.stamp_ns, 0
        self._judged = (stamp, count + 1)
        row: Floats = action.rows[min(count, len(action.rows) - 1)]
        return row

    def _at_ns(self, now: Moment) -> int:
        """What lapses are measured by: a simulated world may stand still or hurry, there its own
        time counts."""
        return now.now_ns if self._sim_time else now.steady_ns

    def _plan(
        self, action: ChunkAction, gated: safety.Gated, before: tuple[Floats, ...], now: Moment
    ) -> Floats | None:
        """What will be published of this chunk until its observation is too old; None: that was
        sent before."""
        limits = self._control.limits
        if not self._control.plans or action.newest is self._planned:
            return None
        self._planned = action.newest
        left_ns = action.answer.inference.stamp_ns + limits.max_age_ns - now.now_ns
        rows = [gated.action]
        for row in action.following[: max(0, left_ns // limits.period_ns)]:
            before = (rows[-1], *before[:1])
            rows.append(safety.gate(row, before, limits).action)
        return np.array(rows)

    def _before(self, now: Moment) -> tuple[Floats, ...] | None:
        """What the next action is a change from. An absolute action that follows no other is one
        from where the robot was sent last, which its servo is behind, or from
        the measured place where that is long ago or far away; None: that is not known."""
        control = self._control
        if not control.limits.space.absolute or (control.safety.moves and self._commands.before):
            return self._commands.before
        here = control.fresh_pose(now)
        if here is None:
            return None
        last = self._commands.place(self._at_ns(now), control.limits)
        if last is None or not safety.near(here, last, control.limits, LAG):
            return (here,)
        return (last,)

    def _hold_still(self, now: Moment) -> bool:
        """A HELD command while the last action's observation is young enough; HOLD after that."""
        control = self._control
        if control.safety.state is not PolicyState.RUNNING or self._source is None:
            return False
        age = self._age_ns(self._source, now)
        if age > control.limits.max_age_ns:
            reason = f"observation age {age / MS:.0f} ms exceeds max_age"
            reason += f" {control.limits.max_age_ns / MS:.0f} ms"
            control.become(safety.hold(control.safety, reason, now.steady_ns))
            return False
        control.counters.missed_deadlines += 1
        control.counters.held_published += 1
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
        until_ns: int = 0,
    ) -> None:
        """Publish a command with its source observation, its index in the chunk, its staleness and
        where its time went, as far as it has them. ``until_ns``: how long a person's is valid."""
        control, limits = self._control, self._control.limits
        latest_ns = control.latest.stamp_ns if control.latest is not None else 0
        command = self._commands.make(kind, action, now, control.instruction, latest_ns)
        self._commands.said_ns = self._at_ns(now)
        command = replace(command, valid_until_ns=until_ns, plan=plan)
        if kind is not CommandKind.STOP and self._source is not None:
            stamp_ns = self._source.inference.stamp_ns
            command = replace(
                command,
                stamp_ns=stamp_ns,
                received_ns=self._source.received_ns,
                valid_until_ns=stamp_ns + limits.max_age_ns,
            )
        if origin is not None:
            inference = origin.answer.inference
            due = origin.index + inference.told_delay  # periods after its observation
            command = replace(
                command,
                chunk_index=origin.index,
                corrected_ns=origin.corrected_ns,
                chunk_length=len(inference.actions),
                staleness_ns=now.now_ns - inference.stamp_ns - due * limits.period_ns,
                stages_ms=stages_ms(origin.answer, now),
                total_ms=total_ms(origin.answer, now, self._sim_time),
            )
        self._publish(command)

    def _publish(self, command: Command) -> None:
        """The last line before the topic."""
        self.last = command
        self.moving = command.kind is not CommandKind.STOP
        self._control.sink.publish(command)


class CommandMaker:
    """Numbers the commands of one loop and remembers the last ones. Not thread-safe.

    ``before`` are the actions published last, newest first; ``grippers`` is what every command
    carries, whatever its kind, one a gripper of the space. ``persistent`` counts on where an
    earlier loop ended.
    """

    def __init__(self, space: ActionSpace, persistent: PersistentState) -> None:
        self._space = space
        self._persistent = persistent
        self.before: tuple[Floats, ...] = ()
        self.said_ns = 0  # when the newest command was published
        self._newest: Floats | None = None  # of any kind and epoch
        self.grippers = tuple(Gripper() for _ in self._space.grippers)

    def forget_grippers(self) -> None:
        """Their state is unknown: the next action is taken as it is. Until then a command that
        stops repeats the last one."""
        self.grippers = tuple(replace(gripper, known=False) for gripper in self.grippers)

    def place(self, now_ns: int, limits: Limits) -> Floats | None:
        """Where the robot was sent by the newest command, of a space of places; None where that is
        more than two periods ago: its controller may have been told another since."""
        fresh = 0 <= now_ns - self.said_ns <= 2 * limits.period_ns
        return self._newest if fresh and self._space.absolute else None

    def move_grippers(
        self, action: Floats, now_ns: int, limits: Limits, said: Sequence[bool] = ()
    ) -> None:
        """Take on what a gated action wants of them, as far as they may follow. ``said``: of which
        it says something; empty: of all."""
        said = said or [True] * len(self.grippers)
        self.grippers = tuple(
            safety.steady_gripper(gripper, float(action[place]), now_ns, limits)
            if wants
            else gripper
            for gripper, place, wants in zip(self.grippers, self._space.grippers, said, strict=True)
        )

    def rest(self) -> None:
        """The robot is at rest: the next delta is a change from zero. An absolute action has no
        such reference."""
        self.before = () if self._space.absolute else (np.zeros(self._space.width),)

    def still(self) -> Floats:
        """The action that moves nothing: a zero delta, or the last absolute action."""
        here = self._space.absolute and self.before
        return self.before[0] if here else np.zeros(self._space.width)

    def make(
        self,
        kind: CommandKind,
        action: Floats,
        now: Moment,
        instruction: Instruction,
        latest_ns: int,
    ) -> Command:
        """A command of no observation yet, published at ``now``."""
        safety.refuse_unless_numbers(action, self._space)
        action = action.copy()
        for gripper, place in zip(self.grippers, self._space.grippers, strict=True):
            action[place] = gripper.value
        self.before, self._newest = (action, *self.before[:1]), action
        return Command(
            kind=kind,
            action=action,
            sequence=self._number(),
            epoch=instruction.epoch,
            instruction_digest=instruction.digest,
            published_ns=now.now_ns,
            latest_ns=latest_ns,
        )

    def again(self, command: Command) -> Command:
        """The same command under a new number: its answer was lost on the way."""
        return replace(command, sequence=self._number())

    def _number(self) -> int:
        self._persistent.sequence += 1
        return self._persistent.sequence - 1


def stages_ms(answer: Answer, now: Moment) -> dict[str, float]:
    """Durations of all stages of a command published at ``now``, in milliseconds.

    ``transport`` is a difference of stamps (capture and receipt lie in two processes), all
    others are steady time. ``gate`` is what is left from the end of the inference to ``now``,
    so the stages sum to the time since capture.
    """
    timeline = answer.inference.timeline
    spent = timeline.durations_ms()
    spent["transport"] = (answer.received_ns - answer.inference.stamp_ns) / MS
    spent["gate"] = spent.get("gate", 0.0) + (now.steady_ns - timeline.end_ns) / MS
    return {stage: spent.get(stage, 0.0) for stage in STAGES}


def total_ms(answer: Answer, now: Moment, sim_time: bool) -> float:
    """Capture to publication in milliseconds: by the stamps, or in simulated time, which
    stands still while a policy thinks, by the steady clock from receipt on."""
    if not sim_time:
        return (now.now_ns - answer.inference.stamp_ns) / MS
    transport = (answer.received_ns - answer.inference.stamp_ns) / MS
    return transport + (now.steady_ns - answer.received_steady_ns) / MS


def order_of(candidate: ChunkAction) -> tuple[int, int]:
    """Commands must be published in this order and never twice: frame, then index in chunk."""
    return candidate.answer.inference.stamp_ns, candidate.index
