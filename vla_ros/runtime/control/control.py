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
from dataclasses import dataclass, replace
from typing import Protocol

from vla_ros.core.clock import MS, SECOND, Clock, Moment, moment
from vla_ros.core.types import (
    EPISODE_OVER,
    Command,
    Floats,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    PolicyState,
)
from vla_ros.runtime import safety
from vla_ros.runtime.control.corrections import Corrector
from vla_ros.runtime.control.gate import JointOutputs, PublishGate
from vla_ros.runtime.control.goals import (
    EpisodeTracker,
    Goal,
    GoalRefused,
    GoalTracker,
    Outcome,
    PersistentState,
)
from vla_ros.runtime.control.joints import MeasuredState
from vla_ros.runtime.control.observation import ClockWatch, FrameCheck
from vla_ros.runtime.control.queue import (
    ActionQueue,
    Answer,
    ChunkAction,
    Chunking,
    Execution,
    RequestBuilder,
    check_inference,
    refuse_unless_able,
)
from vla_ros.runtime.control.supply import FrameSupply
from vla_ros.runtime.control.takeover import Takeover, Teleoperation
from vla_ros.runtime.safety import Limits, Safety

_SAY_LACKS_NS = SECOND  # the figures in it change with every frame


class ControlSink(Protocol):
    """Where the loop's decisions go. Every call is made with the loop's lock held."""

    def submit(self, observation: Observation, instruction: Instruction) -> None:
        """Hand a frame to the worker; must not block."""

    def publish(self, command: Command) -> None:
        """Publish a command that has passed the gate."""

    def rest(self, command: Command) -> None:
        """A period without a command: what the outputs are to come to rest by, without a number."""

    def changed(self, before: Safety, after: Safety) -> None:
        """The state, its reason or the task is another one."""

    def warn(self, kind: str, text: str) -> None:
        """Something was dropped, clamped or blocked; ``kind`` is for throttling."""


@dataclass(slots=True)
class ControlCounts:
    """Counts since configuration, as PolicyStatus.msg reports them."""

    frames_received: int = 0
    frames_dropped: int = 0
    last_drop: str = ""
    actions_published: int = 0
    held_published: int = 0
    stops_published: int = 0
    takeover_published: int = 0
    missed_deadlines: int = 0
    actions_blocked: int = 0
    last_block: str = ""
    actions_clamped: int = 0

    def blocked(self, reason: str) -> None:
        """One action more that the gate stopped."""
        self.actions_blocked += 1
        self.last_block = reason


@dataclass(slots=True)
class WorkerState:
    """The worker as the loop knows it. ``missing``: why there is none, "" where there is one.
    ``ended_running``: its loss is what ended RUNNING."""

    missing: str = ""
    ended_running: bool = False


class Driver(ABC):
    """What a frame, an answer and a tick lead to: in real time or in lock-step.

    Of one loop. Every method is called with the loop's lock held.
    """

    def __init__(self, control: Control) -> None:
        self._control = control

    @abstractmethod
    def offer(self, observation: Observation) -> None:
        """A frame has come."""

    @abstractmethod
    def answered(self) -> None:
        """The worker has answered what was asked in this epoch, with or without an action."""

    @abstractmethod
    def tick(self, now: Moment) -> bool:
        """Of an active loop, once a control period or more often; whether a period has passed."""

    def taken_over(self) -> None:
        """A person's command has come."""

    @abstractmethod
    def stop(self, now: Moment) -> None:
        """Publish the command that stops the robot, where there is to be one."""

    @abstractmethod
    def leave(self, now: Moment) -> None:
        """The loop is about to forget what it set in motion: stop that, where there is to be
        a command for it."""

    @abstractmethod
    def void_answers(self) -> None:
        """The worker was lost: what it answered moves nothing any more."""

    @abstractmethod
    def end_episode(self) -> None:
        """The simulation's episode has ended."""


class Control:
    """Turns observations and inferences into commands. Threads: see the module.

    ``driver`` decides when to ask and to publish. ``goals``, ``queue`` and ``worker`` are what is
    to be done, what is to be executed next, and who answers. ``latest`` is the newest frame that
    was taken in. ``outputs``: what they take beside the action. ``turning``: the places in an
    action of joints that turn without end. ``inference_s``: L, as it was measured last.
    ``persistent`` outlives this loop. ``supply`` knows what keeps frames from completing.
    ``corrector`` is asked about each frame and for each action with ``execution: corrected``.
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
        self.clock, self.limits, self.info = clock, limits, info
        self.sink = sink
        self._sim_time = sim_time
        self.inference_s = inference_s
        self.persistent = persistent or PersistentState()
        self.counters = ControlCounts()
        self.safety = Safety(PolicyState.INACTIVE, "inactive", clock.steady_ns())
        self.goals = GoalTracker(clock)
        self.episode = EpisodeTracker()
        self.resting = False  # between two episodes: nothing is asked for
        self.instruction = Instruction("", self.persistent.epoch)
        self.instructed = False  # an instruction, a stop or a goal has come
        self.epoch_began_ns = clock.steady_ns()
        self.worker = WorkerState()
        self.latest: Observation | None = None
        self.measured = MeasuredState(limits.space, sim_time)
        self.outputs = JointOutputs()
        self.turning: frozenset[int] = frozenset()
        expected = math.ceil(inference_s / limits.period_s)
        expected += info.pipeline_depth - 1 if info.chunk_length == 1 else 0
        self.queue = ActionQueue(chunking, limits.space, info.chunk_length, expected)
        self.requests = RequestBuilder(self.queue, info)
        self.gate = PublishGate(self, sim_time)
        self.takeover = Takeover(limits.space, sim_time)
        self._frames = FrameCheck(sim_time, detect_frozen)
        self.supply = FrameSupply()
        self._lacks_ns = 0  # when the status was told of it last
        self.clock_watch = ClockWatch(sim_time, clock.steady_ns())
        self._driver = driver(self)

    def moment(self) -> Moment:
        """This instant, by both clocks."""
        return moment(self.clock)

    def set_turning(self, names: Collection[str]) -> None:
        """Joints that turn without end, as the robot's description or its owner says: they are
        compared modulo a turn."""
        with self.lock:
            space = self.limits.space
            self.turning = frozenset(p for p in space.motion if space.names[p] in names)

    def execute_by(self, chunking: Chunking) -> None:
        """Another S from now on, where limits or the worker changed; the execution stays."""
        with self.lock:
            self.queue.chunking = chunking

    # ------------------------------------------------------------------ state

    def activate(self) -> None:
        """Begin anew: what an earlier activation did to the gripper, or saw, counts no more."""
        with self.lock:
            self._begin_anew()
            self.become(Safety(PolicyState.WAITING, self._lacks(), self.clock.steady_ns()))

    def deactivate(self) -> None:
        """From the return of this call on nothing is published. The task is stopped: the next
        activation does not begin it unasked."""
        with self.lock:
            self.goals.end(Outcome.FAILED, "the policy node was deactivated")
            if self.safety.active:
                self._leave()
                self.gate.rest(self.moment())
                self.persistent.latch.catch(self.instruction.text)
                self.instruction = replace(self.instruction, text="")
            self.flush()
            self.become(Safety(PolicyState.INACTIVE, "inactive", self.clock.steady_ns()))

    def shut_down(self) -> None:
        """Publish the stale policy's command, and publish nothing after it."""
        with self.lock:
            self.goals.end(Outcome.FAILED, "the policy node is shutting down")
            if self.safety.active and (self.gate.moved or self.gate.moving):
                self._driver.stop(self.moment())
            self.deactivate()

    def brake(self, why: str) -> None:
        """The task ends, and the ticks bring the robot to rest: before a deactivation."""
        with self.lock:
            self.goals.end(Outcome.FAILED, why)
            self.release()
            self._stand_still()

    def _leave(self) -> None:
        if self.gate.moving:
            self._driver.leave(self.moment())

    def recover(self) -> None:
        """Leave FAULT and HOLD: wait for a fresh action as after activation."""
        with self.lock:
            if self.safety.active:
                self.flush()
                self.become(safety.recover(self.safety, self.clock.steady_ns()))
                self.resubmit()

    def reset(self) -> None:
        """A new episode: flush everything, keep the instruction. What was stopped stays so until
        it is given again."""
        with self.lock:
            self.persistent.latch.new_episode()
            self._give_back()  # in an epoch of its own: only a reset ends a bag's episode
            if self.safety.active:
                self._leave()
            self._begin_anew()
            self.measured.begin_anew()
            self._wait(self._lacks())

    def become(self, new: Safety) -> None:
        """Take on ``new``; the sink hears of another state or reason, and FAULT ends a goal."""
        old, self.safety = self.safety, new
        if (old.state, old.said) != (new.state, new.said):
            self.sink.changed(old, new)
        if new.state is PolicyState.FAULT:
            self.end_goal(Outcome.FAILED, f"FAULT: {new.reason}")

    def flush(self) -> None:
        """Begin a new epoch: nothing computed so far may be executed any more."""
        self.persistent.epoch += 1
        self.instruction = replace(self.instruction, epoch=self.persistent.epoch)
        self.epoch_began_ns = self.clock.steady_ns()
        self.queue.clear()
        self.gate.clear()

    def _begin_anew(self) -> None:
        """Of whatever was before an activation or an episode nothing counts."""
        self.episode.begin()
        self.resting = False
        self.flush()
        self._frames.forget()
        self.latest = None
        self.takeover.clear()
        self.gate.forget()

    def _wait(self, reason: str) -> None:
        """Go to WAITING, if active."""
        if self.safety.active:
            steady = self.clock.steady_ns()
            self.become(safety.enter(self.safety, PolicyState.WAITING, reason, steady))

    def _lacks(self) -> str:
        """What is waited for."""
        if self.resting:
            return f"{EPISODE_OVER}: {self.episode.over}"
        if not self.instruction.text:
            if self.persistent.latch.holds:
                return "stopped: waits for resume or another instruction"
            return "waits for an instruction"
        return self.worker.missing or "waits for a fresh frame and a valid action"

    # ------------------------------------------------------------------ the task

    def set_instruction(self, text: str) -> bool:
        """A new task, or the empty text to :meth:`stop`. Returns whether it is another one.

        After the return no action of the old task will be published. A task that was stopped is
        not begun again.
        """
        with self.lock:
            self.instructed = True
            if not text:
                return self.stop("an empty instruction was said")
            if self._goal_outweighs(text):
                return False
            if self.persistent.latch.withholds(text):
                self.ignore(f"'{text}' was stopped: resume, or give another instruction")
                return False
            if text == self.instruction.text:
                return False
            self.goals.end(Outcome.PREEMPTED, f"the topic said '{text}'")
            self.persistent.latch.release()
            self._take_up(text)
            return True

    def stop(self, why: str = "~/stop was called") -> bool:
        """The robot stands still until :meth:`resume` or another instruction; re-publishing the
        same one does not start it. Returns whether there was a task. A goal ends with ``why``."""
        with self.lock:
            self.instructed = True
            self.release()
            self.goals.end(Outcome.CANCELED, why)
            self.persistent.latch.catch(self.instruction.text)
            if not self.instruction.text:
                return False
            self._take_up("")
            return True

    def resume(self) -> bool:
        """Go on with the task that was stopped, or after a HOLD that lasted too long to end by
        itself. False: there is none, or a goal runs."""
        with self.lock:
            if self.safety.latched:
                self.flush()
                steady = self.clock.steady_ns()
                self.become(safety.recover(self.safety, steady, "resumed"))
                self.resubmit()
                return True
            latch = self.persistent.latch
            if not latch.holds or self.goals.current is not None:
                return False
            self._take_up(latch.release() or self.instruction.text)
            return True

    def take_over(self, command: Teleoperation) -> None:
        """A person's command: from the next period on the robot is his, while such come."""
        with self.lock:
            if not self.safety.active:
                return
            if why := self.takeover.refusal(command, self.moment(), self.limits):
                self.sink.warn("takeover", f"takeover command ignored: {why}")
            else:
                self._driver.taken_over()

    def release(self) -> bool:
        """The robot is the policy's again; a person who goes on is heard after he has paused.
        False: nobody had taken over."""
        with self.lock:
            self.takeover.release()
            return self._give_back()

    def persons(self, now: Moment) -> bool:
        """Whether a person has the robot now. Enters and leaves TAKEOVER."""
        if self.resting or not self.takeover.has_robot(now, self.limits):
            self._give_back()
            return False
        if self.safety.state is not PolicyState.TAKEOVER:
            self.takeover.under = self.safety
            reason = "a person has taken over"
            self.become(
                safety.enter(self.safety, PolicyState.TAKEOVER, reason, self.clock.steady_ns())
            )
        return True

    def _give_back(self) -> bool:
        """What was computed while a person moved the robot moves nothing. FAULT, and a HOLD that
        only somebody's word ends, come back."""
        if self.safety.state is not PolicyState.TAKEOVER:
            return False
        under, steady = self.takeover.under, self.clock.steady_ns()
        self.flush()
        if under.state is PolicyState.FAULT or under.latched:
            self.become(replace(under, since_ns=steady))
        else:
            self.become(Safety(PolicyState.WAITING, self._lacks(), steady))
        self.resubmit()
        return True

    def _take_up(self, text: str) -> None:
        """This is the task from now on, in an epoch of its own; "": none."""
        self.instruction = Instruction(text, self.instruction.epoch)
        self.flush()
        before = self.safety
        self._wait(self._lacks())
        if self.safety == before:
            self.sink.changed(before, before)  # whoever asked waits for the new epoch
        self.resubmit()

    # ------------------------------------------------------------------ goals

    def begin_goal(self, goal: Goal) -> None:
        """Do this, whatever was stopped or runs. Raises :class:`GoalRefused`.

        Nothing that was computed before is published after the return.
        """
        with self.lock:
            self.instructed = True
            if reason := self.goal_refusal():
                raise GoalRefused(reason)
            self.make_way()
            self.persistent.latch.give_way()
            self.goals.begin(goal)
            self._take_up(goal.text)

    def goal_refusal(self) -> str:
        """Why no goal can begin now; "": one can."""
        if not self.safety.active:
            return "the policy node is not active"
        if self.safety.state is PolicyState.FAULT:
            return f"the policy node is in FAULT, call ~/recover: {self.safety.reason}"
        return ""

    def make_way(self) -> None:
        """Another goal is about to begin: what runs ends, and nothing of it is published."""
        with self.lock:
            if not self.end_goal(Outcome.PREEMPTED, "another goal took over"):
                self._stand_still()

    def end_goal(self, outcome: Outcome, message: str) -> bool:
        """The goal is over and the robot stands still, as after :meth:`stop`. False: there was no
        goal, and nothing is changed."""
        with self.lock:
            if not self.goals.end(outcome, message):
                return False
            self._stand_still()
            return True

    def _stand_still(self) -> None:
        if self.instruction.text:
            self.persistent.latch.catch(self.instruction.text)
            self._take_up("")

    def _goal_outweighs(self, text: str) -> bool:
        """Whether a goal runs that no topic may end."""
        if (goal := self.goals.current) is None or self.goals.topic_preempts:
            return False
        if text != goal.text:
            self.persistent.latch.overrule(text)
            self.ignore("instruction ignored: a goal runs; cancel it first")
        return True

    def ignore(self, why: str) -> None:
        """Something was said that is not obeyed: whoever said it is told by the log and by the
        status, whose state stays."""
        with self.lock:
            self.sink.warn("ignored", why)
            if self.safety.active:
                self.become(replace(self.safety, keeps=why))

    def _watch_goal(self) -> None:
        if (goal := self.goals.current) is not None and self.goals.overdue:
            reason = f"the time limit of {goal.time_limit_s:g} s has passed"
            self.end_goal(Outcome.TIME_LIMIT, reason)

    # ------------------------------------------------------------------ a simulation's episodes

    def episode_runs(self, number: int, step: int) -> None:
        """A simulation reports that its episode runs, after ``step`` steps. It has called
        :meth:`reset` before; where it could not, this is one."""
        with self.lock:
            if self.episode.is_echo(number, step):
                return
            if self.episode.over:
                self.reset()
            self.episode.runs(number)

    def episode_over(self, number: int, how: str, solved: bool = False) -> None:
        """A simulation reports how its episode has ended: wait for the next one. Frames that still
        come are not acted upon. A goal ends with it."""
        with self.lock:
            if self.episode.ends(number, how, solved) and self.safety.active:
                self._driver.end_episode()

    def rest(self) -> None:
        """From now on everything in flight is void, and nothing is asked for."""
        self.resting = True
        outcome = Outcome.SUCCESS if self.episode.solved else Outcome.FAILED
        self.end_goal(outcome, f"{EPISODE_OVER}: {self.episode.over}")
        self.flush()
        self._wait(self._lacks())

    # ------------------------------------------------------------------ frames

    def offer(self, observation: Observation) -> None:
        """A new frame: newest wins."""
        with self.lock:
            self.counters.frames_received += 1
            self._driver.offer(observation)

    def pass_over(self) -> None:
        """Count a frame that nobody looked at, since there is nothing to do."""
        with self.lock:
            self.counters.frames_received += 1

    def drop(self, reason: str, of: str = "frame", stream: str = "") -> None:
        """Count a frame that was refused; it refreshes no age. ``of``: the kind of its warning.
        ``stream``: of what, where frames cannot complete without it."""
        with self.lock:
            if stream:
                self.supply.refused(stream, reason, self.clock.steady_ns())
            self.counters.frames_dropped += 1
            self.counters.last_drop = reason
            self.sink.warn(of, f"frame dropped: {reason}")

    def measure(
        self, values: Floats, stamp_ns: int, received: Moment, indices: Sequence[int] | None = None
    ) -> None:
        """Where the robot is: ``values`` at these ``indices`` of an action, None for all of them.
        Of poses and of joints, in the units of :class:`MeasuredState`."""
        with self.lock:
            tolerance = self.limits.period_ns if self._sim_time else self.limits.clock_tolerance_ns
            age = received.now_ns - stamp_ns
            if not -tolerance <= age <= self.limits.max_age_ns:
                what = "joint state" if self.limits.space.kind.joints else "pose"
                self.drop(f"the measured {what} is {age / MS:.0f} ms old by its stamp")
                return
            indices = range(len(values)) if indices is None else indices
            self.measured.update(indices, values, stamp_ns, received.steady_ns)

    def fresh_pose(self, now: Moment) -> Floats | None:
        """Where the robot is, unless that was measured longer than ``max_age_s`` ago."""
        return self.measured.at(now, self.limits.max_age_ns)

    def take_in(self, observation: Observation) -> bool:
        """Whether this frame may be used; it is the newest one then."""
        if reason := self._frames.refuse(observation, self.limits):
            self.drop(reason, stream="image")
            return False
        self.supply.complete(self.clock.steady_ns())
        if camera := self._frames.frozen:
            what = f"frames of the {camera} camera with new stamps show identical pixels"
            self.sink.warn("frozen", what)
        self.latest = observation
        return True

    @property
    def wants_frames(self) -> bool:
        """Whether a frame that comes now may move the robot, or would be looked at."""
        return self.safety.active and not self.resting and bool(self.instruction.text)

    @property
    def may_ask(self) -> bool:
        """Whether there is something to ask the worker for."""
        state = self.safety.state
        if state is PolicyState.TAKEOVER:
            state = self.takeover.under.state
        able = self.safety.active and state is not PolicyState.FAULT
        return able and not self.resting and bool(self.instruction.text)

    def resubmit(self) -> None:
        """Ask about the newest frame, if there is something to ask for and an answer would be
        executed. Of a frame that was asked about before: after another instruction, or of a new
        worker."""
        if self.latest is None or not self.may_ask:
            return
        running = self.safety.state is PolicyState.RUNNING
        request = self.requests.build(self.latest, self.limits, running)
        if request is not None:
            self.sink.submit(request, self.instruction)

    # ------------------------------------------------------------------ the worker

    def result(self, epoch: int, answer: Answer | None) -> None:
        """The worker has answered: with an inference, or with None while a pipeline fills."""
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
        """The policy returned something that is no action."""
        with self.lock:
            if not self._is_current(epoch):
                return
            self.queue.answered()
            self.counters.blocked(reason)
            self.sink.warn("invalid", f"invalid action dropped: {reason}")
            steady = self.clock.steady_ns()
            self.become(safety.after_invalid(self.safety, self.limits, reason, steady))
            if self._is_current(epoch):
                self._driver.answered()

    def unanswered(self, epoch: int, reason: str) -> None:
        """Whoever computes the policy was not reached. What is there is executed until it is too
        old; then the reason tells why nothing newer came."""
        with self.lock:
            if not self._is_current(epoch):
                return
            self.queue.answered()
            self.sink.warn("link", reason)
            if self.safety.state is PolicyState.WAITING:
                self.become(replace(self.safety, reason=reason))
            else:
                self.become(safety.keep(self.safety, reason))
            self._driver.answered()

    def fault(self, reason: str) -> None:
        """Something that no waiting will mend: latch until an explicit recover."""
        with self.lock:
            if self.safety.active:
                self.flush()
                steady = self.clock.steady_ns()
                self.become(safety.enter(self.safety, PolicyState.FAULT, reason, steady))
            else:
                self.become(replace(self.safety, reason=f"inactive: {reason}"))

    def worker_lost(self, reason: str) -> None:
        """The worker is gone; another one is being started. Its answers are void."""
        with self.lock:
            self.worker.missing = reason
            self.worker.ended_running |= self.safety.state is PolicyState.RUNNING
            self._driver.void_answers()
            self.become(safety.hold(self.safety, reason, self.clock.steady_ns()))
            if self.safety.state is PolicyState.WAITING:
                self._wait(self._lacks())

    def worker_ready(self) -> None:
        """A new worker is there: show it the newest frame at once.

        It has acted while it warmed up. Where nothing but the loss of the one before it stopped
        the robot, one valid action is enough to go on, as after an activation: a HOLD waits for
        several because observations came and went, and they did not.
        """
        with self.lock:
            ended_running, self.worker = self.worker.ended_running, WorkerState()
            waits = self.safety.state is PolicyState.WAITING or ended_running
            if waits and not self.safety.latched:
                self._wait(self._lacks())
            self.resubmit()

    def worker_switched(self, reason: str) -> None:
        """The worker is gone and another stands in its place: everything begins anew with it,
        the state too, but nothing is waited for other than its first answer."""
        with self.lock:
            self._driver.void_answers()
            if self.safety.state is PolicyState.RUNNING:
                self._wait(f"{reason}; the spare worker took over")
            self.resubmit()

    def _is_current(self, epoch: int) -> bool:
        return self.safety.active and epoch == self.instruction.epoch

    def _accepts(self, epoch: int, inference: Inference) -> bool:
        """Whether the inference has actions, and there is a task. Without one nothing was asked,
        whoever answers."""
        if not self.instruction.text:
            return False
        try:
            check_inference(inference, self.limits.space)
        except safety.ActionRefused as error:
            self.invalid(epoch, str(error))
            return False
        return True

    # ------------------------------------------------------------------ the tick

    def tick(self) -> bool:
        """Look at the clocks, and publish what is due. False: no control period has passed since
        the last time, by the clock that counts."""
        with self.lock:
            if not self.safety.active:
                return True
            self._watch_goal()
            now = self.moment()
            self._watch_supply(now.steady_ns)
            return self._driver.tick(now)

    def act(self, now: Moment) -> bool:
        """Publish what comes next; False as of :meth:`PublishGate.let_through`."""
        persons = self.persons(now)
        action = self._take(now)
        if persons:  # the policy goes on thinking, and nothing of it is executed
            self.queue.refused()
            self.queue.break_off(now.now_ns)
            self.gate.let_person_through(self.takeover, now)
            return True
        if action is not None and self._corrector is not None and self.latest is not None:
            action = self._corrector.correct(action, self.latest)
        through = self.gate.let_through(action, now)
        if self.gate.acted:
            self.queue.executed(now.now_ns, self.gate.as_said)
            return through
        if action is not None:
            self.queue.refused()
        if self.safety.state is PolicyState.HOLD:
            self.queue.break_off(now.now_ns)
        return through

    def _take(self, now: Moment) -> ChunkAction | None:
        action = self.queue.take(now.now_ns, self.limits)
        if self.queue.voided:
            self.sink.warn("late", self.queue.voided)
        return action

    def ask_corrector(self) -> None:
        """About the action that is next, by the newest frame: a frame or a chunk has come. A chunk
        that is there takes over now, so that its first action is corrected too."""
        if self._corrector is None or self.latest is None:
            return
        action = self._take(self.moment())
        if action is not None:
            self._corrector.ask(action, self.latest, self.instruction)

    def watch_hold(self, now: Moment) -> None:
        """A HOLD that lasts is not left without a word from somebody."""
        latched = safety.latch(self.safety, self.limits, now.steady_ns)
        if latched is not self.safety:
            self.sink.warn("latched", f"HOLD: {latched.said}")
            self.become(latched)

    def _watch_supply(self, steady_ns: int) -> None:
        """Where the robot waits for frames that do not complete, the reason says why."""
        state, waited_ns = self.safety, max(self.safety.since_ns, self.epoch_began_ns)
        waits = state.state in (PolicyState.WAITING, PolicyState.HOLD) and self.wants_frames
        lacks = self.supply.lacks(waited_ns, steady_ns) if waits else ""
        said_ago_ns = steady_ns - self._lacks_ns
        if lacks == state.lacks or (lacks and state.lacks and said_ago_ns < _SAY_LACKS_NS):
            return
        if not state.lacks and not self.supply.shows(waited_ns, steady_ns):  # else it was dropped
            self.sink.warn("lacks", f"{state.state.name}: {lacks}")
        self._lacks_ns = steady_ns
        self.become(replace(state, lacks=lacks))

    def watch_clock(self, now: Moment) -> None:
        """After a jump of the clock everything in flight is void."""
        reason = self.clock_watch.jumped(now, self.limits)
        if reason is None:
            return
        self.flush()
        self.worker.ended_running = False
        self._frames.forget()
        self.latest = None
        self.takeover.clear()
        self.measured.forget()
        self.sink.warn("clock", f"{reason}: everything in flight is void")
        self.become(safety.hold(self.safety, reason, now.steady_ns))

    def watch_pixels(self, now: Moment) -> None:
        """A camera that repeats its last picture is a HOLD."""
        if camera := self._frames.frozen_for(now.steady_ns):
            reason = f"the {camera} camera's pixels have not changed for 1 s"
            self.become(safety.hold(self.safety, reason, now.steady_ns))
