"""The control loop: what the policy node does, without ROS.

Three threads call it: the node's executor (frames, instructions, services), the worker's
reader (results) and the control tick. One lock makes each call atomic, publication included,
so nothing is published after :meth:`Control.deactivate` returns or from a void epoch.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from vla_ros import safety
from vla_ros.control.actions import ActionQueue, Answer, ChunkAction
from vla_ros.control.commands import CommandMaker, order_of
from vla_ros.control.intake import FrameCheck
from vla_ros.control.outlet import ControlCounts, ControlOutlet
from vla_ros.control.watch import ClockWatch
from vla_ros.core import (
    GRIPPER,
    Command,
    CommandKind,
    Floats,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    PolicyState,
    StalePolicy,
)
from vla_ros.safety import Gripper, Limits, Safety
from vla_ros.timing import MS, SECOND, Clock, Moment, moment


class Control:
    """Turns observations and inferences into commands. See the module's text for threads.

    ``lockstep``: every frame is answered once, as soon as its action is there, and the tick
    publishes nothing. Otherwise the tick publishes one command a control period.
    """

    def __init__(
        self,
        limits: Limits,
        info: PolicyInfo,
        clock: Clock,
        outlet: ControlOutlet,
        *,
        lockstep: bool = False,
        sim_time: bool = False,
        detect_frozen: bool = False,
        replan_interval: int = 0,
    ) -> None:
        self.lock = threading.RLock()
        self.limits = limits
        self.info = info
        self.counters = ControlCounts()
        self.safety = Safety(PolicyState.INACTIVE, "inactive", clock.steady_ns())
        self.instruction = Instruction("", 0)
        self.measured_pose: Floats | None = None  # for stale_policy 'hold'
        self.inference_s = 0.0  # L: inference time at warm-up, for the stuck-pipeline check
        self._clock = clock
        self._outlet = outlet
        self._lockstep = lockstep
        self._sim_time = sim_time
        self._queue = ActionQueue(replan_interval)
        self._frames = FrameCheck(sim_time, detect_frozen)
        self._asked = False  # whether any instruction was ever given
        self._latest: Observation | None = None
        self._evidence: Answer | None = None  # what the last policy command rests on
        self._last_order = (0, -1)
        self._commands = CommandMaker(sim_time)
        self._moved = False  # whether a policy command went out since activation or reset
        self._last_answer: Command | None = None
        self._clock_watch = ClockWatch(sim_time, lockstep, clock.steady_ns())
        self._epoch_began_ns = clock.steady_ns()
        self._held_pose: Floats | None = None

    # ------------------------------------------------------------------ state

    def _set(self, new: Safety) -> None:
        old, self.safety = self.safety, new
        if (old.state, old.reason) == (new.state, new.reason):
            return
        if old.state != new.state:
            self._held_pose = None if self.measured_pose is None else self.measured_pose.copy()
        self._outlet.changed(old, new)

    def _flush(self) -> None:
        """Begin a new epoch: nothing computed so far may be executed any more."""
        self.instruction = replace(self.instruction, epoch=self.instruction.epoch + 1)
        self._queue.clear()
        self._evidence = None
        self._last_answer = None
        self._commands.rest(self.limits.absolute)
        self._epoch_began_ns = self._clock.steady_ns()

    def _wait(self, reason: str) -> None:
        if self.safety.active:
            self._set(
                safety.enter(self.safety, PolicyState.WAITING, reason, self._clock.steady_ns())
            )

    def activate(self) -> None:
        with self.lock:
            self._flush()
            self._frames.forget()
            self._set(Safety(PolicyState.WAITING, self._lacks(), self._clock.steady_ns()))

    def deactivate(self) -> None:
        """From the return of this call on nothing is published."""
        with self.lock:
            self._flush()
            self._set(Safety(PolicyState.INACTIVE, "inactive", self._clock.steady_ns()))

    def shut_down(self) -> None:
        """Publish the last word, the stale policy's command, and publish nothing after it."""
        with self.lock:
            if self.safety.active and self._moved:
                self._publish_stop(moment(self._clock))
            self.deactivate()

    def stop(self) -> None:
        """Forget the task: the robot stands still until it is given a new instruction."""
        self.set_instruction("")

    def recover(self) -> None:
        """Leave FAULT and HOLD: wait for a fresh action as after activation."""
        with self.lock:
            if self.safety.active:
                self._flush()
                self._set(safety.recover(self.safety, self._clock.steady_ns()))
                self._resubmit()

    def reset(self) -> None:
        """A new episode: flush everything, keep the instruction."""
        with self.lock:
            self._flush()
            self._frames.forget()
            self._latest = None
            self._commands.gripper = Gripper()
            self._moved = False
            self._wait(self._lacks())

    def _lacks(self) -> str:
        if not self.instruction.text:
            return "waits for an instruction"
        return "waits for a fresh frame and a valid action"

    # ------------------------------------------------------------------ what comes in

    def set_instruction(self, text: str) -> bool:
        """A new task, or the empty text to stop. Returns whether it is another one.

        After the return no action of the old task will be published.
        """
        with self.lock:
            self._asked = True
            if text == self.instruction.text:
                return False
            self.instruction = Instruction(text, self.instruction.epoch)
            self._flush()
            before = self.safety
            self._wait(self._lacks())
            if self.safety == before:
                self._outlet.changed(before, before)  # whoever asked waits for the new epoch
            self._resubmit()
            return True

    def _resubmit(self) -> None:
        """Show the newest frame again: after an instruction change, or to a new worker."""
        if self._latest is not None and self.safety.active:
            self._request(self._latest)

    def _request(self, observation: Observation) -> None:
        if self.instruction.text and self.safety.state is not PolicyState.FAULT:
            self._outlet.submit(observation, self.instruction)

    def drop(self, reason: str) -> None:
        """Count a frame that was refused; it refreshes no age."""
        with self.lock:
            self.counters.frames_dropped += 1
            self.counters.last_drop = reason
            self._outlet.warn("frame", f"frame dropped: {reason}")

    def offer(self, observation: Observation) -> None:
        """Take in a frame: newest wins."""
        with self.lock:
            self.counters.frames_received += 1
            if self._lockstep and self._answered_again(observation):
                return
            if reason := self._frames.refuse(observation, self.limits):
                self.drop(reason)
                return
            if self._frames.looks_frozen:
                self._outlet.warn("frozen", "frames with new stamps show identical pixels")
            self._latest = observation
            if not self.safety.active:
                return
            if self._lockstep and self._answer_without_worker():
                return
            self._request(observation)

    def _answered_again(self, observation: Observation) -> bool:
        """In lock-step a frame that comes again was lost, or its answer was: idempotent."""
        if self._latest is None or observation.stamp_ns != self._latest.stamp_ns:
            return False
        last = self._last_answer
        if not self.safety.active:
            return True
        if last is not None and last.latest_ns == observation.stamp_ns:
            self._publish(self._commands.again(last))
        elif self._stopped:  # the frame came before the empty instruction did
            self._publish_stop(self._now())
        return True

    @property
    def _stopped(self) -> bool:
        """There is nothing to do and there will not be: told to stop, or FAULT."""
        told = self._asked and not self.instruction.text
        return told or self.safety.state is PolicyState.FAULT

    def _now(self) -> Moment:
        """This instant. In lock-step it is at least that of the newest frame, which may have
        overtaken /clock: what is decided by time must not depend on that."""
        now = moment(self._clock)
        if not self._lockstep or self._latest is None:
            return now
        return replace(now, now_ns=max(now.now_ns, self._latest.stamp_ns))

    def _answer_without_worker(self) -> bool:
        if self._stopped:
            self._publish_stop(self._now())
            return True
        if not self._queue.exhausted:
            self._step(self._now())
            return True
        return False

    def result(self, epoch: int, answer: Answer | None) -> None:
        """The worker has answered: with an inference, or with None while a pipeline fills."""
        with self.lock:
            if not self.safety.active or epoch != self.instruction.epoch:
                return
            if answer is not None:
                try:
                    self._check(answer.inference)
                except safety.ActionRefused as error:
                    self.invalid(epoch, str(error))
                    return
                self._queue.put(answer)
            if self._lockstep:
                self._step(self._now())

    @staticmethod
    def _check(inference: Inference) -> None:
        if len(inference.actions) == 0:
            raise safety.ActionRefused("the policy returned no action")
        for action in inference.actions:
            safety.refuse_unless_numbers(action)

    def invalid(self, epoch: int, reason: str) -> None:
        """The policy said something that is no action."""
        with self.lock:
            if not self.safety.active or epoch != self.instruction.epoch:
                return
            now = moment(self._clock)
            self.counters.actions_blocked += 1
            self._outlet.warn("invalid", f"invalid action dropped: {reason}")
            self._set(safety.after_invalid(self.safety, self.limits, reason, now.steady_ns))
            if self._lockstep:
                self._publish_idle(now)

    def fault(self, reason: str) -> None:
        """Something that no waiting will mend: latch until an explicit recover."""
        with self.lock:
            if self.safety.active:
                self._flush()
                now = self._clock.steady_ns()
                self._set(safety.enter(self.safety, PolicyState.FAULT, reason, now))

    def worker_lost(self, reason: str) -> None:
        """The worker is gone; another one is being started."""
        with self.lock:
            self._queue.clear()
            self._set(safety.hold(self.safety, reason, self._clock.steady_ns()))

    def worker_ready(self) -> None:
        """A new worker is there: show it the newest frame at once."""
        with self.lock:
            self._resubmit()

    # ------------------------------------------------------------------ the tick

    def tick(self) -> None:
        """One control period: watch, then publish one command (real time only)."""
        with self.lock:
            if not self.safety.active:
                return
            now = moment(self._clock)
            self._watch_clock(now)
            self._watch_pipeline(now)
            if self._frames.frozen_for(now.steady_ns):
                reason = "the camera's pixels have not changed for 1 s"
                self._set(safety.hold(self.safety, reason, now.steady_ns))
            if not self._lockstep:
                self._step(now)

    def _step(self, now: Moment) -> None:
        candidate = self._queue.take()
        if candidate is not None and self._admitted(candidate, now):
            self._try(candidate, now)
        else:
            self._publish_idle(now)

    def _age_ns(self, answer: Answer, now: Moment) -> int:
        return safety.age_ns(
            now.now_ns,
            answer.inference.stamp_ns,
            now.steady_ns,
            answer.received_steady_ns,
            self._sim_time,
        )

    def _admitted(self, candidate: ChunkAction, now: Moment) -> bool:
        """Whether the action is newer than all before it and its evidence fresh enough."""
        age = self._age_ns(candidate.answer, now)
        if self._evidence is not None and order_of(candidate) <= self._last_order:
            reason = "an action of this or a later frame was published already"
        elif age > self.limits.max_age_ns:
            reason = f"its evidence is {age / MS:.0f} ms old, max_age is"
            reason += f" {self.limits.max_age_ns / MS:.0f} ms"
        else:
            return True
        self.counters.actions_blocked += 1
        self._outlet.warn("blocked", f"action blocked: {reason}")
        return False

    def _try(self, candidate: ChunkAction, now: Moment) -> None:
        """Send one fresh action through the gate; publish it if the state then allows it."""
        gated = safety.gate(candidate.action, self._commands.before, self.limits)
        if gated.clamped:
            self.counters.actions_clamped += 1
            self._outlet.warn("clamped", f"action clamped to its {gated.clamped}")
        self._set(safety.after_valid(self.safety, self.limits, gated.far, now.steady_ns))
        if self.safety.state is not PolicyState.RUNNING:
            self._publish_idle(now)
            return
        wanted = float(gated.action[GRIPPER])
        self._commands.gripper = safety.steady_gripper(
            self._commands.gripper, wanted, now.now_ns, self.limits
        )
        self._evidence, self._last_order = candidate.answer, order_of(candidate)
        self._moved = True
        self.counters.actions_published += 1
        self._send(CommandKind.POLICY, gated.action, now, candidate)

    def _publish_idle(self, now: Moment) -> None:
        """No new action: hold still while the evidence lasts, then the stale policy."""
        if self.safety.state is PolicyState.RUNNING and self._evidence is not None:
            age = self._age_ns(self._evidence, now)
            if age <= self.limits.max_age_ns:
                self.counters.missed_deadlines += 1
                self.counters.held_published += 1
                self._send(CommandKind.HELD, self._commands.still(self.limits.absolute), now)
                return
            reason = f"observation age {age / MS:.0f} ms exceeds max_age"
            reason += f" {self.limits.max_age_ns / MS:.0f} ms"
            self._set(safety.hold(self.safety, reason, now.steady_ns))
        silent = now.steady_ns - self.safety.since_ns > self.limits.silence_after_s * SECOND
        # Before the first action nothing was set in motion, and the gripper's state is unknown:
        # a command could only do harm.
        if self._lockstep or (self._moved and not silent):
            self._publish_stop(now)

    def _publish_stop(self, now: Moment) -> None:
        """The stale policy's command, if it has one. In lock-step there is always an answer."""
        still: Floats | None = np.zeros(7)
        if self.limits.absolute:
            still = self._held_pose
        elif self.limits.stale_policy is StalePolicy.SILENCE and not self._lockstep:
            still = None
        if still is not None:
            self.counters.stops_published += 1
            self._send(CommandKind.STOP, still, now)

    def _send(
        self, kind: CommandKind, action: Floats, now: Moment, candidate: ChunkAction | None = None
    ) -> None:
        """Make and publish a command. The last line before the topic."""
        latest_ns = self._latest.stamp_ns if self._latest is not None else 0
        command = self._commands.make(kind, action, now, self.instruction, latest_ns)
        if kind is not CommandKind.STOP and self._evidence is not None:
            command = self._commands.resting_on(command, self._evidence, self.limits)
        if candidate is not None:
            command = self._commands.accounted(command, candidate, now)
        self._publish(command)

    def _publish(self, command: Command) -> None:
        self._last_answer = command
        self._outlet.publish(command)

    # ------------------------------------------------------------------ watchdogs

    def _watch_clock(self, now: Moment) -> None:
        if reason := self._clock_watch.jumped(now, self.limits):
            self._clock_jumped(reason, now)
        elif reason := self._clock_watch.stands_still(now, self.limits):
            self._set(safety.hold(self.safety, reason, now.steady_ns))

    def _clock_jumped(self, reason: str, now: Moment) -> None:
        self._flush()
        self._frames.forget()
        self._latest = None
        self._outlet.warn("clock", f"{reason}: everything in flight is void")
        self._set(safety.hold(self.safety, reason, now.steady_ns))

    def _watch_pipeline(self, now: Moment) -> None:
        """Frames go in, and nothing has come out for three pipeline times."""
        if self.safety.state is not PolicyState.WAITING or self._latest is None:
            return
        if not self.instruction.text or self._lockstep:
            return
        depth = self.info.pipeline_depth
        pipeline_s = depth * self.limits.period_s + self.inference_s
        waited = (now.steady_ns - self._epoch_began_ns) / SECOND
        arriving = now.steady_ns - self._latest.received_steady_ns < self.limits.max_age_ns
        if arriving and waited > max(3 * pipeline_s, 1.0):
            reason = "frames arrive but no action came out for three pipeline times"
            self._set(replace(self.safety, reason=reason))
