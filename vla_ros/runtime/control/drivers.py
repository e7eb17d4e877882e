"""The two ways to run the control loop: in real time, and in lock-step with a simulation.

And the steady clock of the control tick: a thread that nothing else runs in.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from vla_ros.core.clock import SECOND, Clock, Moment, moment
from vla_ros.core.types import Observation, PolicyInfo, PolicyState, StaleAction
from vla_ros.runtime import safety
from vla_ros.runtime.control.control import Control, Driver
from vla_ros.runtime.control.corrections import Corrector
from vla_ros.runtime.control.goals import PersistentState
from vla_ros.runtime.control.queue import Chunking
from vla_ros.runtime.control.state import ControlSink
from vla_ros.runtime.safety import Limits

_LEAST_TURN_S = 1e-4  # of a thread of Python's: a shorter one costs more than it gives


def make_control(
    limits: Limits,
    info: PolicyInfo,
    clock: Clock,
    sink: ControlSink,
    *,
    lockstep: bool = False,
    sim_time: bool = False,
    detect_frozen: bool = False,
    chunking: Chunking = Chunking(),
    inference_s: float = 0.0,
    persistent: PersistentState | None = None,
    corrector: Corrector | None = None,
) -> Control:
    """A control loop in lock-step, whose time is always simulated and where inference takes none of
    it, or in real time. Raises ValueError for a ``chunking`` that the policy cannot take part in.

    ``inference_s``: L, the inference time measured at warm-up. ``persistent``: of the loop before
    it, where its owner had one. ``corrector``: for ``execution: corrected``.
    """
    return Control(
        limits,
        info,
        clock,
        sink,
        LockstepDriver if lockstep else RealtimeDriver,
        sim_time=sim_time or lockstep,
        detect_frozen=detect_frozen,
        chunking=chunking,
        inference_s=0.0 if lockstep else inference_s,
        persistent=persistent,
        corrector=corrector,
    )


class RealtimeDriver(Driver):
    """Driver of a robot: the world does not wait, so the tick commands.

    Frames go to the worker as they come, answers wait in the queue, and every tick of the steady
    clock publishes exactly one command: the next action, no motion while the observation of the
    last one is young enough, then the stale policy, then nothing.
    """

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self._due_ns = 0  # simulated time of the next period

    def offer(self, observation: Observation) -> None:
        if self._control.take_in(observation):
            self._control.resubmit()
            self._control.ask_corrector()

    def answered(self) -> None:
        """The answer waits in the queue for its tick."""
        self._control.ask_corrector()

    def tick(self, now: Moment) -> bool:
        """Watch, then publish one command. In simulated time periods are the simulation's: it may
        be slower than the tick, or faster, and the robot is to move as far in each of its seconds.
        """
        control = self._control
        control.watch_clock(now)
        self._watch_simulated_time(now)
        self._watch_pipeline(now)
        control.watch_pixels(now)
        control.watch_hold(now)
        if self._loop.sim_time and not self._is_due(now):
            return False
        if not control.act(now):
            self._stop_for_a_while(now)
        if not control.gate.sent:
            control.gate.rest(now)
        control.gate.sent = False
        return True

    def _is_due(self, now: Moment) -> bool:
        """True once a period has passed by the simulation's clock. After a pause or a jump of it
        periods are counted from there; what was missed is not made up for."""
        period = self._loop.limits.period_ns
        late = now.now_ns - self._due_ns
        if -period <= late < 0:
            return False
        self._due_ns = self._due_ns + period if 0 <= late < period else now.now_ns + period
        return True

    def stop(self, now: Moment) -> None:
        """The stale policy's command, if it has one."""
        if self._loop.limits.stale_action is not StaleAction.SILENCE:
            self._control.gate.stop(now)

    def leave(self, now: Moment) -> None:
        self.stop(now)

    def void_answers(self) -> None:
        self._control.flush()

    def end_episode(self) -> None:
        """End with one command that stops, and silence: the simulation executes nothing after
        it."""
        self._control.rest()
        if self._control.gate.moved:
            self.stop(moment(self._control.clock))

    def _stop_for_a_while(self, now: Moment) -> None:
        """Stop the robot until ``silence_after_s``, when the consumer knows. Not before the first
        action: nothing was set in motion, and the gripper's state is unknown."""
        control, loop = self._control, self._loop
        silent = now.steady_ns - loop.safety.since_ns > loop.limits.silence_after_s * SECOND
        if control.gate.moved and not silent and not loop.resting:
            self.stop(now)

    def _watch_simulated_time(self, now: Moment) -> None:
        control, loop = self._control, self._loop
        if reason := control.clock_watch.stands_still(now, loop.limits):
            loop.become(safety.hold(loop.safety, reason, now.steady_ns))

    def _watch_pipeline(self, now: Moment) -> None:
        """Report that frames go in and nothing has come out for three pipeline times."""
        loop = self._loop
        if loop.safety.state is not PolicyState.WAITING or loop.latest is None:
            return
        if loop.resting or not loop.instruction.text:
            return
        limits = loop.limits
        pipeline_s = loop.info.pipeline_depth * limits.action_period_s + loop.inference_s
        waited_s = (now.steady_ns - loop.epoch_began_ns) / SECOND
        arriving = now.steady_ns - loop.latest.received_steady_ns < limits.max_age_ns
        if arriving and waited_s > max(3 * pipeline_s, 1.0):
            reason = "frames arrive but no action came out for three pipeline times"
            loop.become(replace(loop.safety, reason=reason))


class LockstepDriver(Driver):
    """Driver of a simulation that waits: every frame is answered once.

    The answer goes out as soon as the action is there, and once more when the frame comes again:
    one of the two was lost on the way. The tick publishes nothing. Time is the simulation's.
    """

    exact = True

    def offer(self, observation: Observation) -> None:
        """Answer a frame at once where that needs no new inference; ask the worker otherwise."""
        control, loop = self._control, self._loop
        if loop.latest is not None and observation.stamp_ns == loop.latest.stamp_ns:
            self._answer_again(observation)
        elif control.take_in(observation) and loop.safety.active:
            if control.under_takeover(self._now()) and not control.may_ask:
                self.answered()
            elif self._stopped:
                self.stop(self._now())
            elif control.may_ask or not control.queue.exhausted:
                control.queue.advance(self._now().now_ns, loop.limits)
                if control.queue.runs_out(loop.limits.actions_a_period):
                    control.resubmit()
                self.answered()

    def taken_over(self) -> None:
        """Answer a frame by the person, where nothing else would answer it."""
        control, loop = self._control, self._loop
        if loop.latest is not None and not control.may_ask and control.under_takeover(self._now()):
            self.answered()

    def answered(self) -> None:
        """Answer the newest frame, once, with the next action if there is one and it may be
        published. The world waits for what was asked for, unless that is to come late."""
        control, loop, now = self._control, self._loop, self._now()
        if not self._unanswered or control.queue.awaits(now.now_ns, loop.limits.action_period_ns):
            return
        if not control.act(now):
            self.stop(now)
        if control.episode.over and not loop.resting:
            control.rest()

    def tick(self, now: Moment) -> bool:
        """Watch; answers are not a matter of time."""
        self._control.watch_clock(now)
        self._control.watch_pixels(now)
        return False

    def stop(self, now: Moment) -> None:
        self._control.gate.stop(now)

    def leave(self, now: Moment) -> None:
        """The world waits for answers to its frames, and for nothing else."""

    def void_answers(self) -> None:
        """Void them in the same epoch: a frame that was answered stays answered, and the world,
        which waits, may ask for that answer again."""
        self._control.queue.clear()

    def end_episode(self) -> None:
        """End after the answer to the frame that is with the worker, so that the counts do not
        depend on which was quicker, the answer or the report of the end."""
        control, loop = self._control, self._loop
        asked = loop.latest is not None and not self._stopped and loop.instruction.text
        if not (asked and self._unanswered):
            control.rest()

    def _answer_again(self, observation: Observation) -> None:
        """Repeat the answer, if there is one yet: a frame that comes again asks for no other."""
        gate = self._control.gate
        if not self._loop.safety.active:
            return
        if gate.last is not None and gate.last.latest_ns == observation.stamp_ns:
            gate.again()
        elif self._stopped:  # the frame came before the empty instruction did
            self.stop(self._now())

    @property
    def _unanswered(self) -> bool:
        latest, last = self._loop.latest, self._control.gate.last
        return last is None or last.latest_ns != (latest.stamp_ns if latest is not None else 0)

    @property
    def _stopped(self) -> bool:
        """True where nothing is to be done nor will be: a stopped task, or FAULT."""
        loop = self._loop
        stopped = loop.instructed and not loop.instruction.text
        return stopped or loop.safety.state is PolicyState.FAULT

    def _now(self) -> Moment:
        """This instant, at least that of the newest frame, which may have overtaken /clock:
        decisions by time must not depend on that."""
        now = moment(self._control.clock)
        if self._loop.latest is None:
            return now
        return replace(now, now_ns=max(now.now_ns, self._loop.latest.stamp_ns))


def shift_ns(period_ns: int, waited_ns: int) -> int:
    """Shift of the ticks so that actions wait less for them: at most 2 % of a period.

    ``waited_ns`` is how long the newest action waited for its tick. A camera and a control
    tick of the same rate keep whatever phase they began with: half a period of age for nothing
    on average, and a lost action whenever an arrival jitters across the tick. The ticks are
    moved to come a fifth of a period after the arrivals, by the shorter way round.
    """
    late = waited_ns - period_ns // 5
    if late > period_ns // 2:
        late -= period_ns
    most = period_ns // 50
    return -max(-most, min(most, late))


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Scheduling of a thread. ``priority``: SCHED_FIFO's, 1 to 99; 0:
    as every thread. ``cpus``: those it may run on; empty: as the process."""

    priority: int = 0
    cpus: tuple[int, ...] = ()

    def apply(self) -> None:
        """Schedule the calling thread; threads that it starts are scheduled as usual. Raises
        ValueError, in one line, where the system forbids it."""
        try:
            if self.cpus:
                os.sched_setaffinity(0, self.cpus)
        except OSError as error:
            raise ValueError(f"tick_cpus {list(self.cpus)}: {error.strerror}") from None
        try:
            if self.priority:
                policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
                os.sched_setscheduler(0, policy, os.sched_param(self.priority))
        except OSError as error:
            raise ValueError(
                f"tick_priority {self.priority}: {error.strerror}: this process needs CAP_SYS_NICE"
                f" or an rtprio limit of {self.priority} (limits.conf); 0 asks for nothing"
            ) from None

    def check(self) -> None:
        """Raise ValueError, in one line, for what :meth:`apply` could not do. Tries it."""
        allowed = os.sched_getaffinity(0)
        if missing := sorted(set(self.cpus) - allowed):
            raise ValueError(
                f"tick_cpus {list(self.cpus)}: this process may use {sorted(allowed)},"
                f" not {missing}"
            )
        refused: list[ValueError] = []

        def attempt() -> None:
            try:
                self.apply()
            except ValueError as error:
                refused.append(error)

        thread = threading.Thread(target=attempt, name="try scheduling")
        thread.start()
        thread.join()
        if refused:
            raise refused[0]


class Ticker:
    """The steady clock of the control tick: ``call(error_ns)`` once a period, in its own thread.

    Ticks are due at instants of the monotonic clock that :func:`shift_ns` alone moves, so
    errors do not add up; ``error_ns`` is how late this one came. A tick that overruns its
    period makes the next ones skip, never bunch up. ``failed`` gets an exception and
    the ticking goes on, also with a ``scheduling`` that the system forbids by now.

    While it ticks, Python's threads take turns often enough that one which computes delays a tick
    by no more than a tenth of its period; by itself Python lets it wait for 5 ms.
    """

    def __init__(
        self,
        period_ns: int,
        call: Callable[[int], None],
        failed: Callable[[Exception], None],
        scheduling: Scheduling = Scheduling(),
    ) -> None:
        self._scheduling = scheduling
        self._period_ns = period_ns
        self._call = call
        self._failed = failed
        self._arrived_ns: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control tick", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it, unless it is the caller."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def arrived(self, steady_ns: int) -> None:
        """Note that an action came at this time and waits for its tick. From any thread."""
        self._arrived_ns = steady_ns

    def _run(self) -> None:
        try:
            self._scheduling.apply()
        except ValueError as error:
            self._failed(error)
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(min(before_s, max(_LEAST_TURN_S, self._period_ns / SECOND / 10)))
        try:
            self._tick_on()
        finally:
            sys.setswitchinterval(before_s)

    def _tick_on(self) -> None:
        due = time.monotonic_ns() + self._period_ns
        while not self._stop.wait(max(0.0, (due - time.monotonic_ns()) / SECOND)):
            late = time.monotonic_ns() - due
            arrived, self._arrived_ns = self._arrived_ns, None
            try:
                self._call(late)
            except Exception as error:
                self._failed(error)
            if arrived is not None and due >= arrived:
                due += shift_ns(self._period_ns, due - arrived)
            due += self._period_ns * (1 + max(0, late) // self._period_ns)
