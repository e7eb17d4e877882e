"""Episodes in lock-step without ROS: the bridge's world and the policy node's loop, in one thread.

The world is :class:`vla_ros.sim.episode.EpisodeRunner`, the loop with its gate
:class:`vla_ros.control.lockstep.LockstepControl`, the policy is asked by the worker's own
:class:`vla_ros.executor.serve.Server`: what the graph does, without its messages, so the actions
are the same to the last bit.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

import numpy as np

from vla_ros.control import make_control
from vla_ros.control.queue import Answer
from vla_ros.core import Command, Inference, Instruction, Observation, PolicyState
from vla_ros.evaluation.brain import chunking_of, limits_of, policy_spec
from vla_ros.evaluation.records import Job, Record, Setup, Variant
from vla_ros.evaluation.robot_state import robot_state
from vla_ros.evaluation.runner import RunnerFailed
from vla_ros.evaluation.strips import Strip
from vla_ros.evaluation.tally import Tally, is_an_end, reason_of
from vla_ros.evaluation.worlds import config_of
from vla_ros.executor.messages import ErrorKind, FrameRequest
from vla_ros.executor.serve import Server, last_line, warm_up
from vla_ros.policies import PolicyRefused, load_policy
from vla_ros.safety import Limits, Safety
from vla_ros.sim.env import AGENTVIEW, WRIST, Environment, SimError, SimObservation
from vla_ros.sim.episode import EpisodeRunner
from vla_ros.sim.episode.lockstep import SIM_START_NS
from vla_ros.sim.episode.state import EpisodeOptions, EpisodeRequest, EpisodeState, EpisodeView
from vla_ros.timing import MS, SECOND, SystemClock

_UNSEEN = np.zeros((0, 0, 3), np.uint8)  # stands where an image comes when it is looked at


class WorldClock:
    """Stamps are the world's time, which waits; durations are real."""

    def __init__(self) -> None:
        self.stamp_ns = SIM_START_NS
        self._real = SystemClock()

    def steady_ns(self) -> int:
        return self._real.steady_ns()

    def now_ns(self) -> int:
        return self.stamp_ns


class DirectRunner:
    """A :class:`vla_ros.evaluation.runner.Runner` for ``route`` direct."""

    def __init__(self, setup: Setup, variants: tuple[Variant, ...]) -> None:
        self._setup = setup
        self._world: Environment | None = None
        self._acting: tuple[Variant, Brain] | None = None

    def __enter__(self) -> DirectRunner:
        self._world = replace(config_of(self._setup), later=True)()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._acting = None
        if self._world is not None:
            self._world.close()
            self._world = None

    def play(self, job: Job, variant: Variant, strip: Strip | None = None) -> Record:
        """See :class:`vla_ros.evaluation.runner.Runner`."""
        assert self._world is not None, "enter the runner first"
        brain = self._brain(variant)
        stage = _Stage(brain, strip)
        request = EpisodeRequest(
            job.task, job.initial_state, job.seed, self._setup.max_steps, job.instruction
        )
        runner = EpisodeRunner(self._world, stage, brain.clock, request, EpisodeOptions())
        stage.command_to = runner.offer
        stage.over = runner.stop
        runner.request(request)
        runner.run()
        record = stage.record(job)
        if record.error:
            self._acting = None  # what broke must not go on acting
        return record

    def _brain(self, variant: Variant) -> Brain:
        """What acts under ``variant``: loaded when the variant comes, kept until another does."""
        if self._acting is not None and self._acting[0] == variant:
            return self._acting[1]
        self._acting = None  # before the next is loaded: both may not fit
        assert self._world is not None
        try:
            limits = limits_of(self._setup, variant, self._world.spec)
            brain = Brain(self._setup, variant, limits)
        except (PolicyRefused, ValueError) as error:
            raise RunnerFailed(str(error)) from error
        self._acting = (variant, brain)
        return brain


class Brain:
    """A loaded policy behind its control loop, as the policy node has it. It is the loop's Outlet.

    ``publish_to`` is the episode's, ``asked`` what the last frame took, in ms, and gave. ``look``
    gives a frame its images: the loop needs none, so where nobody is asked none are rendered.
    """

    def __init__(self, setup: Setup, variant: Variant, limits: Limits) -> None:
        self.clock = WorldClock()
        spec = policy_spec(setup, variant)
        policy = load_policy(spec)
        warm_up(policy, spec, os.getpid(), self.clock)
        chunking = chunking_of(variant, limits, policy.info)
        self.schedule = policy.info.schedule
        self.pipeline_depth = policy.info.pipeline_depth
        self.state_dim = policy.info.state_dim
        self._server = Server(policy, self.clock)
        self._sequence = 0
        self.asked: tuple[float, Inference | None] | None = None  # since the stage looked last
        self.error = ""
        self.publish_to: Callable[[Command], None] = lambda command: None
        self.look: Callable[[Observation], Observation] = lambda observation: observation
        self.control = make_control(
            limits, policy.info, self.clock, self, lockstep=True, chunking=chunking
        )
        self.control.activate()

    def begin(self, instruction: str) -> None:
        """A new episode with this task."""
        self.control.reset()
        if self.control.safety.state is PolicyState.FAULT:
            self.control.recover()  # the reset forgot the frame that this would ask about
        self.control.set_instruction(instruction)

    # ------------------------------------------------------------------ Outlet

    def submit(self, observation: Observation, instruction: Instruction) -> None:
        """Ask the policy, here and now, and give the loop its answer."""
        observation = self.look(observation)
        began = self.clock.steady_ns()
        self._sequence += 1
        try:
            result = self._server.answer(FrameRequest(self._sequence, observation, instruction))
        except Exception as error:
            self.error = last_line(error)
            raise  # the episode's runner ends it with this
        self.asked = ((self.clock.steady_ns() - began) / MS, result.inference)
        if result.error is ErrorKind.INVALID:
            self.control.invalid(result.epoch, result.error_text)
        elif result.error is not ErrorKind.NONE:
            self.error = f"out of memory: {result.error_text}"
            self.control.fault(self.error)
        elif result.inference is None:
            self.control.result(result.epoch, None)
        else:
            answer = Answer(result.inference, result.received_ns, result.received_steady_ns)
            self.control.result(result.epoch, answer)

    def publish(self, command: Command) -> None:
        self.publish_to(command)

    def changed(self, before: Safety, after: Safety) -> None:
        """Read at the episode's end."""

    def warn(self, kind: str, text: str) -> None:
        """Counted by the loop."""


class _Stage:
    """One episode: shows the world to the brain, and counts. It is the runner's Outlet."""

    def __init__(self, brain: Brain, strip: Strip | None) -> None:
        self._brain = brain
        self._strip = strip
        self._kept_step = -1  # after which the strip's last frame was seen
        self._tally = Tally()
        self._clamped = brain.control.counters.actions_clamped
        self._began_ns = self._ended_ns = brain.clock.steady_ns()
        self._view: EpisodeView | None = None
        self._answer: Command | None = None
        self.command_to: Callable[[Command], None] = lambda command: None
        self.over: Callable[[], None] = lambda: None
        self._seen: tuple[int, SimObservation] | None = None  # the newest frame and its stamp
        brain.publish_to, brain.look = self._publish, self._look
        brain.asked, brain.error = None, ""

    def clock(self, stamp_ns: int) -> None:
        self._step_done()
        self._brain.clock.stamp_ns = stamp_ns

    def observation(self, stamp_ns: int, observation: SimObservation) -> None:
        self._seen = (stamp_ns, observation)
        if self._view is not None and self._view.state is EpisodeState.RUNNING:
            self._brain.control.offer(self._frame(stamp_ns, observation))

    def begin(self, instruction: str, interrupted: Callable[[], bool]) -> None:
        self._brain.begin(instruction)

    def changed(self, view: EpisodeView) -> None:
        self._view = view
        if view.state is EpisodeState.RUNNING:
            self._began_ns = self._brain.clock.steady_ns()
        elif view.state in (EpisodeState.SUCCESS, EpisodeState.FAILURE):
            self._ended_ns = self._brain.clock.steady_ns()
            self.over()

    def rejected(self, reason: str) -> None:
        """The step then executes nothing; the runner counts it."""

    def _look(self, frame: Observation) -> Observation:
        assert self._seen is not None
        stamp_ns, seen = self._seen
        assert frame.stamp_ns == stamp_ns, "only the newest frame can be looked at"
        self._keep(seen)
        return replace(frame, image=seen.images[AGENTVIEW], wrist_image=seen.images.get(WRIST))

    def _keep(self, seen: SimObservation) -> None:
        """A frame for the strip: what the policy looks at, and the end. No other is rendered."""
        if self._strip is not None and self._kept_step < self._tally.steps:
            self._kept_step = self._tally.steps
            self._strip.add(seen.images[AGENTVIEW], self._tally.steps)

    def _frame(self, stamp_ns: int, observation: SimObservation) -> Observation:
        """The frame without its images, which :meth:`_look` gives it."""
        return Observation(
            stamp_ns=stamp_ns,
            received_ns=self._brain.clock.now_ns(),
            received_steady_ns=self._brain.clock.steady_ns(),
            image=_UNSEEN,
            proprio=robot_state(observation, self._brain.state_dim),
            poses=observation.poses,
        )

    def _publish(self, command: Command) -> None:
        self._answer = command
        self.command_to(command)

    def _step_done(self) -> None:
        """The world's time goes on when a step has executed the answer to its frame. What the
        policy says to the last frame of an episode is executed by no step, and not counted."""
        if self._answer is None:
            return
        answer, self._answer = self._answer, None
        if self._brain.asked is not None:
            spent_ms, said = self._brain.asked
            self._brain.asked = None
            self._tally.asked(spent_ms)
            if said is not None:
                self._tally.inference(said)
        self._tally.command(answer, self._brain.clock.stamp_ns)

    def record(self, job: Job) -> Record:
        """What came of the episode."""
        view, control = self._view, self._brain.control
        assert view is not None
        if self._seen is not None:
            with contextlib.suppress(SimError):  # an episode that broke: the world went on unseen
                self._keep(self._seen[1])
        success = view.state is EpisodeState.SUCCESS
        safety = control.safety
        broke = "" if success or is_an_end(view.reason) else view.reason
        return self._tally.record(
            job,
            success=success,
            reason=reason_of(success, view.reason, safety.state, safety.reason, self._tally.moved),
            max_steps=view.max_steps,
            wall_s=(self._ended_ns - self._began_ns) / SECOND,
            schedule=self._brain.schedule,
            pipeline_depth=self._brain.pipeline_depth,
            clamped=control.counters.actions_clamped - self._clamped,
            error=self._brain.error or broke,
        )
