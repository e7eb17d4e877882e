"""The control loop: from observations and inferences to gated commands. ROS-free.

Three threads call a loop: the node's executor (frames, instructions, services), the worker's
reader (results) and the control tick. One lock makes each call atomic, publication included,
so nothing is published after :meth:`Control.deactivate` returns or from a void epoch.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace

from vla_ros.core.clock import MS, SECOND, Clock, Moment, moment
from vla_ros.core.types import (
    EPISODE_OVER,
    STOPPED,
    Floats,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    PolicyState,
)
from vla_ros.runtime import safety
from vla_ros.runtime.control.corrections import Corrector
from vla_ros.runtime.control.gate import PublishGate
from vla_ros.runtime.control.goals import (
    EpisodeTracker,
    Goal,
    GoalOutcome,
    GoalRefused,
    GoalTracker,
    PersistentState,
)
from vla_ros.runtime.control.joints import MeasuredState
from vla_ros.runtime.control.motion import Motion, MotionStep
from vla_ros.runtime.control.observation import ClockWatch, FrameCheck
from vla_ros.runtime.control.queue import (
    ActionQueue,
    ChunkAction,
    Chunking,
    Execution,
    PolicyAnswer,
    RequestBuilder,
    check_inference,
    refuse_unless_able,
)
from vla_ros.runtime.control.state import ControlSink, LoopState, WorkerState
from vla_ros.runtime.control.supply import FrameSupply
from vla_ros.runtime.control.takeover import Takeover, Teleoperation
from vla_ros.runtime.safety import Limits, Safety

_REPORT_LACKS_NS = SECOND  # the figures in it change with every frame
_CLOCK_COMES_NS = 3 * SECOND  # from a simulation that is there, on a busy machine
_EARLY = 0.1  # of a period: what a tick comes early by as clocks jitter


class Driver(ABC):
    """The way to run one loop, in real time or in lock-step: reactions to frames, answers and
    ticks.

    Every method is called with the loop's lock held. ``exact``: where a command is an action, it is
    the action, whatever was commanded before.
    """

    exact = False

    def __init__(self, control: Control) -> None:
        self._control, self._loop = control, control.loop

    @abstractmethod
    def offer(self, observation: Observation) -> None:
        """Take in a frame."""

    @abstractmethod
    def answered(self) -> None:
        """Use the worker's answer to a request of this epoch, with or without an action."""

    @abstractmethod
    def tick(self, now: Moment) -> bool:
        """Tick of an active loop, once a control period or more often; True: a period has
        passed."""

    def taken_over(self) -> None:
        """React to a person's command."""

    @abstractmethod
    def stop(self, now: Moment) -> None:
        """Publish the command that stops the robot, where there is to be one."""

    @abstractmethod
    def leave(self, now: Moment) -> None:
        """Stop what was set in motion, where there is to be a command for it: the loop is about to
        forget it."""

    @abstractmethod
    def void_answers(self) -> None:
        """Void the answers of a lost worker."""

    @abstractmethod
    def end_episode(self) -> None:
        """End the simulation's episode."""


class Control:
    """The control loop: observations and inferences into commands. Threads: see the module.

    ``loop`` is the state that its gate and its driver share with it. ``driver`` decides when to ask
    and to publish. ``queue`` holds the actions to execute, ``worker`` is the answering process.
    ``inference_s``: L, as it was measured at warm-up. ``persistent`` outlives this loop. ``supply``
    has the reasons for which frames do not complete. ``corrector`` is asked about each frame and
    for each action with ``execution: corrected``.
    """

    def __init__(
        self,
        limits: Limits,
        info: PolicyInfo,
        clock: Clock,
        sink: ControlSink,
        driver: type[Driver],
        *,
        sim_time: bool,
        detect_frozen: bool = False,
        chunking: Chunking = Chunking(),
        inference_s: float = 0.0,
        persistent: PersistentState | None = None,
        corrector: Corrector | None = None,
    ) -> None:
        refuse_unless_able(chunking, info)
        self._corrector = corrector if chunking.execution is Execution.CORRECTED else None
        if chunking.execution is Execution.CORRECTED and corrector is None:
            raise ValueError("execution 'corrected' in lock-step is `vla-ros eval --no-ros`")
        self.lock = threading.RLock()
        self.clock = clock
        persistent = persistent or PersistentState()
        self.loop = LoopState(
            limits,
            info,
            sink,
            sim_time,
            inference_s,
            persistent,
            faulted=self._faulted,
            goals=GoalTracker(clock),
            measured=MeasuredState(limits.space, sim_time),
            instruction=Instruction("", persistent.epoch),
            safety=Safety(PolicyState.INACTIVE, "inactive", clock.steady_ns()),
            epoch_began_ns=clock.steady_ns(),
        )
        self.episode = EpisodeTracker()
        self.worker = WorkerState()
        expected = math.ceil(inference_s / limits.action_period_s)
        expected += info.pipeline_depth - 1 if info.chunk_length == 1 else 0
        self.queue = ActionQueue(chunking, limits.space, info.chunk_length, expected)
        self.requests = RequestBuilder(self.queue, info)
        period_s = limits.action_period_s
        self.motion = Motion(limits.space, period_s, chunking.blend_s, driver.exact)
        self._person = Motion(limits.space, period_s)
        self._stepped_ns = 0  # when the last step was made
        self.gate = PublishGate(self.loop)
        self.takeover = Takeover(limits.space, sim_time)
        self._frames = FrameCheck(sim_time, detect_frozen)
        self._clock_missed_ns: int | None = None  # when the first frame came without a /clock
        self.supply = FrameSupply()
        self._lacks_ns = 0  # of the last report of it
        self.clock_watch = ClockWatch(sim_time, clock.steady_ns())
        self._driver = driver(self)

    def moment(self) -> Moment:
        """This instant, by both clocks."""
        return moment(self.clock)

    def set_turning(self, names: Collection[str]) -> None:
        """Set the joints that turn without end, by the robot's description or its owner: they are
        compared modulo a turn."""
        with self.lock:
            space = self.loop.limits.space
            self.loop.turning = frozenset(i for i in space.motion if space.names[i] in names)

    def execute_by(self, chunking: Chunking) -> None:
        """Set another S, where limits or the worker changed; the execution stays."""
        with self.lock:
            self.queue.chunking = chunking

    @property
    def at_rest(self) -> bool:
        """True once every output's commanded motion has come to rest."""
        with self.lock:
            return self.gate.at_rest(self.moment())

    # State

    def activate(self) -> None:
        """Begin anew: grippers and frames of an earlier activation count no more."""
        with self.lock:
            self._begin_anew()
            self.loop.become(Safety(PolicyState.WAITING, self._lacks(), self.clock.steady_ns()))

    def deactivate(self) -> None:
        """End publication: nothing goes out after the return of this call. The task is stopped: the
        next activation does not begin it unasked."""
        with self.lock:
            self.loop.goals.end(GoalOutcome.FAILED, "the policy node was deactivated")
            if self.loop.safety.active:
                self._leave()
                self.gate.rest(self.moment())
                self.loop.persistent.latch.catch(self.loop.instruction.text)
                self.loop.instruction = replace(self.loop.instruction, text="")
            self.flush()
            self.loop.become(Safety(PolicyState.INACTIVE, "inactive", self.clock.steady_ns()))

    def shut_down(self) -> None:
        """Publish the stale policy's command, and publish nothing after it."""
        with self.lock:
            self.loop.goals.end(GoalOutcome.FAILED, "the policy node is shutting down")
            if self.loop.safety.active and (self.gate.moved or self.gate.moving):
                self._driver.stop(self.moment())
            self.deactivate()

    def brake(self, why: str) -> None:
        """End the task, while ticks go on and bring the robot to rest: before a deactivation."""
        with self.lock:
            self.loop.goals.end(GoalOutcome.FAILED, why)
            self.release()
            self._stand_still()

    def _leave(self) -> None:
        if self.gate.moving:
            self._driver.leave(self.moment())

    def recover(self) -> None:
        """Leave FAULT and HOLD: wait for a fresh action as after activation."""
        with self.lock:
            if self.loop.safety.active:
                self.flush()
                self.loop.become(safety.recover(self.loop.safety, self.clock.steady_ns()))
                self.resubmit()

    def reset(self) -> None:
        """Begin an episode: flush everything, keep the instruction. A stopped task stays so until
        it is given again."""
        with self.lock:
            self.loop.persistent.latch.new_episode()
            self._give_back()  # in an epoch of its own: only a reset ends a bag's episode
            if self.loop.safety.active:
                self._leave()
            self._begin_anew()
            self.loop.measured.begin_anew()
            self._wait(self._lacks())

    def _faulted(self, reason: str) -> None:
        """End the goal that runs: a FAULT."""
        self.end_goal(GoalOutcome.FAILED, f"FAULT: {reason}")

    def flush(self) -> None:
        """Begin a new epoch: nothing computed so far may be executed any more."""
        self.loop.persistent.epoch += 1
        self.loop.instruction = replace(self.loop.instruction, epoch=self.loop.persistent.epoch)
        self.loop.epoch_began_ns = self.clock.steady_ns()
        self.queue.clear()
        self.motion.clear()
        self.gate.clear()

    def _begin_anew(self) -> None:
        """Forget everything from before an activation or an episode."""
        self.episode.begin()
        self.loop.resting = False
        self.flush()
        self._frames.forget()
        self.loop.latest = None
        self.takeover.clear()
        self.gate.forget()

    def _wait(self, reason: str) -> None:
        """Go to WAITING, if active."""
        if self.loop.safety.active:
            steady = self.clock.steady_ns()
            self.loop.become(safety.enter(self.loop.safety, PolicyState.WAITING, reason, steady))

    def _lacks(self) -> str:
        """What a WAITING loop waits for."""
        if self.loop.resting:
            return f"{EPISODE_OVER}: {self.episode.over}"
        if not self.loop.instruction.text:
            if self.loop.persistent.latch.holds:
                return f"{STOPPED}waits for resume or another instruction"
            return "waits for an instruction"
        return self.worker.missing or "waits for a fresh frame and a valid action"

    # The task

    def set_instruction(self, text: str) -> bool:
        """Set a task, or the empty text to :meth:`stop`. True: it is another one.

        After the return no action of the old task will be published. A task that was stopped is
        not begun again.
        """
        with self.lock:
            self.loop.instructed = True
            if not text:
                return self.stop("an empty instruction was said")
            if self._goal_outweighs(text):
                return False
            if self.loop.persistent.latch.withholds(text):
                self.ignore(f"'{text}' was stopped: resume, or give another instruction")
                return False
            if text == self.loop.instruction.text:
                return False
            self.loop.goals.end(GoalOutcome.PREEMPTED, f"the topic said '{text}'")
            self.loop.persistent.latch.release()
            self._take_up(text)
            return True

    def stop(self, why: str = "~/stop was called") -> bool:
        """Stop the robot until :meth:`resume` or another instruction; re-publishing the same one
        does not start it. True: there was a task. A goal ends with ``why``."""
        with self.lock:
            self.loop.instructed = True
            self.release()
            self.loop.goals.end(GoalOutcome.CANCELED, why)
            self.loop.persistent.latch.catch(self.loop.instruction.text)
            if not self.loop.instruction.text:
                return False
            self._take_up("")
            return True

    def resume(self) -> bool:
        """Go on with the task that was stopped, or after a HOLD that lasted too long to end by
        itself. False: there is none, or a goal runs."""
        with self.lock:
            if self.loop.safety.latched:
                self.flush()
                steady = self.clock.steady_ns()
                self.loop.become(safety.recover(self.loop.safety, steady, "resumed"))
                self.resubmit()
                return True
            latch = self.loop.persistent.latch
            if not latch.holds or self.loop.goals.current is not None:
                return False
            self._take_up(latch.release() or self.loop.instruction.text)
            return True

    def take_over(self, command: Teleoperation) -> None:
        """Take in a person's command: from the next period on the robot is theirs, while such
        come."""
        with self.lock:
            if not self.loop.safety.active:
                return
            if why := self.takeover.refusal(command, self.moment(), self.loop.limits):
                self.loop.sink.warn("takeover", f"takeover command ignored: {why}")
            else:
                self._driver.taken_over()

    def release(self) -> bool:
        """Give the robot back to the policy; a person's commands count again after a pause. False:
        it was not taken over."""
        with self.lock:
            self.takeover.release()
            return self.resume() if self.loop.safety.lapsed else self._give_back()

    def under_takeover(self, now: Moment) -> bool:
        """True while a person has the robot. Enters and leaves TAKEOVER."""
        if self.loop.resting:
            self._give_back()
            return False
        if not self.takeover.has_robot(now, self.loop.limits):
            self._lapse()
            return False
        if self.loop.safety.state is not PolicyState.TAKEOVER:
            if not self.loop.safety.lapsed:  # then it is the same takeover that goes on
                self.takeover.under = self.loop.safety
            reason = "a person has taken over"
            self.loop.become(
                safety.enter(self.loop.safety, PolicyState.TAKEOVER, reason, self.clock.steady_ns())
            )
        return True

    def _lapse(self) -> None:
        """Leave TAKEOVER where the person's commands ended without a word: they let go, or their
        link was lost. HOLD, since nobody said that the policy may move what they were moving."""
        under = self.takeover.under
        if self.loop.safety.state is not PolicyState.TAKEOVER:
            return
        if under.state is PolicyState.FAULT or under.latched:
            self._give_back()
            return
        self.flush()
        self.loop.become(
            Safety(
                PolicyState.HOLD,
                "the person's commands ended and nobody gave the robot back",
                self.clock.steady_ns(),
                keeps="call ~/release or ~/resume",
                latched=True,
                lapsed=True,
            )
        )
        self.resubmit()

    def _give_back(self) -> bool:
        """Leave TAKEOVER; what was computed meanwhile is void. FAULT, and a latched HOLD, come
        back."""
        if self.loop.safety.state is not PolicyState.TAKEOVER:
            return False
        under, steady = self.takeover.under, self.clock.steady_ns()
        self.flush()
        if under.state is PolicyState.FAULT or under.latched:
            self.loop.become(replace(under, since_ns=steady))
        else:
            self.loop.become(Safety(PolicyState.WAITING, self._lacks(), steady))
        self.resubmit()
        return True

    def _take_up(self, text: str) -> None:
        """Begin a task in an epoch of its own; "": none."""
        self.loop.instruction = Instruction(text, self.loop.instruction.epoch)
        self.flush()
        before = self.loop.safety
        self._wait(self._lacks())
        if self.loop.safety == before:
            self.loop.sink.changed(before, before)  # the caller waits for the new epoch
        self.resubmit()

    # Goals

    def begin_goal(self, goal: Goal) -> None:
        """Begin a goal, whatever was stopped or runs. Raises :class:`GoalRefused`.

        Nothing that was computed before is published after the return.
        """
        with self.lock:
            self.loop.instructed = True
            if reason := self.goal_refusal():
                raise GoalRefused(reason)
            self.make_way()
            self.loop.persistent.latch.give_way()
            self.loop.goals.begin(goal)
            self._take_up(goal.text)

    def goal_refusal(self) -> str:
        """Reason for which no goal can begin now; "": one can."""
        if not self.loop.safety.active:
            return "the policy node is not active"
        if self.loop.safety.state is PolicyState.FAULT:
            return f"the policy node is in FAULT, call ~/recover: {self.loop.safety.reason}"
        return ""

    def make_way(self) -> None:
        """End what runs, of which nothing is published any more: another goal is about to begin."""
        with self.lock:
            if not self.end_goal(GoalOutcome.PREEMPTED, "another goal took over"):
                self._stand_still()

    def end_goal(self, outcome: GoalOutcome, message: str) -> bool:
        """End the goal; the robot stands still, as after :meth:`stop`. False: there was no goal,
        and nothing is changed."""
        with self.lock:
            if not self.loop.goals.end(outcome, message):
                return False
            self._stand_still()
            return True

    def _stand_still(self) -> None:
        if self.loop.instruction.text:
            self.loop.persistent.latch.catch(self.loop.instruction.text)
            self._take_up("")

    def _goal_outweighs(self, text: str) -> bool:
        """True while a goal runs that no topic may end."""
        if (goal := self.loop.goals.current) is None or self.loop.goals.topic_preempts:
            return False
        if text != goal.text:
            self.loop.persistent.latch.overrule(text)
            self.ignore("instruction ignored: a goal runs; cancel it first")
        return True

    def ignore(self, why: str) -> None:
        """Report a command that is not obeyed, in the log and in the status, whose state stays."""
        with self.lock:
            self.loop.sink.warn("ignored", why)
            if self.loop.safety.active:
                self.loop.become(replace(self.loop.safety, keeps=why))

    def _watch_goal(self) -> None:
        if (goal := self.loop.goals.current) is not None and self.loop.goals.overdue:
            reason = f"the time limit of {goal.time_limit_s:g} s has passed"
            self.end_goal(GoalOutcome.TIME_LIMIT, reason)

    # A simulation's episodes

    def episode_runs(self, number: int, step: int) -> None:
        """Note that a simulation's episode runs, after ``step`` steps. It has called :meth:`reset`
        before; where it could not, this is one."""
        with self.lock:
            if self.episode.is_echo(number, step):
                return
            if self.episode.over:
                self.reset()
            self.episode.runs(number)

    def episode_over(self, number: int, how: str, solved: bool = False) -> None:
        """Note how a simulation's episode has ended: wait for the next one. Frames that still come
        are not acted upon. A goal ends with it."""
        with self.lock:
            if self.episode.ends(number, how, solved) and self.loop.safety.active:
                self._driver.end_episode()

    def rest(self) -> None:
        """Rest between episodes: everything in flight is void, and nothing is asked for."""
        self.loop.resting = True
        outcome = GoalOutcome.SUCCESS if self.episode.solved else GoalOutcome.FAILED
        self.end_goal(outcome, f"{EPISODE_OVER}: {self.episode.over}")
        self.flush()
        self._wait(self._lacks())

    # Frames

    def offer(self, observation: Observation) -> None:
        """Take in a frame: newest wins."""
        with self.lock:
            self.loop.counters.frames_received += 1
            self._driver.offer(observation)

    def pass_over(self) -> None:
        """Count a frame that was not read, since there is nothing to do."""
        with self.lock:
            self.loop.counters.frames_received += 1

    def drop(self, reason: str, of: str = "frame", stream: str = "") -> None:
        """Count a frame that was refused; it refreshes no age. ``of``: the kind of its warning.
        ``stream``: its own, where frames cannot complete without it."""
        with self.lock:
            if stream:
                self.supply.refused(stream, reason, self.clock.steady_ns())
            self.loop.counters.frames_dropped += 1
            self.loop.counters.last_drop = reason
            if not self._looks_for_clock():
                self.loop.sink.warn(of, f"frame dropped: {reason}")

    def _looks_for_clock(self) -> bool:
        """Whether /clock is only not found yet: frames may be there some moments before it."""
        if not self.loop.sim_time or self.clock.now_ns() > 0:
            return False
        steady = self.clock.steady_ns()
        if self._clock_missed_ns is None:
            self._clock_missed_ns = steady
        return steady - self._clock_missed_ns < _CLOCK_COMES_NS

    def measure(
        self, values: Floats, stamp_ns: int, received: Moment, indices: Sequence[int] | None = None
    ) -> None:
        """Take in a measurement: ``values`` at these ``indices`` of an action, None for all of
        them, of poses or of joints, in the units of :class:`MeasuredState`."""
        with self.lock:
            limits, age = self.loop.limits, received.now_ns - stamp_ns
            tolerance = limits.period_ns if self.loop.sim_time else limits.clock_tolerance_ns
            if not -tolerance <= age <= limits.max_age_ns:
                what = "joint state" if limits.space.kind.joints else "pose"
                self.drop(f"the measured {what} is {age / MS:.0f} ms old by its stamp")
                return
            indices = range(len(values)) if indices is None else indices
            self.loop.measured.update(indices, values, stamp_ns, received.steady_ns)

    def take_in(self, observation: Observation) -> bool:
        """Check a frame; True: it may be used, and is the newest one."""
        if reason := self._frames.refuse(observation, self.loop.limits):
            self.drop(reason, stream="image")
            return False
        self.supply.complete(self.clock.steady_ns())
        if camera := self._frames.frozen:
            what = f"frames of the {camera} camera with new stamps show identical pixels"
            self.loop.sink.warn("frozen", what)
        self.loop.latest = observation
        return True

    @property
    def wants_frames(self) -> bool:
        """True while a frame of now may move the robot, or would be read."""
        loop = self.loop
        return loop.safety.active and not loop.resting and bool(loop.instruction.text)

    @property
    def may_ask(self) -> bool:
        """True while there is something to ask the worker for."""
        state = self.loop.safety.state
        if state is PolicyState.TAKEOVER:
            state = self.takeover.under.state
        able = self.loop.safety.active and state is not PolicyState.FAULT
        return able and not self.loop.resting and bool(self.loop.instruction.text)

    def resubmit(self) -> None:
        """Ask about the newest frame, if there is something to ask for and an answer would be
        executed. Of a frame that was asked about before: after another instruction, or of a new
        worker."""
        if self.loop.latest is None or not self.may_ask:
            return
        running = self.loop.safety.state is PolicyState.RUNNING
        request = self.requests.build(self.loop.latest, self.loop.limits, running)
        if request is not None:
            self.loop.sink.submit(request, self.loop.instruction)

    # The worker

    def result(self, epoch: int, answer: PolicyAnswer | None) -> None:
        """Take in the worker's answer: an inference, or None while a pipeline fills."""
        with self.lock:
            if not self._is_current(epoch):
                return
            self.queue.answered()
            if answer is None:
                self._driver.answered()
            elif self._accepts(epoch, answer.inference):
                self.queue.put(answer)
                self._driver.answered()

    def invalid(self, epoch: int, reason: str) -> None:
        """Take in an output that is no action."""
        with self.lock:
            if not self._is_current(epoch):
                return
            self.queue.answered()
            loop = self.loop
            loop.counters.blocked(reason)
            loop.sink.warn("invalid", f"invalid action dropped: {reason}")
            steady = self.clock.steady_ns()
            loop.become(safety.after_invalid(loop.safety, loop.limits, reason, steady))
            if self._is_current(epoch):
                self._driver.answered()

    def unanswered(self, epoch: int, reason: str) -> None:
        """Note that the policy's server was not reached. The actions in the queue are executed
        until they are too old; then the reason explains why nothing newer came."""
        with self.lock:
            if not self._is_current(epoch):
                return
            self.queue.answered()
            self.loop.sink.warn("link", reason)
            if self.loop.safety.state is PolicyState.WAITING:
                self.loop.become(replace(self.loop.safety, reason=reason))
            else:
                self.loop.become(safety.keep(self.loop.safety, reason))
            self._driver.answered()

    def fault(self, reason: str) -> None:
        """Enter FAULT for a reason that no waiting mends: latched until an explicit recover."""
        with self.lock:
            if self.loop.safety.active:
                self.flush()
                steady = self.clock.steady_ns()
                self.loop.become(safety.enter(self.loop.safety, PolicyState.FAULT, reason, steady))
            else:
                self.loop.become(replace(self.loop.safety, reason=f"inactive: {reason}"))

    def worker_lost(self, reason: str) -> None:
        """Note that the worker is gone; another one is being started. Its answers are void."""
        with self.lock:
            self.worker.missing = reason
            self.worker.ended_running |= self.loop.safety.state is PolicyState.RUNNING
            self._driver.void_answers()
            self.loop.become(safety.hold(self.loop.safety, reason, self.clock.steady_ns()))
            if self.loop.safety.state is PolicyState.WAITING:
                self._wait(self._lacks())

    def worker_ready(self) -> None:
        """Begin with a new worker: it gets the newest frame at once.

        It has acted while it warmed up. Where nothing but the loss of the one before it stopped
        the robot, one valid action is enough to go on, as after an activation: a HOLD waits for
        several because observations came and went, and they did not.
        """
        with self.lock:
            ended_running, self.worker = self.worker.ended_running, WorkerState()
            waits = self.loop.safety.state is PolicyState.WAITING or ended_running
            if waits and not self.loop.safety.latched:
                self._wait(self._lacks())
            self.resubmit()

    def worker_switched(self, reason: str) -> None:
        """Go on with the spare worker: everything begins anew with it, the state too, but only its
        first answer is waited for."""
        with self.lock:
            self._driver.void_answers()
            if self.loop.safety.state is PolicyState.RUNNING:
                self._wait(f"{reason}; the spare worker took over")
            self.resubmit()

    def _is_current(self, epoch: int) -> bool:
        return self.loop.safety.active and epoch == self.loop.instruction.epoch

    def _accepts(self, epoch: int, inference: Inference) -> bool:
        """True of an inference with actions while there is a task; without one nothing was
        asked."""
        if not self.loop.instruction.text:
            return False
        try:
            check_inference(inference, self.loop.limits.space)
        except safety.ActionRefused as error:
            self.invalid(epoch, str(error))
            return False
        return True

    # The tick

    def tick(self) -> bool:
        """Watch the clocks, and publish what is due. False: no control period has passed since the
        last time, by the clock that counts."""
        with self.lock:
            if not self.loop.safety.active:
                return True
            self._watch_goal()
            now = self.moment()
            self._watch_supply(now.steady_ns)
            return self._driver.tick(now)

    def act(self, now: Moment) -> bool:
        """Publish the next command; False as of :meth:`PublishGate.let_through`."""
        if self.under_takeover(now):  # the policy goes on computing, and nothing is executed of it
            self._take(now)
            self._break_motion()
            self.queue.refused()
            self.queue.break_off(now.now_ns)
            self.gate.let_person_through(self.takeover, self._person, now)
            return True
        self._person.clear()
        step = self._next_step(now)
        through = self.gate.let_through(step, now)
        if step is not None and self.gate.acted:
            if not self.gate.unchanged:
                self.motion.held()
            self.queue.executed(now.now_ns, self.gate.unchanged, step.share)
            return through
        self._break_motion()
        if step is not None:
            self.queue.refused()
        if self.loop.safety.state is PolicyState.HOLD:
            self.queue.break_off(now.now_ns)
        return through

    def _next_step(self, now: Moment) -> MotionStep | None:
        """What this period makes of the actions that are there; None: there are none."""
        limits, motion = self.loop.limits, self.motion
        if motion.left and not self.gate.goes_on(now):
            self._break_motion()
        motion.smooth(limits.smoothing_hz)
        periods = self._periods(now)
        motion.open(limits.actions_a_period, periods)
        while motion.wants():
            action = self._take(now, motion.made)
            if action is None:
                break
            if self._corrector is not None and self.loop.latest is not None:
                action = self._corrector.correct(action, self.loop.latest)
            if not self.gate.admits(action, now):
                self.queue.refused()
                break
            self.queue.begin()
            chunking = self.queue.chunking
            motion.blend_s = chunking.blend_s
            rests = chunking.execution is Execution.SYNC
            motion.begin(action, self.gate.commanded(now), self.gate.action_reach, rests)
        return motion.close(periods * limits.period_s, self.loop.outputs.plans)

    def _periods(self, now: Moment) -> int:
        """Control periods since the last command of a motion: of a late tick's no more than an
        action is made up for. What is left of a period counts for the next command, which comes
        the earlier: ticks keep to their grid."""
        limits = self.loop.limits
        at_ns = now.now_ns if self.loop.sim_time else now.steady_ns
        since_ns, period_ns = at_ns - self._stepped_ns, limits.period_ns
        most = max(1, limits.action_period_ns // period_ns) if self.motion.left else 1
        periods = min(most, max(1, math.floor(since_ns / period_ns + _EARLY)))
        over_ns = periods * period_ns - since_ns  # below 0: of the next one
        self._stepped_ns = at_ns + min(max(over_ns, -period_ns if most > 1 else 0), period_ns)
        return periods

    def _break_motion(self) -> None:
        """What is left of the action that was begun is void."""
        self.motion.clear()
        self.queue.drop()

    def _take(self, now: Moment, made: float = 0.0) -> ChunkAction | None:
        action = self.queue.take(now.now_ns, self.loop.limits, made)
        if self.queue.voided:
            self.loop.sink.warn("late", self.queue.voided)
        return action

    def ask_corrector(self) -> None:
        """Ask the corrector about the next action, by the newest frame. A chunk that is there takes
        over now, so that its first action is corrected too."""
        if self._corrector is None or self.loop.latest is None:
            return
        action = self._take(self.moment())
        if action is not None:
            self._corrector.ask(action, self.loop.latest, self.loop.instruction)

    def watch_hold(self, now: Moment) -> None:
        """Latch a HOLD that lasts, which an explicit call ends."""
        latched = safety.latch(self.loop.safety, self.loop.limits, now.steady_ns)
        if latched is not self.loop.safety:
            self.loop.sink.warn("latched", f"HOLD: {latched.said}")
            self.loop.become(latched)

    def _watch_supply(self, steady_ns: int) -> None:
        """Report why frames do not complete where the robot waits for them."""
        state = self.loop.safety
        waited_ns = max(state.since_ns, self.loop.epoch_began_ns)
        waits = state.state in (PolicyState.WAITING, PolicyState.HOLD) and not self.loop.resting
        lacks = self.supply.lacks(waited_ns, steady_ns) if waits else ""
        reported_ago_ns = steady_ns - self._lacks_ns
        if lacks == state.lacks or (lacks and state.lacks and reported_ago_ns < _REPORT_LACKS_NS):
            return
        if not state.lacks and not self.supply.shows(waited_ns, steady_ns):  # else it was dropped
            self.loop.sink.warn("lacks", f"{state.state.name}: {lacks}")
        self._lacks_ns = steady_ns
        self.loop.become(replace(state, lacks=lacks))

    def watch_clock(self, now: Moment) -> None:
        """Void everything in flight after a jump of the clock."""
        reason = self.clock_watch.jumped(now, self.loop.limits)
        if reason is None:
            return
        self.flush()
        self.worker.ended_running = False
        self._frames.forget()
        self.loop.latest = None
        self.takeover.clear()
        self.loop.measured.forget()
        self.loop.sink.warn("clock", f"{reason}: everything in flight is void")
        self.loop.become(safety.hold(self.loop.safety, reason, now.steady_ns))

    def watch_pixels(self, now: Moment) -> None:
        """HOLD where a camera repeats its last image."""
        if camera := self._frames.frozen_for(now.steady_ns):
            reason = f"the {camera} camera's pixels have not changed for 1 s"
            self.loop.become(safety.hold(self.loop.safety, reason, now.steady_ns))
