"""Whatever happens in whatever order: what may move a robot rests on what was asked and seen."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from unit.runtime.control.bench import Bench, Recorder
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import EPISODE_OVER, GRIPPER, CommandKind, PolicyState

POLICY = CommandKind.POLICY
TASKS = ("reach", "push")
GRIPPERS = (0.0, 0.3, 0.97, 1.0)


class Judge(Recorder):
    """Judges every command at the moment it is published, by what the world did before."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    def publish(self, command):
        world, loop = self.world, self.world.bench.loop
        assert world.active, "nothing is published while inactive"
        assert command.epoch == loop.instruction.epoch, "nothing of an old epoch"
        assert command.sequence == loop.persistent.sequence - 1
        if self.commands:
            assert command.sequence == self.commands[-1].sequence + 1
        self.judge_motion(command)
        self.judge_gripper(command)
        super().publish(command)

    def judge_motion(self, command):
        world, loop = self.world, self.world.bench.loop
        assert np.isfinite(command.action[:6]).all()
        assert np.abs(command.action[:3]).max() <= 0.05 + 1e-9
        if command.kind is not POLICY:
            assert not command.action[:6].any()
            return
        assert world.task and loop.instruction.text == world.task, "stopped, or another task"
        assert command.stamp_ns in world.seen, "a frame of this activation"
        key = (command.epoch, command.stamp_ns, command.chunk_index)
        if world.bench.lockstep and key in world.done:
            return  # the same answer to the same frame, which stands still and came again
        assert key not in world.done, "never twice"
        world.done.add(key)
        assert loop.safety.state is PolicyState.RUNNING
        age = command.published_ns - command.stamp_ns
        steady = world.bench.clock.steady - world.seen[command.stamp_ns]
        limit = loop.limits.max_age_ns
        assert -loop.limits.period_ns <= age <= limit
        if not world.simulated:
            assert steady <= limit

    def judge_gripper(self, command):
        asked = self.world.grippers
        if self.world.bench.lockstep and not self.world.moved and command.kind is not POLICY:
            return  # every frame is answered there, and the simulation ignores a STOP's gripper
        self.world.moved |= command.kind is POLICY
        assert command.action[GRIPPER] in asked, "as no action of this activation asked for"


class AnyOrder(RuleBasedStateMachine):
    """``task``: what the robot is asked to do, by the rules of a stop; ``seen``: frames of this
    activation with their receipt, ``grippers``: what its actions asked for."""

    lockstep = simulated = False

    def __init__(self):
        super().__init__()
        self.active = False
        self.task, self.stopped, self.repeatable = "", "", False
        self.seen, self.grippers, self.done = {}, set(), set()
        self.moved = False
        self.offered = []
        self.rested_from = 0, 0
        self.bench = Bench(lockstep=self.lockstep, sim_time=self.simulated, out=Judge(self))

    @initialize(runs=st.booleans())
    def begin(self, runs):
        """Half of the time from the middle of a motion."""
        if runs:
            self.activate()
            self.instruct("reach")
            self.cycle(0.01, 0.0)

    # The node's life

    @rule()
    def activate(self):
        if not self.active:
            self.active = True
            self.seen = {}
            self.forget()
            self.bench.control.activate()

    def forget(self):
        self.grippers, self.moved = set(), False

    @rule()
    def deactivate(self):
        self.bench.control.deactivate()
        if self.active:
            self.catch()
        self.active = False

    @rule()
    def clean_up_and_configure(self):
        """Another loop takes over what lasts."""
        self.deactivate()
        self.task = ""
        judge, clock, persistent = self.bench.out, self.bench.clock, self.bench.persistent
        self.bench = Bench(
            lockstep=self.lockstep,
            sim_time=self.simulated,
            out=judge,
            persistent=persistent,
            clock=clock,
        )
        self.offered.clear()
        self.done = set()

    @rule()
    def reset(self):
        """What moved is stopped first, with the grippers as they are."""
        self.repeatable = True
        self.bench.control.reset()
        self.forget()

    @rule()
    def recover(self):
        self.bench.control.recover()

    # The task

    def catch(self):
        if self.task:
            self.stopped = self.task
        self.task, self.repeatable = "", False

    @rule(text=st.sampled_from(("", *TASKS)))
    def instruct(self, text):
        if not text:
            self.catch()
        elif text != self.stopped or self.repeatable:
            if text != self.task:
                self.stopped, self.repeatable = "", False
            self.task = text
        self.bench.control.set_instruction(text)
        assert self.bench.loop.instruction.text == self.task

    @rule()
    def stop(self):
        self.catch()
        self.bench.control.stop()

    @rule()
    def resume(self):
        resumed = self.bench.control.resume()
        assert resumed == bool(self.stopped)
        if resumed:
            self.task, self.stopped, self.repeatable = self.stopped, "", False
        assert self.bench.loop.instruction.text == self.task

    # The world

    @rule(offset=st.integers(-700, 20), again=st.booleans())
    def frame(self, offset, again):
        stamp = self.bench.clock.now + offset * MS
        if again and self.offered:
            stamp = self.offered[-1][0].stamp_ns
        self.seen.setdefault(stamp, self.bench.clock.steady)
        observation = self.bench.frame(stamp)
        self.offered.append((observation, self.bench.loop.instruction.epoch))

    @rule(
        back=st.integers(1, 3),
        value=st.floats(allow_nan=True),
        gripper=st.sampled_from(GRIPPERS),
    )
    def answer(self, back, value, gripper):
        """A worker answers a frame under the epoch that it was given with."""
        if len(self.offered) < back:
            return
        observation, epoch = self.offered[-back]
        current = self.active and epoch == self.bench.loop.instruction.epoch
        if current and np.isfinite(value):
            self.grippers.add(gripper)
        self.bench.answer(observation, np.array([value] * 6 + [gripper]), epoch)

    @rule(small=st.floats(-0.05, 0.05), gripper=st.sampled_from(GRIPPERS))
    def cycle(self, small, gripper):
        """What mostly happens, so that states beyond WAITING are reached."""
        self.bench.clock.advance(0.05)
        self.frame(0, False)
        self.answer(1, small, gripper)
        self.bench.control.tick()

    @rule(seconds=st.floats(0.0, 0.7))
    def tick(self, seconds):
        self.bench.tick(seconds)

    @rule(jump=st.floats(-2.0, 2.0))
    def clock_jump(self, jump):
        self.bench.clock.now += round(jump * SECOND)

    # The worker

    @rule()
    def lose_worker(self):
        self.bench.control.worker_lost("killed")

    @rule()
    def worker_is_back(self):
        self.bench.control.worker_ready()

    @rule()
    def worker_gives_up(self):
        self.bench.control.fault("lost again")

    # Episodes

    @rule(number=st.integers(1, 2), step=st.integers(0, 1))
    def episode_runs(self, number, step):
        over = self.bench.control.episode
        is_reset = bool(over.over) and not over.is_echo(number, step)
        self.repeatable |= is_reset
        self.bench.control.episode_runs(number, step)
        if is_reset:
            self.forget()

    @rule(number=st.integers(1, 2))
    def episode_over(self, number):
        self.bench.control.episode_over(number, "success")

    @invariant()
    def between_episodes_one_command_stops_and_nothing_is_asked_for(self):
        out = self.bench.out
        if EPISODE_OVER not in self.bench.loop.safety.reason or self.lockstep:
            self.rested_from = len(out.commands), len(out.submitted)
            return
        commands, submitted = self.rested_from
        assert [c.kind for c in out.commands[commands:]] in ([], [CommandKind.STOP])
        assert len(out.submitted) == submitted


class AnyOrderInLockstep(AnyOrder):
    lockstep = simulated = True


class AnyOrderInSimulatedTime(AnyOrder):
    simulated = True


SETTINGS = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = SETTINGS
TestAnyOrderInLockstep = AnyOrderInLockstep.TestCase
TestAnyOrderInLockstep.settings = SETTINGS
TestAnyOrderInSimulatedTime = AnyOrderInSimulatedTime.TestCase
TestAnyOrderInSimulatedTime.settings = SETTINGS
