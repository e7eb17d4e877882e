"""The publish gate: every command leaves the control loop here, and only here.

It decides by state, order and age what is published; the last door decides how far that may move
the robot. A command says which observation it is made for and where the time went.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.core.types import (
    STAGES,
    Command,
    CommandKind,
    Floats,
    Instruction,
    Plan,
    PolicyState,
)
from vla_ros.runtime import limiter, safety
from vla_ros.runtime.control.goals import PersistentState
from vla_ros.runtime.control.motion import Motion, MotionStep
from vla_ros.runtime.control.queue import ChunkAction, PolicyAnswer
from vla_ros.runtime.control.state import LoopState
from vla_ros.runtime.control.takeover import Takeover, Teleoperation, action_of
from vla_ros.runtime.door import LEAST, ArmFollowing, Door, TrajectoryCourse
from vla_ros.runtime.limiter import Commanded, Leash, Passed, Reach
from vla_ros.runtime.pose_chart import PoseChart
from vla_ros.runtime.safety import Gripper, Limits

_FAR = 0.5  # of its leash: so far from its command an arm is on its way
_TRIES_AFTER_NS = 2 * SECOND  # an arm that stands is tried again, unless it was seen to move before


@dataclass(frozen=True, slots=True)
class _Reaches:
    """The limits of a command, of joints' positions, and of an action; ``of`` these limits and
    turning joints."""

    of: tuple[Limits, frozenset[int]]
    endless: tuple[int, ...]
    command: Reach
    joints: Reach
    action: Reach

    @classmethod
    def made(cls, limits: Limits, turning: frozenset[int]) -> _Reaches:
        space = limits.space
        endless = tuple(i for i, index in enumerate(space.motion) if index in turning)
        command = limiter.reach_of(limits, endless)
        joints = command if space.absolute else limiter.joints_reach_of(limits, endless)
        action = limiter.action_reach_of(limits, endless)
        return cls((limits, turning), endless, command, joints, action)


class PublishGate:
    """The one way out of the loop: state, order, age and limits decide what is published. Under the
    loop's lock.

    ``moved``: whether an action went out since the start or :meth:`forget`. ``moving``: the newest
    command of all was no STOP. ``last``: the newest command of this epoch. ``acted``: whether the
    last :meth:`let_through` published an action, ``unchanged``: as the policy gave it. ``sent``:
    whether a command was published since it was set to False.
    """

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._commands = CommandMaker(loop.limits.space, loop.persistent)
        self._action, self._joints, self._course = Door(), Door(), TrajectoryCourse()
        self._following = ArmFollowing()
        space = loop.limits.space
        poses = space.kind is ActionKind.END_EFFECTOR_DELTA
        self._chart = PoseChart(len(space.motion) // 6) if poses else None
        self._held_to: _Reaches | None = None
        self._leashed: tuple[tuple[Moment, int, int], Leash | None] | None = None  # the newest
        self._stalled_ns: int | None = None  # when a HOLD began because the arm stands
        self._source: PolicyAnswer | None = None  # of the last action: what its age is counted from
        self._planned: PolicyAnswer | None = None  # whose actions were sent as a plan
        self._spent: tuple[PolicyAnswer, dict[str, float]] | None = None  # on the newest, until it
        self._last_order = (0, -1)
        self._meant: tuple[Floats, ...] = ()  # the policy's newest actions, published or not
        self._judged = (0, 0)  # stamp of a chunk, its actions that were judged in HOLD
        self._judged_ns = -SECOND  # when the last one was
        self._was_over = False  # the newest action was held to a limit
        self._goal: Floats | None = None  # of a displacement from the measured joints
        self.moved = self.moving = self.acted = self.unchanged = self.sent = False
        self.last: Command | None = None

    def clear(self) -> None:
        """A new epoch: no answer is fresh any more; the outputs' last commands stay known."""
        self._source = self._planned = None
        self._meant, self._judged = (), (0, 0)
        self.last = None

    def forget(self) -> None:
        """A new activation or episode: nothing was set in motion yet, where the robot is and how
        far its grippers are open is unknown."""
        self._commands.forget_grippers()
        self._action.forget()
        self._joints.forget()
        self._course.forget()
        if self._chart is not None:
            self._chart.forget()
        self._leashed = None
        self._following, self._stalled_ns = ArmFollowing(), None
        self.moved = False

    def goes_on(self, now: Moment) -> bool:
        """True while what is left of the last action may be executed."""
        if self._loop.safety.state is not PolicyState.RUNNING or self._source is None:
            return False
        return self._age_ns(self._source, now) <= self._loop.limits.max_age_ns

    def let_through(self, step: MotionStep | None, now: Moment) -> bool:
        """Publish a step of admitted actions; without one no motion while the last one's
        observation is young enough.

        False: nothing was published and the state is none that moves; what is published then is
        the loop's to decide.
        """
        self.acted = False
        if step is not None and self._publish_step(step, now):
            return True
        self._planned = None  # whatever follows of it is sent anew
        return self._hold_still(now)

    def let_person_through(self, takeover: Takeover, motion: Motion, now: Moment) -> None:
        """Publish a person's command, held to the same limits; without a new one no motion. An
        action of theirs takes an action period, along ``motion``."""
        self.acted, self._source, self._planned, self._meant = False, None, None, ()
        loop, (command, new) = self._loop, takeover.take()
        space, until_ns = loop.limits.space, takeover.valid_until_ns(loop.limits)
        lacks = self._lacks(now)
        begin = None if lacks else self._begin(now)
        motion.open(loop.limits.actions_a_period)
        if begin is None or (command is None and not motion.left):
            if lacks:
                loop.sink.warn("takeover", f"a place to go to needs to know {lacks}")
                self.stop(now)
            else:
                loop.counters.held_published += 1
                self._send(CommandKind.HELD, None, now, until_ns=until_ns)
            return
        position = np.zeros(space.width)
        position[list(space.motion)] = begin[0].at
        measured = loop.fresh_pose(now) if space.kind is ActionKind.JOINT_DELTA else position
        try:
            action, commanded = self._of_person(command, new, motion, begin[0], measured)
        except ValueError as error:
            loop.sink.warn("takeover", f"takeover command ignored: {error}")
            self.stop(now)
            return
        passed = self._pass(action, now)
        if passed.over:
            motion.held()
        if loop.outputs.plans and not self._left_s(until_ns, now):
            loop.sink.warn("takeover", "takeover command ignored: nothing is left of its time")
            self.stop(now)
            return
        plan = self._plan(np.array([action]), loop.limits.actions_a_period, until_ns, now)
        self._clamped(passed.over)
        self._commands.move_grippers(action, self._at_ns(now), loop.limits, commanded)
        self.moved = True
        loop.counters.takeover_published += 1
        self._send(CommandKind.TAKEOVER, passed, now, plan=plan, until_ns=until_ns)

    def _of_person(
        self,
        command: Teleoperation | None,
        new: bool,
        motion: Motion,
        begin: Commanded,
        position: Floats | None,
    ) -> tuple[Floats, list[bool]]:
        """The numbers of a person's command for this period, and which grippers it commands.
        ValueError: the position that it is counted from is unknown."""
        limits, step = self._loop.limits, None
        if command is not None and not command.of_action(limits.space):
            motion.clear()
        else:
            if command is not None and new:
                motion.person(command.values, begin, self.action_reach)
            motion.wants()
            step = motion.close(limits.period_s)
        if step is not None:
            numbers, action = step.wish, np.nan_to_num(step.wish)
        else:  # at a rate of their own, or a target that was reached
            assert command is not None
            numbers, action = command.values, action_of(command, limits, position)
        return action, [not np.isnan(numbers[at]) for at in limits.space.grippers]

    def stop(self, now: Moment) -> None:
        """Publish the command that stops the robot: no displacement, or the position that it was on
        its way to, after a deceleration within the limits where they need one."""
        if self._begin(now) is not None:
            self._loop.counters.stops_published += 1
            self._send(CommandKind.STOP, None, now)

    def rest(self, now: Moment) -> None:
        """Bring the outputs to rest in a period without a command."""
        if not self.at_rest(now):
            command = self._made(CommandKind.STOP, None, now, None)
            if command is not None:
                self._loop.sink.rest(command)

    def at_rest(self, now: Moment) -> bool:
        """True once every output's commanded motion has come to rest."""
        return not (
            self._action.moves or self._joints.moves or self._course.moves(self._at_ns(now))
        )

    def again(self) -> None:
        """Publish the last command under a new number: it was lost on the way."""
        if self.last is not None:
            self._publish(replace(self.last, sequence=self._commands.number()))

    def admits(self, action: ChunkAction, now: Moment) -> bool:
        """True of an action that may be executed: newer than all before it, on an observation young
        enough, and the state allows it."""
        return self._is_fresh(action, now) and self._is_sane(action, now)

    def _is_fresh(self, action: ChunkAction, now: Moment) -> bool:
        """True of an action newer than all before it, on an observation young enough."""
        limits, age = self._loop.limits, self._age_ns(action.answer, now)
        ahead = action.answer.inference.stamp_ns - now.now_ns
        tolerance = limits.period_ns if self._loop.sim_time else limits.clock_tolerance_ns
        if self._source is not None and order_of(action) <= self._last_order:
            why = reason = "an action of this or a later frame was published already"
        elif age > limits.max_age_ns:
            reason = f"its observation is {age / MS:.0f} ms old, max_age is"
            reason += f" {limits.max_age_ns / MS:.0f} ms"
            why = "answers come when their observation is older than max_age"
        elif ahead > tolerance:
            reason = f"its observation lies {ahead / MS:.0f} ms in the future: the clock went back"
            why = "answers are of frames in the future"
        else:
            return True
        self._block(reason, why)
        return False

    def _block(self, reason: str, why: str) -> None:
        """Count a blocked action. ``why``: the reason without figures, for a state that lasts."""
        loop = self._loop
        loop.counters.blocked(reason)
        loop.sink.warn("blocked", f"action blocked: {reason}")
        loop.become(safety.keep(loop.safety, why))

    def _is_sane(self, action: ChunkAction, now: Moment) -> bool:
        """True if the state, which an action changes, lets it through.

        Whether the policy makes sense is judged by its own motion, each action against the one
        before it. What is published changes from what the robot was commanded last: a ramp from
        rest to that motion is held to the limits too, and is no fault of the policy's.
        """
        loop, limits = self._loop, self._loop.limits
        if lacks := self._lacks(now):
            reason = f"a place to go to needs to know where the robot is: {lacks}"
            self._block(reason, reason)
            return False
        valid_ns = action.answer.inference.stamp_ns + limits.max_age_ns
        if loop.outputs.plans and not self._left_s(valid_ns, now):
            left = max(0, valid_ns - now.now_ns) / MS
            why = f"trajectory_lead_s {loop.outputs.lead_s:g} leaves nothing of it"
            self._block(f"its observation is valid for {left:.0f} ms more: {why}", why)
            return False
        if self._waits_for_arm(now) or self._waits_for_action(now):
            return False
        endless = self._endless
        meant = limiter.judge(self._candidate(action), self._meant, limits, endless)
        self._meant = (meant.bounded, *self._meant[:1])
        moved = safety.after_valid(
            loop.safety, limits, meant.far, now.steady_ns, meant.over, meant.worst
        )
        begins = loop.safety.state is PolicyState.HOLD and moved.state is PolicyState.RUNNING
        if meant.over and moved.state is not PolicyState.RUNNING:
            self._clamped(meant.over)  # before what it led to
        loop.become(moved)
        if loop.safety.state is not PolicyState.RUNNING:
            return False
        if begins:  # at the beginning of what was judged
            self._meant = (limiter.judge(action.action, (), limits, endless).bounded,)
        return True

    def _waits_for_action(self, now: Moment) -> bool:
        """True in HOLD until the next action is due: its actions are judged at their rate."""
        limits, at_ns = self._loop.limits, self._at_ns(now)
        if self._loop.safety.state is PolicyState.HOLD:
            since_ns = at_ns - self._judged_ns
            if 0 <= since_ns < limits.action_period_ns - limits.period_ns // 2:
                return True
        self._judged_ns = at_ns
        return False

    def _publish_step(self, step: MotionStep, now: Moment) -> bool:
        """Publish what admitted actions come to in this period, as far as the limits let it."""
        loop, limits, action = self._loop, self._loop.limits, step.action
        passed = self._pass(step.wish, now)
        if self._stands_still(passed, now):
            return False
        plan = None
        if step.rows is not None and action.newest is not self._planned:
            valid_ns = action.answer.inference.stamp_ns + limits.max_age_ns
            rows, first = step.rows.copy(), step.share + step.left
            if not limits.space.absolute:  # what this period makes of it, and the rest
                rows[0] = step.wish + step.left * rows[0]
            plan = self._plan(rows, first, valid_ns, now)
            self._planned = action.newest
        order = order_of(action)
        if order != self._last_order or not self._was_over:
            self._clamped(passed.over)
            self._was_over = bool(passed.over)
        self._source, self._last_order = action.answer, order
        commanded = [loop.info.moves_grippers] * len(limits.space.grippers)
        self._commands.move_grippers(action.action, self._at_ns(now), limits, commanded)
        self.moved, self.acted, self.unchanged = True, True, not passed.over
        loop.counters.actions_published += 1
        self._send(CommandKind.POLICY, passed, now, step, plan)
        loop.goals.acted(now.now_ns - action.answer.inference.stamp_ns)
        return True

    def _clamped(self, over: str) -> None:
        if over:
            self._loop.counters.actions_clamped += 1
            self._loop.sink.warn("clamped", f"action clamped to its {over}")

    def _candidate(self, action: ChunkAction) -> Floats:
        """The action to judge. In HOLD nothing is executed, so the actions of a chunk are judged
        one after the other, and it is executed from its beginning."""
        if self._loop.safety.state is not PolicyState.HOLD:
            self._judged = (0, 0)
            return action.action
        stamp, count = self._judged
        if stamp != action.newest.inference.stamp_ns:
            stamp, count = action.newest.inference.stamp_ns, 0
        self._judged = (stamp, count + 1)
        row: Floats = action.rows[min(count, len(action.rows) - 1)]
        return row

    def _at_ns(self, now: Moment) -> int:
        """The clock that lapses are measured by: a simulated world may stand still or hurry, so
        there its own time counts."""
        return now.now_ns if self._loop.sim_time else now.steady_ns

    # The last door

    @property
    def _reaches(self) -> _Reaches:
        """Limits of now: they are asked for often, and seldom others."""
        limits, turning = self._loop.limits, self._loop.turning
        if (
            self._held_to is None
            or self._held_to.of[0] is not limits
            or (self._held_to.of[1] is not turning)
        ):
            self._held_to = _Reaches.made(limits, turning)
        return self._held_to

    @property
    def _endless(self) -> tuple[int, ...]:
        return self._reaches.endless

    @property
    def _reach(self) -> Reach:
        return self._reaches.command

    @property
    def _joints_reach(self) -> Reach:
        """Limits of the outputs that take positions of joints."""
        return self._reaches.joints

    @property
    def _takes_joints(self) -> bool:
        return self._loop.outputs.positions or self._loop.outputs.plans

    def _lacks(self, now: Moment) -> str:
        """Reason for which the robot's position, where it is needed, is unknown; ""."""
        loop = self._loop
        needed = loop.limits.space.absolute or self._takes_joints
        if not needed or loop.fresh_pose(now) is not None:
            return ""
        return loop.measured.lacks(now, loop.limits.max_age_ns)

    def _here(self, now: Moment) -> Floats | None:
        """The measured numbers that move; of displacements of an end effector as those from the
        anchor of its poses."""
        here = self._loop.fresh_pose(now)
        if here is None:
            return None
        here = here[list(self._loop.limits.space.motion)]
        return here if self._chart is None else self._chart.of(here)

    def _leash(self, now: Moment, reach: Reach) -> Leash | None:
        """The leash of now: a servo is behind by ``leash_s``, by the period that the command is
        for, and by the age of its reading."""
        loop, limits = self._loop, self._loop.limits
        if not reach.absolute:
            return None
        key = (now, id(reach), loop.measured.changes)  # it is asked for often
        if self._leashed is None or self._leashed[0] != key:
            leash, here = None, self._here(now)
            if here is not None:
                late_ns = limits.leash_s * SECOND + loop.measured.age_ns(now)
                far = reach.step * (1 + late_ns / limits.period_ns)
                leash = Leash(here, far)
            self._leashed = (key, leash)
        return self._leashed[1]

    @property
    def action_reach(self) -> Reach:
        """Limits from one action to the next."""
        return self._reaches.action

    def commanded(self, now: Moment) -> Commanded | None:
        """The action's last command, where a motion begins; None: the robot's position, which that
        needs, is unknown."""
        begin = self._begin(now)
        return None if begin is None else begin[0]

    def _begin(self, now: Moment) -> tuple[Commanded, float] | None:
        """Start of the action's step, and its share of a period (:meth:`Door.begin`)."""
        reach = self._reach
        period_ns = self._loop.limits.period_ns
        return self._action.begin(reach, self._at_ns(now), period_ns, self._leash(now, reach))

    def _pass(self, action: Floats, now: Moment) -> Passed:
        """The numbers that move, as far as they may; :meth:`_lacks` is empty."""
        safety.refuse_unless_numbers(action, self._loop.limits.space)
        begin, reach = self._begin(now), self._reach
        assert begin is not None
        wish = action[list(self._loop.limits.space.motion)]
        return limiter.pass_through(wish, begin[0], reach, begin[1], self._leash(now, reach))

    def _left_s(self, valid_ns: int, now: Moment) -> float:
        """Length in seconds of a plan that is sent now; 0: it would be over before it begins."""
        left_s = (valid_ns - now.now_ns) / SECOND - self._loop.outputs.lead_s
        return left_s if left_s > LEAST * self._loop.limits.period_s else 0.0

    def _plan(self, rows: Floats, first: float, valid_ns: int, now: Moment) -> Plan | None:
        """The plan that replaces the controller's, the first of ``rows`` due after so many actions;
        None: no output takes plans."""
        loop, limits = self._loop, self._loop.limits
        if not loop.outputs.plans:
            return None
        lead_ns, whole = round(loop.outputs.lead_s * SECOND), self._endless
        begin_ns, period_ns = self._at_ns(now) + lead_ns, limits.action_period_ns
        self._near_anchor(begin_ns, now)
        positions, reach = (
            rows[:, list(limits.space.motion)],
            limiter.action_reach_of(limits, whole),
        )
        low, high = reach.low, reach.high
        if not limits.space.absolute:
            reach = limiter.action_joints_reach_of(limits, whole)
        leash, longer = self._leash(now, self._joints_reach), reach.step - self._joints_reach.step
        if leash is not None:
            leash = replace(leash, far=leash.far + np.maximum(longer, 0.0))
        if not limits.space.absolute:
            start = None if leash is None else leash.here
            if loop.outputs.commanded:
                commanded = self._course.at(begin_ns, period_ns, reach, leash)
                start = None if commanded is None else commanded.at
            if start is None:
                return None
            share = np.where(np.arange(len(rows)) > 0, 1.0, first)[:, None]
            steps = np.clip(positions, low * share, high * share)
            if self._chart is None:
                positions = start + np.cumsum(steps, 0)
            elif not len(positions := self._chart.added(start, steps)):
                return None
        left_s = self._left_s(valid_ns, now)
        plan = self._course.follow(positions, reach, begin_ns, period_ns, left_s, leash, first)
        return None if plan is None else replace(plan, begin_ns=now.now_ns + lead_ns)

    def _near_anchor(self, begin_ns: int, now: Moment) -> None:
        """Count an end effector's poses from one near to where it was commanded last."""
        if self._chart is None:
            return
        reach, period_ns = self._joints_reach, self._loop.limits.period_ns
        commanded = self._course.at(begin_ns, period_ns, reach, self._leash(now, reach))
        if commanded is not None:
            self._chart.move_to(commanded.at, self._course, self._joints)
            self._leashed = None

    def _joint_positions(
        self, kind: CommandKind, action: Floats, now: Moment, step: MotionStep | None
    ) -> Floats | None:
        """The joints' positions for the end of the period, in a space of displacements. Where they
        are counted from the measured joints, from those at the begin of the action."""
        loop, reach = self._loop, self._joints_reach
        leash, at_ns = self._leash(now, reach), self._at_ns(now)
        begin = self._joints.begin(reach, at_ns, loop.limits.period_ns, leash)
        if begin is None:
            return None
        commanded, share = begin
        if kind.moves and leash is not None:
            wish = commanded.at + action
            if not loop.outputs.commanded:
                here = reach.beside(leash.here, commanded.at)
                wish = here + action
                if step is not None and step.share < 1.0:
                    wish = self._towards_measured(step, commanded.at, here)
            commanded = limiter.pass_through(wish, commanded, reach, share, leash).commanded
        else:
            commanded = limiter.stand(commanded, reach, share)
        self._joints.take(commanded, reach, at_ns)
        return commanded.at

    def _towards_measured(self, step: MotionStep, at: Floats, here: Floats) -> Floats:
        """Position for the end of the period on the way to the measured joints plus an action."""
        if step.begins or self._goal is None:
            motion = step.action.action[list(self._loop.limits.space.motion)]
            bounds = self.action_reach
            self._goal = here + np.clip(motion, bounds.low, bounds.high)
        left = max(1.0 - step.phase, step.share)
        out: Floats = at + (self._goal - at) * (step.share / left)
        return out

    def _stands_still(self, passed: Passed, now: Moment) -> bool:
        """HOLD, and True, where the arm does not move at all although it is commanded to: an
        emergency stop, a protective stop, a controller that is not active."""
        loop, reach = self._loop, self._joints_reach
        here = self._here(now)
        if here is None or loop.shadow or not (loop.limits.space.absolute or self._takes_joints):
            return False
        leash, commanded = self._leash(now, reach), passed.commanded.at
        if not loop.limits.space.absolute:
            joints = self._joints.commanded
            commanded = here if joints is None else joints.at
        assert leash is not None
        far = limiter.apart(reach.beside(commanded, here), here, reach) >= _FAR * leash.far
        at_ns, period_ns = self._at_ns(now), loop.limits.period_ns
        stood_ns = self._following.stood_ns(bool(far.any()), here, reach, at_ns, period_ns)
        if not far.any() or not stood_ns or self._following.tries(at_ns):
            return False
        motion = loop.limits.space.motion
        names = ", ".join(loop.limits.space.names[motion[i]] for i in np.flatnonzero(far))
        reason = (
            f"the arm has not moved for {stood_ns / SECOND:.1f} s although {names} is commanded to:"
            " an emergency stop, a protective stop, or a controller that is not active?"
        )
        self._stalled_ns = at_ns
        held = safety.hold(loop.safety, reason, now.steady_ns)
        since = replace(held, since_ns=now.steady_ns - stood_ns)  # also that it was tried between
        latched = safety.latch(since, loop.limits, now.steady_ns)
        loop.become(latched if latched.latched else held)
        return True

    def _waits_for_arm(self, now: Moment) -> bool:
        """True while a HOLD goes on because the arm stands: until it moves, or is tried again."""
        loop = self._loop
        if self._stalled_ns is None or loop.safety.state is not PolicyState.HOLD:
            self._stalled_ns = None
            return False
        here, period_ns = self._here(now), loop.limits.period_ns
        assert here is not None
        moved = self._following.moved(here, self._joints_reach, period_ns)
        at_ns = self._at_ns(now)
        if moved or at_ns - self._stalled_ns > _TRIES_AFTER_NS:
            self._following.try_again(at_ns)
            return False
        loop.become(safety.keep(loop.safety, "the arm has not moved yet"))
        return True

    # Publication

    def _hold_still(self, now: Moment) -> bool:
        """A HELD command while the last action's observation is young enough; HOLD after that."""
        loop = self._loop
        if loop.safety.state is not PolicyState.RUNNING or self._source is None:
            return False
        age = self._age_ns(self._source, now)
        if age > loop.limits.max_age_ns:
            reason = f"observation age {age / MS:.0f} ms exceeds max_age"
            reason += f" {loop.limits.max_age_ns / MS:.0f} ms"
            loop.become(safety.hold(loop.safety, reason, now.steady_ns))
            return False
        loop.counters.missed_deadlines += 1
        loop.counters.held_published += 1
        self._send(CommandKind.HELD, None, now)
        return True

    def _age_ns(self, answer: PolicyAnswer, now: Moment) -> int:
        age_ns = safety.age_ns(
            now.now_ns,
            answer.inference.stamp_ns,
            now.steady_ns,
            answer.received_steady_ns,
            self._loop.sim_time,
        )
        return age_ns + self._loop.limits.smoothing_delay_ns

    def _made(
        self,
        kind: CommandKind,
        passed: Passed | None,
        now: Moment,
        plan: Plan | None,
        step: MotionStep | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> Command | None:
        """The command for the outputs; ``passed`` None: to stand still. Every number of every
        output is counted from here on. ``fields``: those of a command that is published, and so
        has a number. None: the position to stand still at is unknown."""
        loop, reach, at_ns = self._loop, self._reach, self._at_ns(now)
        begin = self._begin(now)
        if begin is None:
            return None
        commanded = limiter.stand(begin[0], reach, begin[1]) if passed is None else passed.commanded
        self._action.take(commanded, reach, at_ns)
        space = loop.limits.space
        action = np.zeros(space.width)
        action[list(space.motion)] = commanded.at
        positions = None
        if self._takes_joints:
            positions = commanded.at
            if not space.absolute:
                positions = self._joint_positions(kind, commanded.at, now, step)
        if loop.outputs.plans and kind is CommandKind.STOP:
            reach = self._joints_reach
            leash = self._leash(now, reach)
            plan = self._course.stop(reach, at_ns, loop.limits.period_ns, leash)
        latest_ns = loop.latest.stamp_ns if loop.latest is not None else 0
        openings = loop.measured.openings(now, loop.limits.max_age_ns)
        if self._chart is not None:
            positions, plan = None, None if plan is None else self._chart.plan(plan)
        if loop.outputs.wrapped and self._endless:
            positions, plan = self._wrapped(positions, plan)
        more: dict[str, Any] = {"joint_positions": positions, "plan": plan}
        if fields is not None:
            more |= {"sequence": self._commands.number(), **fields}
        return self._commands.make(kind, action, now, loop.instruction, latest_ns, openings, more)

    def _wrapped(
        self, positions: Floats | None, plan: Plan | None
    ) -> tuple[Floats | None, Plan | None]:
        """Positions and plan with endless joints from -pi to pi; a plan begins there and is counted
        on, or a controller would go the long way round between two of its points."""
        endless = list(self._endless)
        if positions is not None:
            positions = positions.copy()
            positions[endless] = limiter.wrapped(positions[endless])
        if plan is not None:
            first = plan.points[0][1]
            shift = np.zeros(len(first))
            shift[endless] = limiter.wrapped(first[endless]) - first[endless]
            plan = replace(plan, points=tuple((s, row + shift, v) for s, row, v in plan.points))
        return positions, plan

    def _send(
        self,
        kind: CommandKind,
        passed: Passed | None,
        now: Moment,
        origin: MotionStep | None = None,
        plan: Plan | None = None,
        until_ns: int = 0,
    ) -> None:
        """Publish a command with its source observation, its index in the chunk, its staleness and
        the times of its stages, as far as it has them. ``until_ns``: how long a person's is
        valid."""
        limits = self._loop.limits
        delay_ns = limits.smoothing_delay_ns
        fields: dict[str, Any] = {"valid_until_ns": until_ns}
        if kind is not CommandKind.STOP and self._source is not None:
            stamp_ns = self._source.inference.stamp_ns
            fields["stamp_ns"] = stamp_ns
            fields["received_ns"] = self._source.received_ns
            fields["valid_until_ns"] = stamp_ns + limits.max_age_ns - delay_ns
        if origin is not None:
            action, answer = origin.action, origin.action.answer
            inference = answer.inference
            due = action.index + origin.phase + inference.conditioning_delay  # in action periods
            due_ns = inference.stamp_ns + round(due * limits.action_period_ns)
            if self._spent is None or self._spent[0] is not answer:
                self._spent = answer, answer_ms(answer)
            stages = self._spent[1].copy()
            stages["gate"] += since_ms(answer, now)
            stages["gate"] += delay_ns / MS
            fields |= {
                "chunk_index": action.index,
                "action_phase": origin.phase,
                "corrected_ns": action.corrected_ns,
                "chunk_length": len(inference.actions),
                "staleness_ns": now.now_ns + delay_ns - due_ns,
                "stages_ms": stages,
                "total_ms": total_ms(answer, now, self._loop.sim_time) + delay_ns / MS,
            }
        command = self._made(kind, passed, now, plan, origin, fields)
        if command is not None:
            self._publish(command)

    def _publish(self, command: Command) -> None:
        """The last line before the topic."""
        self.last, self.sent = command, True
        self.moving = command.kind is not CommandKind.STOP
        self._loop.sink.publish(command)


class CommandMaker:
    """The numbers and grippers of one loop's commands. Not thread-safe.

    ``grippers`` is in every command, whatever its kind, one a gripper of the space. ``persistent``
    counts on where an earlier loop ended.
    """

    def __init__(self, space: ActionSpace, persistent: PersistentState) -> None:
        self._space = space
        self._persistent = persistent
        self.forget_grippers()

    def forget_grippers(self) -> None:
        """Their state is unknown: the next action is taken as it is."""
        self.grippers = tuple(Gripper() for _ in self._space.grippers)

    def move_grippers(
        self, action: Floats, now_ns: int, limits: Limits, commanded: Sequence[bool]
    ) -> None:
        """Take on an action's grippers, as far as they may follow; those ``commanded`` by it."""
        self.grippers = tuple(
            safety.steady_gripper(gripper, min(1.0, max(0.0, float(action[index]))), now_ns, limits)
            if moved
            else gripper
            for gripper, index, moved in zip(
                self.grippers, self._space.grippers, commanded, strict=True
            )
        )

    def make(
        self,
        kind: CommandKind,
        action: Floats,
        now: Moment,
        instruction: Instruction,
        latest_ns: int,
        openings: Sequence[float],
        fields: Mapping[str, Any],
    ) -> Command:
        """A command, published at ``now``; ``fields`` are its others. ``openings``: of the grippers
        as they are measured, NaN where they are not: one that was never commanded is kept there
        from now on."""
        self.grippers = tuple(
            gripper if gripper.known or not np.isnan(gripper.value) else Gripper(float(opening))
            for gripper, opening in zip(self.grippers, openings, strict=True)
        )
        action[list(self._space.grippers)] = [gripper.value for gripper in self.grippers]
        return Command(
            kind=kind,
            action=action,
            epoch=instruction.epoch,
            instruction_digest=instruction.digest,
            published_ns=now.now_ns,
            latest_ns=latest_ns,
            **{"sequence": 0, **fields},
        )

    def number(self) -> int:
        """The next command's number."""
        self._persistent.sequence += 1
        return self._persistent.sequence - 1


def answer_ms(answer: PolicyAnswer) -> dict[str, float]:
    """Durations of all stages up to the end of the inference, in milliseconds.

    ``transport`` is a difference of stamps (capture and receipt lie in two processes), all others
    are steady time. What passes from then on is the gate's (:func:`since_ms`), so the stages of a
    command sum to the time since capture.
    """
    spent = answer.inference.timeline.durations_ms()
    spent["transport"] = (answer.received_ns - answer.inference.stamp_ns) / MS
    return {stage: spent.get(stage, 0.0) for stage in STAGES}


def since_ms(answer: PolicyAnswer, now: Moment) -> float:
    """Time since the end of the inference, in milliseconds."""
    return (now.steady_ns - answer.inference.timeline.end_ns) / MS


def total_ms(answer: PolicyAnswer, now: Moment, sim_time: bool) -> float:
    """Capture to publication in milliseconds: by the stamps, or in simulated time, which
    stands still while a policy thinks, by the steady clock from receipt on."""
    if not sim_time:
        return (now.now_ns - answer.inference.stamp_ns) / MS
    transport = (answer.received_ns - answer.inference.stamp_ns) / MS
    return transport + (now.steady_ns - answer.received_steady_ns) / MS


def order_of(candidate: ChunkAction) -> tuple[int, int]:
    """Key by which commands are published in order and never twice: frame, then index in chunk."""
    return candidate.answer.inference.stamp_ns, candidate.index
