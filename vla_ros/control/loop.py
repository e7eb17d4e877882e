"""What both ways to run the control loop share: epoch, state, what comes in.

Three threads call a loop: the node's executor (frames, instructions, services), the worker's
reader (results) and the control tick. One lock makes each call atomic, publication included,
so nothing is published after :meth:`Control.deactivate` returns or from a void epoch.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from vla_ros import safety
from vla_ros.control.asking import Asking
from vla_ros.control.episodes import EpisodeCourse
from vla_ros.control.gate import PublishGate
from vla_ros.control.goals import Outcome
from vla_ros.control.intake import FrameCheck
from vla_ros.control.lasting import Lasting
from vla_ros.control.outlet import ControlOutlet
from vla_ros.control.queue import ActionQueue, Answer
from vla_ros.control.task_loop import TaskLoop
from vla_ros.control.timeline import Chunking, refuse_unless_able
from vla_ros.control.watch import ClockWatch
from vla_ros.core import EPISODE_OVER, Floats, Observation, PolicyInfo, PolicyState
from vla_ros.safety import Limits, Safety
from vla_ros.timing import MS, Clock, Moment, moment


class Control(TaskLoop):
    """Turns observations and inferences into commands; see the module's text for threads.

    :mod:`vla_ros.control.realtime` and :mod:`vla_ros.control.lockstep` say what a frame, an
    answer and a tick lead to. Methods with a leading underscore want the lock to be held.
    """

    def __init__(
        self,
        limits: Limits,
        info: PolicyInfo,
        clock: Clock,
        outlet: ControlOutlet,
        *,
        sim_time: bool,
        detect_frozen: bool = False,
        chunking: Chunking = Chunking(),
        expected: int = 0,
        lasting: Lasting | None = None,
    ) -> None:
        super().__init__(limits, clock, outlet, lasting or Lasting(), sim_time)
        refuse_unless_able(chunking, info)
        self._sim_time = sim_time
        self.lock = threading.RLock()
        expected += info.pipeline_depth - 1 if info.chunk_length == 1 else 0
        self._queue = ActionQueue(chunking, limits.space, info.chunk_length, expected)
        self.asking = Asking(self._queue, info)
        self._gate = PublishGate(self, outlet, sim_time)
        self._frames = FrameCheck(sim_time, detect_frozen)
        self._clock_watch = ClockWatch(sim_time, clock.steady_ns())
        self._episode = EpisodeCourse()
        self._resting = False  # between two episodes: nothing is asked for
        self.inference_s = 0.0  # L, as it was measured last

    @abstractmethod
    def offer(self, observation: Observation) -> None:
        """Take in a frame: newest wins."""

    @abstractmethod
    def result(self, epoch: int, answer: Answer | None) -> None:
        """The worker has answered: with an inference, or with None while a pipeline fills."""

    @abstractmethod
    def tick(self) -> None:
        """One control period has passed."""

    def execute_by(self, chunking: Chunking) -> None:
        """Another S from now on, where limits or the worker changed; the execution stays."""
        with self.lock:
            self._queue.chunking = chunking

    # ------------------------------------------------------------------ state

    def activate(self) -> None:
        """Begin anew: what an earlier activation did to the gripper, or saw, counts no more."""
        with self.lock:
            self._begin()
            self._flush()
            self._frames.forget()
            self.latest = None
            self._gate.forget()
            self.become(Safety(PolicyState.WAITING, self._lacks(), self._clock.steady_ns()))

    def deactivate(self) -> None:
        """From the return of this call on nothing is published. The task is stopped: the next
        activation does not begin it unasked."""
        with self.lock:
            self.goals.end(Outcome.FAILED, "the policy node was deactivated")
            if self.safety.active:
                self.lasting.latch.catch(self.instruction.text)
                self.instruction = replace(self.instruction, text="")
            self._flush()
            self.become(Safety(PolicyState.INACTIVE, "inactive", self._clock.steady_ns()))

    def shut_down(self) -> None:
        """Publish the last word, the stale policy's command, and publish nothing after it."""
        with self.lock:
            self.goals.end(Outcome.FAILED, "the policy node is shutting down")
            if self.safety.active and self._gate.moved:
                now = moment(self._clock)
                if self.safety.state is PolicyState.RUNNING:
                    self.held_pose = self.fresh_pose(now)  # it was on its way
                self._stop(now)
            self.deactivate()

    def recover(self) -> None:
        """Leave FAULT and HOLD: wait for a fresh action as after activation."""
        with self.lock:
            if self.safety.active:
                self._flush()
                self.become(safety.recover(self.safety, self._clock.steady_ns()))
                self._resubmit()

    def reset(self) -> None:
        """A new episode: flush everything, keep the instruction. What was stopped stays so until
        it is told again."""
        with self.lock:
            self.lasting.latch.new_episode()
            self._begin()
            self._flush()
            self._frames.forget()
            self.latest = None
            self._gate.forget()
            self._wait(self._lacks())

    def episode_runs(self, number: int, step: int) -> None:
        """A simulation says that its episode runs, after ``step`` steps. It has called
        :meth:`reset` before; where it could not, this is one."""
        with self.lock:
            if self._episode.is_echo(number, step):
                return
            if self._episode.over:
                self.reset()
            self._episode.runs(number)

    def episode_over(self, number: int, how: str, solved: bool = False) -> None:
        """A simulation says how its episode has ended: wait for the next one. Frames that still
        come are not acted upon. A goal ends with it."""
        with self.lock:
            if self._episode.ends(number, how, solved) and self.safety.active:
                self._end_episode()

    def _end_episode(self) -> None:
        self._rest()

    def _rest(self) -> None:
        """From now on everything in flight is void, and nothing is asked for."""
        self._resting = True
        outcome = Outcome.SUCCESS if self._episode.solved else Outcome.FAILED
        self.end_goal(outcome, f"{EPISODE_OVER}: {self._episode.over}")
        self._flush()
        self._wait(self._lacks())

    def _begin(self) -> None:
        self._episode.begin()
        self._resting = False

    def _flush(self) -> None:
        """Begin a new epoch: nothing computed so far may be executed any more."""
        self.begin_epoch(self._clock.steady_ns())
        self._queue.clear()
        self._gate.clear()

    def _wait(self, reason: str) -> None:
        if self.safety.active:
            steady = self._clock.steady_ns()
            self.become(safety.enter(self.safety, PolicyState.WAITING, reason, steady))

    def _lacks(self) -> str:
        if self._resting:
            return f"{EPISODE_OVER}: {self._episode.over}"
        if not self.instruction.text:
            if self.lasting.latch.holds:
                return "stopped: waits for resume or another instruction"
            return "waits for an instruction"
        if self._no_worker:
            return self._no_worker
        return "waits for a fresh frame and a valid action"

    def _stop(self, now: Moment) -> None:
        self._gate.stop(now)

    # ------------------------------------------------------------------ frames

    def drop(self, reason: str, of: str = "frame") -> None:
        """Count a frame that was refused; it refreshes no age. ``of``: the kind of its warning."""
        with self.lock:
            self.counters.frames_dropped += 1
            self.counters.last_drop = reason
            self._outlet.warn(of, f"frame dropped: {reason}")

    def measure(
        self, values: Floats, stamp_ns: int, received: Moment, places: Sequence[int] | None = None
    ) -> None:
        """Where the robot is: ``values`` for these ``places`` of an action, None for all of them.
        Of poses and of joints, see :class:`~vla_ros.control.whereabouts.Whereabouts`."""
        with self.lock:
            tolerance = self.limits.period_ns if self._sim_time else self.limits.clock_tolerance_ns
            age = received.now_ns - stamp_ns
            if not -tolerance <= age <= self.limits.max_age_ns:
                what = "joint state" if self.limits.space.kind.joints else "pose"
                self.drop(f"the measured {what} is {age / MS:.0f} ms old by its stamp")
                return
            places = range(len(values)) if places is None else places
            self.where.tell(places, values, stamp_ns, received.steady_ns)

    def _take_in(self, observation: Observation) -> bool:
        """Whether this frame may be used; it is the newest one then."""
        if reason := self._frames.refuse(observation, self.limits):
            self.drop(reason)
            return False
        if self._frames.looks_frozen:
            self._outlet.warn("frozen", "frames with new stamps show identical pixels")
        self.latest = observation
        return True

    def _resubmit(self) -> None:
        """Show the newest frame again: after an instruction change, or to a new worker."""
        if self.latest is not None and self._may_ask:
            self._ask(self.latest)

    def _ask(self, observation: Observation) -> None:
        """Hand the frame to the worker, unless an answer to it would not be executed."""
        running = self.safety.state is PolicyState.RUNNING
        question = self.asking.about(observation, self.limits, running)
        if question is not None:
            self._outlet.submit(question, self.instruction)

    def _act(self, now: Moment) -> bool:
        """Publish what comes next; see :meth:`PublishGate.let_through`."""
        action = self._queue.take(now.now_ns, self.limits)
        if self._queue.voided:
            self._outlet.warn("late", self._queue.voided)
        through = self._gate.let_through(action, now)
        if self._gate.acted is not None:
            self._queue.executed(now.now_ns, as_said=not self._gate.acted.clamped)
        elif self.safety.state is PolicyState.HOLD:
            self._queue.break_off(now.now_ns)
        return through

    @property
    def _may_ask(self) -> bool:
        """Whether there is something to ask the worker for."""
        able = self.safety.active and self.safety.state is not PolicyState.FAULT
        return able and not self._resting and bool(self.instruction.text)

    # ------------------------------------------------------------------ watchdogs

    def _watch_clock(self, now: Moment) -> bool:
        """After a jump of the clock everything in flight is void. Whether there was one."""
        reason = self._clock_watch.jumped(now, self.limits)
        if reason is None:
            return False
        self._flush()
        self._fell = False
        self._frames.forget()
        self.latest = None
        self.where.forget()
        self._outlet.warn("clock", f"{reason}: everything in flight is void")
        self.become(safety.hold(self.safety, reason, now.steady_ns))
        return True

    def _watch_pixels(self, now: Moment) -> None:
        if self._frames.frozen_for(now.steady_ns):
            reason = "the camera's pixels have not changed for 1 s"
            self.become(safety.hold(self.safety, reason, now.steady_ns))
