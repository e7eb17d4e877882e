"""Episodes in lock-step without ROS: the bridge's world and the policy node's loop, in one thread.

The world is :class:`vla_ros.sim.runner.EpisodeRunner`, the loop with its gate
:class:`vla_ros.runtime.control.drivers.LockstepDriver`, the policy is asked by the worker's own
:class:`vla_ros.runtime.worker.worker.Server`: what the graph does, without its messages, so the
actions are the same to the last bit.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.adaptation import adaptation_of_words
from vla_ros.core.clock import MS, SECOND, SystemClock, moment
from vla_ros.core.types import (
    Command,
    Floats,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    PolicyState,
    Pose,
    StaleAction,
)
from vla_ros.data.episodes.plan import age_limit_s, config_of
from vla_ros.data.episodes.records import UNGATED, Job, Record, Setup, Variant
from vla_ros.data.episodes.store import LIMIT, FrameStrip, clip_path, save_clip, write_tokens
from vla_ros.data.episodes.tally import EpisodeTally, is_an_end, reason_of
from vla_ros.data.episodes.variants import DRAFTING
from vla_ros.engine.options import AUTO, EngineOptions, Value, parse_options
from vla_ros.policies import PolicyRefused, load_policy
from vla_ros.policies.base import PolicySpec
from vla_ros.runtime.control.drivers import make_control
from vla_ros.runtime.control.joints import opening_of
from vla_ros.runtime.control.observation import LIBERO_STATE, libero_oft
from vla_ros.runtime.control.queue import ChunkAction, Chunking, Execution, PolicyAnswer
from vla_ros.runtime.safety import Limits, Safety
from vla_ros.runtime.worker.wire import ErrorKind, FrameRequest
from vla_ros.runtime.worker.worker import Server, last_line, warm_up
from vla_ros.sim.env import (
    AGENTVIEW,
    FINGERS,
    WRIST,
    Environment,
    EnvSpec,
    SimError,
    SimObservation,
)
from vla_ros.sim.episode import EpisodeOptions, EpisodeRequest, EpisodeState, EpisodeView
from vla_ros.sim.runner import SIM_START_NS, EpisodeRunner

# From a setup and a variant to what acts: the policy's spec and the limits it is held to.
#
# The values are those that the policy node gets as parameters in the graph.


#: Fields of a variant that are options of the engine in these decodings.
DRAFTING_OPTIONS = (
    "drafter",
    "draft_checkpoint",
    "adaptive_draft",
    "acceptance",
    "relaxed_distance",
)
#: Options of the engine that have a field of their own in a setup or a variant.
FIELDS = {
    *DRAFTING_OPTIONS, "checkpoint", "device", "dtype", "weights", "unnorm_key", "embodiment",
    "seed", "num_threads", "decoding", "rtc_mode", "center_crop", "preprocessing", "action_dim",
    "camera_roles",
}  # fmt: skip
WARM_UP = 5  # the node's warmup_count


def parse_words(words: Sequence[str]) -> dict[str, Value]:
    """The engine's options of a setup, from ``name=value``. Raises ValueError."""
    for word in words:
        name, equals, _ = word.partition("=")
        if not equals:
            raise ValueError(f"--engine-option {word!r}: give name=value")
        if name in FIELDS:
            raise ValueError(f"--engine-option {name}: another flag, or the checkpoint, sets it")
    return parse_options(dict(word.split("=", 1) for word in words))


def policy_spec(setup: Setup, variant: Variant, robot: EnvSpec | None = None) -> PolicySpec:
    """Which policy to load, for ``robot`` where that matters. Raises PolicyRefused."""
    return PolicySpec(
        action_space=robot.action_space if robot else END_EFFECTOR_DELTA,
        joint_names=robot.action_space.names if robot and robot.action_space.kind.joints else (),
        state_units=robot.state_units if robot else (),
        action_units=setup.action_units or (robot.action_units if robot else ()),
        action_scale=setup.action_scale,
        gripper=setup.gripper,
        adaptation=adaptation_of_words(setup.adaptation),
        name=setup.policy,
        engine=EngineOptions(
            checkpoint=setup.checkpoint,
            device=setup.device,
            dtype=setup.dtype,
            weights=setup.weights,
            unnorm_key=setup.unnorm_key,
            embodiment=setup.embodiment,
            preprocessing=setup.preprocessing if setup.policy == "vla" else AUTO,
            seed=setup.seed,
            num_threads=setup.num_threads,
            **parse_words(setup.engine_options),  # type: ignore[arg-type]
            **decoding_options(variant),  # type: ignore[arg-type]
        ),
        warmup_count=WARM_UP,
        warmup_size=(setup.image_size, setup.image_size),
        delay_frames=variant.delay_frames,
    )


def decoding_options(variant: Variant) -> dict[str, Value]:
    """Options of the engine that belong to the variant's decoding and execution."""
    options: dict[str, Value] = {"decoding": variant.decoding or "auto"}
    if Execution(variant.execution).continues:
        trained = variant.execution == Execution.RTC_TRAINED
        options["rtc_mode"] = "trained" if trained else variant.rtc_mode
    if variant.decoding in DRAFTING:
        options |= {name: getattr(variant, name) for name in DRAFTING_OPTIONS}
    return options


def chunking_of(variant: Variant, limits: Limits, info: PolicyInfo) -> Chunking:
    """Execution of chunks in lock-step, where inference makes nothing older. ValueError where
    the policy cannot be fresh so."""
    chunking = Chunking(
        Execution(variant.execution),
        replan_interval=variant.replan_interval,
        delay_frames=variant.delay_frames,
    ).fitted(limits, info, 0.0)
    least = chunking.least_age_s(limits, info, 0.0)
    if limits.max_age_s < least:
        raise ValueError(
            f"{variant.label}: its actions are up to {least:.2f} s old, the limit is"
            f" {limits.max_age_s:g} s: give a larger --max-age"
        )
    return chunking


def limits_of(setup: Setup, variant: Variant, spec: EnvSpec) -> Limits:
    """Limits of the gate; otherwise the node's defaults. Joints: their ends."""
    gate: dict[str, Any] = dict(UNGATED) if setup.ungated else {}
    if spec.action_space.kind.joints:
        low, high = zip(*spec.motion_range, strict=True)
        gate |= {"space": spec.action_space, "low": low, "high": high}
        gate |= {"velocity": spec.motion_speed}
        gate |= {"stale_action": StaleAction.HOLD}
        gate |= {"gripper_hysteresis": 0.0, "gripper_dwell_s": 0.0}
    return Limits(
        control_rate_hz=spec.control_rate_hz,
        action_rate_hz=spec.action_rate_hz,
        camera_rate_hz=spec.control_rate_hz,
        max_age_s=age_limit_s(setup, variant, spec.action_rate_hz),
        **gate,
    )


# A simulated robot's own state in a checkpoint's layout, without the graph and through it.


def robot_state(seen: SimObservation, size: int) -> Floats | None:
    """Float64 [size]: the joints, or, of 8 values, LIBERO's pose and fingers; None for none.

    Of another size it is the joints all the same, which the policy refuses with both numbers.
    """
    if size == 0:
        return None
    if size == LIBERO_STATE:
        position, rotation = (tuple(map(float, v)) for v in (seen.eef_pos, seen.eef_quat))
        pose = Pose(position, rotation)  # type: ignore[arg-type]
        return libero_oft({"end_effector_pose": pose, "joint_states": seen.gripper_qpos})
    return seen.joint_positions


def state_parameters(size: int) -> dict[str, Any]:
    """The policy node's parameters with which it makes the same of what the bridge publishes."""
    if size == LIBERO_STATE:
        return {"state_layout": "libero_oft", "joint_names": list(FINGERS)}
    return {}  # the joints as they come, of which the node knows how many it needs


# What plays an episode: through the ROS graph, or straight on the policy. Same records.


class Runner(Protocol):
    """A context manager made with ``(setup, variants)``. Used, entered and left by one thread.

    Jobs come ordered by variant; what a variant needs is kept until the next one comes.
    """

    def __enter__(self) -> Runner: ...

    def __exit__(self, *raised: object) -> None: ...

    def play(self, job: Job, variant: Variant, strip: FrameStrip | None = None) -> Record:
        """Play one episode; every frame of the main camera is shown to ``strip``.

        What goes wrong in an episode is its record's ``reason`` and ``error``. Raises
        RunnerFailed for what no further episode can do better.
        """
        ...


class RunnerFailed(RuntimeError):
    """No episode of this variant can be played: one line that says why and what to do."""


_UNSEEN = np.zeros((0, 0, 3), np.uint8)  # in place of an image until the policy needs it


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
    """A :class:`vla_ros.data.episodes.play.Runner` for ``route`` direct. ``acts``: what is loaded
    instead of the variant's policy: that policy, served elsewhere."""

    def __init__(
        self, setup: Setup, variants: tuple[Variant, ...], acts: PolicySpec | None = None
    ) -> None:
        self._setup, self._acts = setup, acts
        self._world: Environment | None = None
        self._acting: tuple[Variant, PolicyLoop] | None = None

    def __enter__(self) -> DirectRunner:
        self._world = replace(config_of(self._setup), later=True)()
        return self

    def __exit__(self, *raised: object) -> None:
        self._acting = None
        if self._world is not None:
            self._world.close()
            self._world = None

    def play(self, job: Job, variant: Variant, strip: FrameStrip | None = None) -> Record:
        """Play one episode, as :meth:`Runner.play`."""
        assert self._world is not None, "enter the runner first"
        loop = self._loop(variant)
        stage = _Stage(loop, strip)
        request = EpisodeRequest(
            job.task, job.initial_state, job.seed, self._setup.max_steps, job.instruction
        )
        runner = EpisodeRunner(self._world, stage, loop.clock, request, EpisodeOptions())
        stage.command_to = runner.offer
        stage.over = runner.stop
        runner.request(request)
        runner.run()
        record = stage.record(job)
        if record.error:
            self._acting = None  # what broke must not go on acting
        return record

    def _loop(self, variant: Variant) -> PolicyLoop:
        """The policy of ``variant``: loaded when the variant comes, kept until another does."""
        if self._acting is not None and self._acting[0] == variant:
            return self._acting[1]
        self._acting = None  # before the next is loaded: both may not fit
        assert self._world is not None
        try:
            limits = limits_of(self._setup, variant, self._world.spec)
            acts = self._acts or policy_spec(self._setup, variant, self._world.spec)
            loop = PolicyLoop(acts, variant, limits, self._world.spec.gripper_range)
        except (PolicyRefused, ValueError) as error:
            raise RunnerFailed(str(error)) from error
        self._acting = (variant, loop)
        return loop


class PolicyLoop:
    """A loaded policy behind its control loop, as the policy node has it: the loop's sink, and its
    corrector.

    ``publish_to`` is the episode's, ``last`` the time of the last frame, in ms, and its inference.
    ``look`` gives a frame its images: only the policy needs them, so no others are rendered.
    """

    def __init__(
        self,
        spec: PolicySpec,
        variant: Variant,
        limits: Limits,
        gripper_range: tuple[float, float],
    ) -> None:
        self.clock, self.gripper_range = WorldClock(), gripper_range
        policy = load_policy(spec)
        warm_up(policy, spec, os.getpid(), self.clock)
        chunking = chunking_of(variant, limits, policy.info)
        self.decoding = policy.info.decoding
        self.pipeline_depth = policy.info.pipeline_depth
        self.state_dim = policy.info.state_dim
        self._policy, self._server = policy, Server(policy, self.clock)
        self._sequence = 0
        self.last: tuple[float, Inference | None] | None = None  # since the last step
        self.error = ""
        self.publish_to: Callable[[Command], None] = lambda command: None
        self.look: Callable[[Observation], Observation] = lambda observation: observation
        self.control = make_control(
            limits, policy.info, self.clock, self, lockstep=True, chunking=chunking,
            corrector=self,
        )  # fmt: skip
        self.control.activate()

    def begin(self, instruction: str) -> None:
        """A new episode with this task. Its time begins anew, so readings of the one before would
        be newer than its own."""
        self.control.reset()
        self.control.loop.measured.forget()
        if self.control.loop.safety.state is PolicyState.FAULT:
            self.control.recover()  # the reset forgot the frame that this would ask about
        self.control.set_instruction(instruction)

    # The loop's sink

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
        self.last = ((self.clock.steady_ns() - began) / MS, result.inference)
        if result.error is ErrorKind.INVALID:
            self.control.invalid(result.epoch, result.error_text)
        elif result.error is not ErrorKind.NONE:
            self.error = f"{result.error.value}: {result.error_text}"
            self.control.fault(self.error)
        elif result.inference is None:
            self.control.result(result.epoch, None)
        else:
            answer = PolicyAnswer(result.inference, result.received_ns, result.received_steady_ns)
            self.control.result(result.epoch, answer)

    def ask(self, action: ChunkAction, newest: Observation, instruction: Instruction) -> None:
        """Nothing needs to be asked beforehand."""

    def correct(self, action: ChunkAction, newest: Observation) -> ChunkAction:
        """The action as the newest frame has it, which takes no time here. Where that frame is the
        action's own there is nothing newer to go by."""
        if newest.stamp_ns == action.answer.inference.stamp_ns:
            return action
        policy: Any = self._policy
        row = policy.correct(self.look(newest), action.rows[:1], action.index)
        rows = np.concatenate((row, action.following))
        return replace(action, rows=rows, corrected_ns=newest.stamp_ns)

    def publish(self, command: Command) -> None:
        self.publish_to(command)

    def rest(self, command: Command) -> None:
        """A simulation in lock-step has no outputs."""

    def changed(self, before: Safety, after: Safety) -> None:
        """Read at the episode's end."""

    def warn(self, kind: str, text: str) -> None:
        """Counted by the loop."""


class _Stage:
    """One episode: shows the world to the loop, and counts. It is the runner's Outlet."""

    def __init__(self, loop: PolicyLoop, strip: FrameStrip | None) -> None:
        self._loop = loop
        self._strip = strip
        self._kept_step = -1  # after which the strip's last frame was seen
        self._tally = EpisodeTally()
        self._clamped = loop.control.loop.counters.actions_clamped
        self._began_ns = self._ended_ns = loop.clock.steady_ns()
        self._view: EpisodeView | None = None
        self._answer: Command | None = None
        self.command_to: Callable[[Command], None] = lambda command: None
        self.over: Callable[[], None] = lambda: None
        self._seen: tuple[int, SimObservation] | None = None  # the newest frame and its stamp
        loop.publish_to, loop.look = self._publish, self._look
        loop.last, loop.error = None, ""

    def clock(self, stamp_ns: int) -> None:
        self._step_done()
        self._loop.clock.stamp_ns = stamp_ns

    def observation(self, stamp_ns: int, observation: SimObservation) -> None:
        self._seen = (stamp_ns, observation)
        if self._view is not None and self._view.state is EpisodeState.RUNNING:
            self._measure(stamp_ns, observation)
            self._loop.control.offer(self._frame(stamp_ns, observation))

    def _measure(self, stamp_ns: int, seen: SimObservation) -> None:
        """Measured joint positions, which the first command of joints is held to."""
        control, space = self._loop.control, self._loop.control.loop.limits.space
        if space.kind.joints:
            found: dict[int, float] = {}
            for index, name in enumerate(space.names):
                position = float(seen.joint_positions[seen.joint_names.index(name)])
                grips = index in space.grippers
                ends = self._loop.gripper_range
                value = opening_of(position, ends) if grips else position
                if value is not None:
                    found[index] = value
            values = np.array(list(found.values()))
            control.measure(values, stamp_ns, moment(self._loop.clock), list(found))

    def begin(self, instruction: str, interrupted: Callable[[], bool]) -> None:
        self._loop.begin(instruction)

    def changed(self, view: EpisodeView) -> None:
        self._view = view
        if view.state is EpisodeState.RUNNING:
            self._began_ns = self._loop.clock.steady_ns()
        elif view.state in (EpisodeState.SUCCESS, EpisodeState.FAILURE):
            self._ended_ns = self._loop.clock.steady_ns()
            self.over()

    def rejected(self, reason: str) -> None:
        """The step then executes nothing; the runner counts it."""

    def _look(self, frame: Observation) -> Observation:
        assert self._seen is not None
        stamp_ns, seen = self._seen
        assert frame.stamp_ns == stamp_ns, "only the newest frame has images"
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
            received_ns=self._loop.clock.now_ns(),
            received_steady_ns=self._loop.clock.steady_ns(),
            image=_UNSEEN,
            proprio=robot_state(observation, self._loop.state_dim),
            poses=observation.poses,
        )

    def _publish(self, command: Command) -> None:
        self._answer = command
        self.command_to(command)

    def _step_done(self) -> None:
        """The world's time goes on when a step has executed the answer to its frame. The answer to
        the last frame of an episode is executed by no step, and not counted."""
        if self._answer is None:
            return
        answer, self._answer = self._answer, None
        if self._loop.last is not None:
            spent_ms, inference = self._loop.last
            self._loop.last = None
            self._tally.spent(spent_ms)
            if inference is not None:
                self._tally.inference(inference)
        self._tally.command(answer, self._loop.clock.stamp_ns)

    def record(self, job: Job) -> Record:
        """The record of the episode."""
        view, control = self._view, self._loop.control
        assert view is not None
        if self._seen is not None:
            with contextlib.suppress(SimError):  # an episode that broke: the world went on unseen
                self._keep(self._seen[1])
        success = view.state is EpisodeState.SUCCESS
        safety = control.loop.safety
        broke = "" if success or is_an_end(view.reason) else view.reason
        return self._tally.record(
            job,
            success=success,
            reason=reason_of(success, view.reason, safety.state, safety.reason, self._tally.moved),
            max_steps=view.max_steps,
            actions_a_step=self._loop.control.loop.limits.actions_a_period,
            wall_s=(self._ended_ns - self._began_ns) / SECOND,
            decoding=self._loop.decoding,
            pipeline_depth=self._loop.pipeline_depth,
            clamped=control.loop.counters.actions_clamped - self._clamped,
            error=self._loop.error or broke,
        )


# Plays jobs one by one wherever it is: in this process, in another, on another machine.


#: makes a runner; a function of a module, so that it can be sent to another process
MakeRunner = Callable[[Setup, tuple[Variant, ...]], Runner]


@dataclass(frozen=True, slots=True)
class EpisodeOrder:
    """A job, where its strip of frames belongs in the evaluation's directory, or "", the
    policy's instruction, and whether a failure is to be kept as a clip."""

    job: Job
    strip: str = ""
    instruction: str = ""
    clip: bool = False


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """A record, and its strip and clip as the bytes of files, to be written by whoever has the
    disk."""

    record: Record
    strip: bytes = b""
    clip: bytes = b""


def keep(played: PlayedEpisode, directory: Path, tokens: bool = False) -> Record:
    """Write the images, and with ``tokens`` the tokens, into the evaluation's directory.

    Returns the record without its tokens. Of clips the first ones are kept.
    """
    clips = directory / clip_path(played.record.job)
    if played.clip and clips.parent.is_dir() and len(list(clips.parent.iterdir())) >= LIMIT:
        played = replace(played, record=replace(played.record, clip=""), clip=b"")
    for name, content in (
        (played.record.strip, played.strip),
        (played.record.clip, played.clip),
    ):
        if content:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    if tokens:
        write_tokens(played.record, directory)
    return replace(played.record, tokens=(), ages=())


class Player:
    """A runner that is there when the first job comes. Used and closed by one thread."""

    def __init__(self, make: MakeRunner, setup: Setup, variants: tuple[Variant, ...]) -> None:
        self._make = make
        self._setup = setup
        self._variants = {variant.label: variant for variant in variants}
        self._runner: Runner | None = None

    def play(self, order: EpisodeOrder) -> PlayedEpisode:
        """Play one job. Raises RunnerFailed."""
        if self._runner is None:
            runner = self._make(self._setup, tuple(self._variants.values()))
            self._runner = runner.__enter__()
        strip = FrameStrip() if order.strip or order.clip else None
        record = self._runner.play(order.job, self._variants[order.job.variant], strip)
        image = clip = b""
        if strip is not None and order.strip:
            image = _bytes(strip.save, Path(order.strip).suffix)
        if strip is not None and order.clip and not record.success:
            make = functools.partial(save_clip, strip.frames, record.ages, order.instruction)
            clip = _bytes(make, ".webp")
        record = replace(
            record,
            instruction=order.instruction,
            strip=order.strip if image else "",
            clip=clip_path(order.job) if clip else "",
        )
        return PlayedEpisode(record, image, clip)

    def close(self) -> None:
        """End what the runner had open."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.__exit__(None, None, None)


def _bytes(save: Callable[[Path], bool], suffix: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="vla_ros-") as folder:
        path = Path(folder) / f"picture{suffix}"
        return path.read_bytes() if save(path) else b""
