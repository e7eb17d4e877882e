"""A goal begins whatever was stopped, ends once, and leaves a robot that stands still."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from unit.runtime.control.bench import Bench, Recorder
from vla_ros.core.clock import SECOND
from vla_ros.core.types import CommandKind, PolicyState
from vla_ros.runtime.control.goals import Goal, GoalOutcome, GoalRefused, check_goal

POLICY, STOP = CommandKind.POLICY, CommandKind.STOP


def watched(bench):
    """The endings of its goals, in order."""
    endings = []
    bench.loop.goals.ended = endings.append
    return endings


@pytest.fixture(params=[False, True], ids=["realtime", "lockstep"])
def bench(request):
    """A task of the topic runs."""
    bench = Bench(lockstep=request.param).ready()
    assert bench.play() == [POLICY] * 3
    bench.endings = watched(bench)
    return bench


def stands_still(bench):
    kinds = bench.play(5)
    return POLICY not in kinds and bench.loop.instruction.text == ""


# What is asked for


@pytest.mark.parametrize(
    "text, limit, says",
    [
        ("", 0.0, "^the instruction is empty: to stop, cancel the goal or call ~/stop$"),
        (" \t", 0.0, "empty"),
        ("pick\nup", 0.0, "U+000A"),
        ("a" * 1001, 0.0, "1001 characters"),
        ("pick \ufffd", 0.0, "^the instruction is not UTF-8$"),
        ("pick", -0.1, "^time_limit_s is -0.1, must be finite and 0 or more$"),
        ("pick", math.nan, "time_limit_s is nan"),
        ("pick", math.inf, "time_limit_s is inf"),
    ],
)
def test_what_cannot_be_a_goal_is_refused_with_a_line(text, limit, says):
    with pytest.raises(GoalRefused, match=says.replace("+", r"\+")) as refused:
        check_goal(text, limit)
    assert "\n" not in str(refused.value)


def test_a_goal_has_its_text_stripped():
    assert check_goal("  pick ", 1.5) == Goal("pick", 1.5)


# How it begins


def test_nothing_computed_before_it_moves_the_robot(bench):
    bench.clock.advance(0.05)
    under_way, epoch = bench.frame(), bench.loop.instruction.epoch
    begin = len(bench.out.commands)
    bench.control.begin_goal(Goal("pick"))
    bench.answer(under_way, epoch=epoch)
    bench.control.tick()
    assert POLICY not in [c.kind for c in bench.out.commands[begin:]]
    assert bench.loop.instruction.epoch > epoch
    assert bench.out.submitted[-1][1].text == "pick"
    bench.answer(under_way)  # the same frame, asked again for the goal
    bench.control.tick()
    last = bench.out.commands[-1]
    assert (last.kind, last.epoch) == (POLICY, bench.loop.instruction.epoch)


@pytest.mark.parametrize("how", ["service", "empty instruction", "deactivation", "while loading"])
def test_it_is_an_explicit_will_and_releases_a_stop(bench, how):
    if how == "service":
        bench.control.stop()
    elif how == "empty instruction":
        bench.control.set_instruction("")
    elif how == "deactivation":
        bench.control.deactivate()
        bench.control.activate()
    else:
        bench.control.stop()
        bench.persistent.latch.close()
    bench.control.begin_goal(Goal("reach"))
    assert bench.play() == [POLICY] * 3


def test_another_one_preempts(bench):
    bench.control.begin_goal(Goal("pick"))
    bench.play()
    bench.control.begin_goal(Goal("place"))
    (ending,) = bench.endings
    assert (ending.outcome, ending.message) == (GoalOutcome.PREEMPTED, "another goal took over")
    assert bench.loop.goals.current == Goal("place") and bench.play() == [POLICY] * 3


# How it ends

ENDS = {
    "success": (lambda c: c.end_goal(GoalOutcome.SUCCESS, "done"), GoalOutcome.SUCCESS, "done"),
    "stop": (lambda c: c.stop(), GoalOutcome.CANCELED, "~/stop"),
    "empty text": (lambda c: c.set_instruction(""), GoalOutcome.CANCELED, "empty instruction"),
    "deactivate": (lambda c: c.deactivate(), GoalOutcome.FAILED, "deactivated"),
    "shut down": (lambda c: c.shut_down(), GoalOutcome.FAILED, "shutting down"),
    "fault": (lambda c: c.fault("broken"), GoalOutcome.FAILED, "FAULT: broken"),
    "solved": (lambda c: c.episode_over(1, "success", True), GoalOutcome.SUCCESS, "over: success"),
    "missed": (lambda c: c.episode_over(1, "too slow"), GoalOutcome.FAILED, "over: too slow"),
}


@pytest.mark.parametrize("end, outcome, says", ENDS.values(), ids=ENDS)
def test_however_it_ends_it_says_so_once_and_nothing_moves_after(bench, end, outcome, says):
    bench.control.episode_runs(1, 0)
    bench.control.begin_goal(Goal("pick"))
    assert bench.play() == [POLICY] * 3
    end(bench.control)
    bench.control.recover()
    (ending,) = bench.endings
    assert (ending.outcome, ending.actions) == (outcome, 3) and says in ending.message
    assert ending.duration_s == pytest.approx(0.15)
    assert stands_still(bench)
    for text in ("pick", "reach"):  # whoever repeats what was said before
        bench.control.set_instruction(text)
        assert stands_still(bench)
    assert not bench.control.end_goal(GoalOutcome.CANCELED, "again") and len(bench.endings) == 1


def test_invalid_answers_that_are_a_fault_end_it(bench):
    bench.control.begin_goal(Goal("pick"))
    for _ in range(3):
        bench.control.invalid(bench.loop.instruction.epoch, "NaN")
    assert [e.outcome for e in bench.endings] == [GoalOutcome.FAILED]
    assert "NaN" in bench.endings[0].message and bench.state is PolicyState.FAULT


def test_the_time_limit_is_the_caller_s_patience_by_the_steady_clock(bench):
    bench.control.begin_goal(Goal("pick", 1.0))
    bench.clock.steady += round(0.99 * SECOND)
    bench.control.tick()
    assert bench.endings == []
    bench.clock.steady += round(0.02 * SECOND)
    begin = len(bench.out.commands)
    bench.control.tick()
    (ending,) = bench.endings
    assert (ending.outcome, ending.message) == (
        GoalOutcome.TIME_LIMIT,
        "the time limit of 1 s has passed",
    )
    assert ending.duration_s == pytest.approx(1.01)
    assert POLICY not in [c.kind for c in bench.out.commands[begin:]], "in the very tick"
    assert stands_still(bench)


def test_a_lost_worker_a_hold_and_a_new_episode_do_not_end_it(bench):
    bench.control.begin_goal(Goal("pick", 100.0))
    bench.play()
    bench.control.worker_lost("killed")
    assert bench.state is PolicyState.HOLD
    bench.control.worker_ready()
    bench.control.recover()
    bench.control.reset()
    assert bench.endings == [] and bench.play() == [POLICY] * 3


def test_progress_counts_its_own_new_actions_and_their_ages(bench):
    bench.control.begin_goal(Goal("pick"))
    for _ in range(4):
        bench.clock.advance(0.05)
        observation = bench.frame()
        bench.clock.advance(0.04)
        bench.answer(observation)
        bench.control.tick()
        bench.frame(observation.stamp_ns)  # lock-step: the same answer once more is none
    progress = bench.loop.goals.progress
    assert (progress.actions, progress.ages.count) == (4, 4)
    assert progress.ages.p50 == pytest.approx(0.04) and progress.elapsed_s == pytest.approx(0.36)


# Topic and resume


def test_no_topic_preempts_it_and_what_was_said_meanwhile_starts_nothing_after(bench):
    bench.control.begin_goal(Goal("pick"))
    assert not bench.control.set_instruction("push")
    says = "instruction ignored: a goal runs; cancel it first"
    assert ("ignored", says) in bench.out.warnings and says in bench.loop.safety.said
    assert bench.play() == [POLICY] * 3 and bench.loop.instruction.text == "pick"
    bench.control.end_goal(GoalOutcome.SUCCESS, "done")
    for text in ("push", "reach", "pick"):
        assert not bench.control.set_instruction(text) and stands_still(bench)
    assert bench.control.set_instruction("stack"), "this is news"
    assert bench.control.set_instruction("push"), "and now it is another one"


def test_resume_takes_up_what_was_refused_last(bench):
    bench.control.begin_goal(Goal("pick"))
    bench.control.stop()
    bench.control.set_instruction("reach")
    assert bench.control.resume() and bench.loop.instruction.text == "reach"


def test_a_topic_that_may_preempt_does_with_news(bench):
    bench.loop.goals.topic_preempts = True
    bench.control.begin_goal(Goal("pick"))
    for text in ("pick", "reach"):  # its own text, and what the topic said all along
        assert not bench.control.set_instruction(text)
    assert bench.endings == []
    assert bench.control.set_instruction("push")
    assert [(e.outcome, e.message) for e in bench.endings] == [
        (GoalOutcome.PREEMPTED, "the topic said 'push'")
    ]
    assert bench.play() == [POLICY] * 3 and bench.loop.instruction.text == "push"


def test_resume_changes_no_goal_that_runs(bench):
    bench.loop.goals.topic_preempts = True
    bench.control.begin_goal(Goal("push"))
    bench.control.make_way()
    bench.control.begin_goal(Goal("pick"))
    assert not bench.control.set_instruction("push"), "the goal before it wanted that: no news"
    assert not bench.control.resume()
    assert bench.loop.instruction.text == "pick"


def test_a_topic_that_stands_still_says_nothing_new_after_a_cleanup(bench):
    """It is latched: the next configure reads it again."""
    bench.control.begin_goal(Goal("pick"))
    bench.control.deactivate()
    again = Bench(lockstep=bench.lockstep, persistent=bench.persistent, clock=bench.clock)
    again.control.set_instruction("reach")
    again.control.activate()
    assert stands_still(again)


# In any order


class Judge(Recorder):
    def __init__(self, world):
        super().__init__()
        self.world = world

    def publish(self, command):
        if command.kind is POLICY:
            control = self.world.bench.control
            assert command.epoch == control.loop.instruction.epoch > self.world.void, "an old epoch"
            assert control.loop.instruction.text, "nobody wants that"
        super().publish(command)


class AnyOrder(RuleBasedStateMachine):
    """Goals between everything else. ``void``: the newest epoch that no goal may use."""

    lockstep = False

    def __init__(self):
        super().__init__()
        self.void, self.begun, self.frames = 0, 0, []
        self.bench = Bench(lockstep=self.lockstep, out=Judge(self))
        self.endings = watched(self.bench)
        self.control = self.bench.control

    @initialize()
    def begin(self):
        self.control.activate()

    @rule()
    def activate(self):
        if not self.control.loop.safety.active:
            self.control.activate()

    @rule(text=st.sampled_from(("reach", "push")), limit=st.sampled_from((0.0, 0.1)))
    def goal(self, text, limit):
        epoch, running = self.control.loop.instruction.epoch, self.control.loop.goals.current
        try:
            self.control.begin_goal(Goal(text, limit))
        except GoalRefused:
            assert self.control.loop.safety.state in (PolicyState.INACTIVE, PolicyState.FAULT)
            assert running is None, "it would have ended"
            return
        self.begun += 1
        self.void = epoch
        instruction = self.control.loop.instruction
        assert instruction.text == text and instruction.epoch > epoch

    @rule(outcome=st.sampled_from(GoalOutcome))
    def end(self, outcome):
        if self.control.end_goal(outcome, "told"):
            self.void = self.control.loop.instruction.epoch
            assert self.endings[-1].outcome is outcome

    @rule(text=st.sampled_from(("", "reach", "push", "stack")), may=st.booleans())
    def say(self, text, may):
        self.control.loop.goals.topic_preempts = may
        running = self.control.loop.goals.current
        taken = self.control.set_instruction(text)
        if running and text:
            assert (self.control.loop.goals.current is None) == taken
            assert may or not taken

    @rule(
        what=st.sampled_from(
            ("stop", "resume", "recover", "reset", "worker_ready", "deactivate", "shut_down")
        )
    )
    def call(self, what):
        getattr(self.control, what)()

    @rule(what=st.sampled_from(("fault", "worker_lost")))
    def trouble(self, what):
        getattr(self.control, what)("broken")

    @rule(number=st.integers(1, 2), over=st.booleans(), solved=st.booleans())
    def episode(self, number, over, solved):
        if over:
            self.control.episode_over(number, "over", solved)
        else:
            self.control.episode_runs(number, 0)

    @rule(back=st.integers(1, 2))
    def cycle(self, back):
        self.bench.clock.advance(0.05)
        self.frames.append((self.bench.frame(), self.control.loop.instruction.epoch))
        if len(self.frames) >= back:
            observation, epoch = self.frames[-back]
            self.bench.answer(observation, epoch=epoch)
        self.control.tick()

    @invariant()
    def one_goal_at_a_time_each_with_one_end_and_nothing_in_fault(self):
        running = self.control.loop.goals.current
        assert len(self.endings) == self.begun - (running is not None)
        if running is not None:
            assert self.control.loop.safety.active
            assert self.control.loop.safety.state is not PolicyState.FAULT
            assert self.control.loop.instruction.text == running.text


class AnyOrderInLockstep(AnyOrder):
    lockstep = True


SETTINGS = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = SETTINGS
TestAnyOrderInLockstep = AnyOrderInLockstep.TestCase
TestAnyOrderInLockstep.settings = SETTINGS
