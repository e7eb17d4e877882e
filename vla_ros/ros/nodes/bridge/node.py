"""The simulation bridge: a simulated robot's topics, its episodes, and the execution of commands.

It publishes camera images, joint states, ground truth and the task's instruction, and
executes the policy's commands, in lock-step or real time (:mod:`vla_ros.sim.runner`).

Threads: the node's executor receives commands and requests; the episode thread drives the
simulation, which lives in a process of its own, and publishes.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.task import Future
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_ros.core.clock import MS, SECOND, Clock, SystemClock
from vla_ros.core.console import log_line
from vla_ros.core.pixels import BadMessage
from vla_ros.msg import ActionCommand, EpisodeStatus, NamedPoses, PolicyStatus
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import Diagnostics, to_time
from vla_ros.ros.common.listening import listen
from vla_ros.ros.common.parameters import Parameter as P
from vla_ros.ros.common.parameters import declare
from vla_ros.ros.common.qos_overrides import QosOverrides, warn_of_unused
from vla_ros.ros.common.spin import every, run
from vla_ros.ros.nodes.bridge import convert as bridge_convert
from vla_ros.ros.nodes.bridge.convert import GeometryTopics
from vla_ros.runtime.control.goals import check_instruction
from vla_ros.sim.env import (
    AGENTVIEW,
    CONTROL_RATES_HZ,
    IMAGE_SIZES,
    OPTICAL_FRAMES,
    WRIST,
    SimError,
    SimObservation,
    UnknownTask,
)
from vla_ros.sim.episode import EpisodeOptions, EpisodeRequest, EpisodeState, EpisodeView, Mode
from vla_ros.sim.factory import ENVIRONMENTS, MOST_NUDGE_M, EnvConfig
from vla_ros.sim.process import SimProcess
from vla_ros.sim.runner import EpisodeRunner
from vla_ros.srv import ResetEpisode

# The policy as the bridge sees it: whether it is active, was reset, and has the instruction.
#
# Threads: :meth:`PolicyPeer.begin` is called from the episode's thread and waits; callbacks
# come from the node's executor.


_ACTIVE = (
    PolicyStatus.STATE_WAITING,
    PolicyStatus.STATE_RUNNING,
    PolicyStatus.STATE_HOLD,
    PolicyStatus.STATE_TAKEOVER,
)
_RESET_S = 2.0  # longest wait for the reset service's answer
_LEARN_S = 2.0  # longest wait until the policy's status names the instruction
_POLL_S = 0.1  # how often a wait looks for other reasons to end


class PolicyPeer:
    """Client of one policy node. ``wait``: episodes begin only once it is active. ``rate_hz``: of
    the world's steps, to be that of its commands."""

    def __init__(self, node: Node, reset_service: str, wait: bool, rate_hz: float) -> None:
        self._rate_hz = rate_hz
        self._log = node.get_logger()
        self._wait = wait
        self._bell = threading.Condition()
        self._status: PolicyStatus | None = None
        self._reset_client = node.create_client(Trigger, reset_service)
        self._instruction = node.create_publisher(String, "instruction", qos.LATCHED)
        listen(node, PolicyStatus, "policy/status", self._on_status, qos.LATCHED)

    def begin(
        self, instruction: str, interrupted: Callable[[], bool], waiting: Callable[[], None]
    ) -> None:
        """Wait for the policy, reset it, and wait until its status names the instruction.

        ``waiting`` is called now and then meanwhile. Returns early when ``interrupted``.
        """
        if self._wait:
            self._until(self._active, interrupted, waiting)
        if interrupted():
            return
        epoch = self._status.epoch if self._status is not None else 0
        self._compare_rates()
        was_reset = self._reset(interrupted, waiting)
        self._instruction.publish(String(data=instruction))
        if self._status is None:
            return

        def knows() -> bool:
            status = self._status
            assert status is not None
            new = status.epoch > epoch or not was_reset
            return new and status.instruction == instruction

        if not self._until(knows, interrupted, waiting, _LEARN_S) and not interrupted():
            self._log.warning(f"the policy's status does not name '{instruction}': begins anyway")

    def _compare_rates(self) -> None:
        """Warn where steps of the world have no command of their own, or lose some."""
        theirs = self._status.control_rate_hz if self._status is not None else 0.0
        if theirs and abs(theirs - self._rate_hz) > 1e-3 * self._rate_hz:
            self._log.warning(
                f"the policy commands at {theirs:g} Hz and the world takes {self._rate_hz:g} steps"
                f" a second: set control_rate_hz of both to one rate"
            )

    def _on_status(self, message: PolicyStatus) -> None:
        with self._bell:
            self._status = message
            self._bell.notify_all()

    def _active(self) -> bool:
        return self._status is not None and self._status.state in _ACTIVE

    def _reset(self, interrupted: Callable[[], bool], waiting: Callable[[], None]) -> bool:
        """Call the reset service; False: there is none, or it did not reset."""
        if not self._reset_client.service_is_ready():
            return False
        future: Future = self._reset_client.call_async(Trigger.Request())
        future.add_done_callback(lambda _: self._ring())
        if not self._until(future.done, interrupted, waiting, _RESET_S):
            self._reset_client.remove_pending_request(future)
            if not interrupted():
                self._log.warning("the policy's reset service did not answer: begins anyway")
            return False
        answer = future.result()
        if answer is None or not answer.success:
            why = "no answer" if answer is None else answer.message
            self._log.warning(f"the policy was not reset: {why}")
            return False
        return True

    def _ring(self) -> None:
        with self._bell:
            self._bell.notify_all()

    def _until(
        self,
        true: Callable[[], bool],
        interrupted: Callable[[], bool],
        waiting: Callable[[], None],
        timeout_s: float = float("inf"),
    ) -> bool:
        """Wait for ``true``; False when interrupted or timed out."""
        left = timeout_s
        while left > 0:
            with self._bell:
                if self._bell.wait_for(true, min(_POLL_S, left)):
                    return True
            if interrupted():
                return False
            waiting()
            left -= _POLL_S
        return true()


# Images that are published a fixed time after their capture.


class DelayLine:
    """Queue that makes each call of :meth:`put` ``delay_ns`` of the steady clock later, in a thread
    of its own. :meth:`put` never waits. With a delay of 0 it makes the call at once."""

    def __init__(self, delay_ns: int, clock: Clock) -> None:
        self._delay_ns = delay_ns
        self._clock = clock
        self._bell = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        if delay_ns:
            self._thread = threading.Thread(target=self._run, name="delay", daemon=True)
            self._thread.start()

    def put(self, call: Callable[[], None]) -> None:
        """Make this call later."""
        if self._thread is None:
            call()
            return
        with self._bell:
            self._waiting.append((self._clock.steady_ns() + self._delay_ns, call))
            self._bell.notify()

    def clear(self) -> None:
        """Forget the calls that are still to be made."""
        with self._bell:
            self._waiting.clear()

    def close(self) -> None:
        """Make no call any more."""
        with self._bell:
            self._closed = True
            self._waiting.clear()
            self._bell.notify()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        """Wait until the oldest call is due; None after the end."""
        with self._bell:
            while not self._closed:
                if not self._waiting:
                    self._bell.wait()
                    continue
                due, call = self._waiting[0]
                left_ns = due - self._clock.steady_ns()
                if left_ns <= 0:
                    self._waiting.popleft()
                    return call
                self._bell.wait(left_ns / SECOND)
        return None


# The parameters, and the node.


SIZES = (IMAGE_SIZES[0], IMAGE_SIZES[-1])
TABLE = (
    P("environment", "tabletop", "Which simulation", choices=ENVIRONMENTS, fixed=True),
    P("suite", "", "libero: the suite its tasks are of; empty: all of them", fixed=True),
    P(
        "task",
        "pick_red_cube",
        "Name of the first episode's task; so101: lift_cube, cube_in_box",
        fixed=True,
    ),
    P("initial_state", 0, "Index of the first episode's initial state", 0, 100_000, fixed=True),
    P("seed", 0, "Which set of initial states; counts from the next reset", 0, 2**31 - 1),
    P("max_steps", 0, "Most actions from the next reset on; 0: the task's own", 0, 1_000_000),
    P(
        "control_rate_hz",
        0.0,
        "Rate of the world's steps, one a command: the policy node's; 0: the action rate of the"
        " data about its tasks. libero: that alone",
        0.0,
        CONTROL_RATES_HZ[1],
        fixed=True,
    ),
    P(
        "nudge_m",
        0.0,
        "tabletop: the task's cube is moved by so much while the hand is on its way to it, m",
        0.0,
        MOST_NUDGE_M,
        fixed=True,
    ),
    P(
        "instruction",
        "",
        "The policy's instruction from the next reset on; empty: the task's own; a blank: the empty"
        " instruction, which means stop",
    ),
    P(
        "mode",
        "realtime",
        "lockstep: every frame waits for its command; realtime: the world does not wait",
        choices=("lockstep", "realtime"),
        fixed=True,
    ),
    P("image_size", 256, "Pixels a side of every camera image", *SIZES, fixed=True),
    P("wrist_camera", True, "Also render and publish wrist_image", fixed=True),
    P(
        "camera_rate_hz",
        0.0,
        "realtime: rate of the images, at most the control rate; 0: the action rate",
        0.0,
        1000.0,
        fixed=True,
    ),
    P(
        "image_delay_ms",
        0.0,
        "realtime: images, and the states that belong to them, are published this much after"
        " their capture, which they are stamped with",
        0.0,
        10_000.0,
        fixed=True,
    ),
    P(
        "publish_tf",
        True,
        "Publish /tf and /tf_static where tf2_msgs is; off where robot_state_publisher does it",
        fixed=True,
    ),
    P("auto_reset", False, "Begin the next initial state when an episode ends", fixed=True),
    P(
        "reset_pause_s",
        3.0,
        "realtime, auto_reset: between an episode's end and the next; the still world is shown",
        0.0,
        3600.0,
        fixed=True,
    ),
    P(
        "wait_for_policy",
        True,
        "Begin episodes only once policy/status is WAITING, RUNNING or HOLD",
        fixed=True,
    ),
    P("policy_reset_service", "policy/reset", "Called before every episode", fixed=True),
    P(
        "answer_timeout_s",
        1.0,
        "lockstep: least wait before a frame is sent again; 2 x the slowest answer if longer",
        0.01,
        3600.0,
        fixed=True,
    ),
)


def config_of(values: Mapping[str, Any]) -> EnvConfig:
    """The environment that the parameters ask for. SimError: there is none such."""
    return EnvConfig(
        values["environment"],
        values["image_size"],
        values["wrist_camera"],
        values["suite"],
        values["nudge_m"],
        control_rate_hz=values["control_rate_hz"],
    )


class BridgeNode(QosOverrides, Node):
    """The topics and services of the simulated robot; the outlet of its episode runner.

    ValueError: a bad parameter. SimError: the simulation cannot be started.
    """

    def __init__(self) -> None:
        super().__init__("bridge")
        values = declare(self, TABLE)
        self._mode = Mode(values["mode"])
        self._clock_source = SystemClock()
        delay_ns = 0 if self._mode is Mode.LOCKSTEP else round(values["image_delay_ms"] * MS)
        self._delay = DelayLine(delay_ns, self._clock_source)
        self._sim = SimProcess(config_of(values))
        if self._sim.spec.note:
            self.get_logger().warning(f"what is seen here is labelled: {self._sim.spec.note}")
        self._policy = PolicyPeer(
            self,
            values["policy_reset_service"],
            values["wait_for_policy"],
            self._sim.spec.control_rate_hz,
        )
        self._make_topics(values)
        try:
            self._runner = self._make_runner(values)
        except (UnknownTask, ValueError) as error:
            self._sim.close()
            raise ValueError(str(error)) from None
        listen(self, ActionCommand, "policy/action", self._on_command, qos.ACTION)
        self.create_service(ResetEpisode, "~/reset", self._on_reset)
        warn_of_unused(self)
        self._publishing = threading.Lock()  # a status read before another must not go out after it
        every(self, 1.0, self._repeat_episode)
        self._thread = threading.Thread(target=self._runner.run, name="episode", daemon=True)
        self._thread.start()

    def _make_topics(self, values: dict[str, Any]) -> None:
        topics = {WRIST: "wrist_image", AGENTVIEW: "image"}
        topics = {camera: topics[camera] for camera in topics if camera in self._sim.spec.cameras}
        self._images = {
            camera: self.create_publisher(Image, topic, qos.IMAGE_PUB)
            for camera, topic in topics.items()
        }
        self._geometry = GeometryTopics(self, self._sim.spec, topics, values["publish_tf"])
        self._joints = self.create_publisher(JointState, "joint_states", qos.STATE)
        self._truth = self.create_publisher(NamedPoses, "ground_truth", qos.STATE)
        self._episode = self.create_publisher(EpisodeStatus, "~/episode", qos.LATCHED)
        self._clock_topic = None
        if self._mode is Mode.LOCKSTEP:
            self._clock_topic = self.create_publisher(ClockMessage, "/clock", qos.STATE)
        self._diagnostics = Diagnostics(self)
        self._stamp_ns = 0  # lock-step: the last time on /clock

    def _make_runner(self, values: dict[str, Any]) -> EpisodeRunner:
        options = EpisodeOptions(
            mode=self._mode,
            auto_reset=values["auto_reset"],
            reset_pause_s=values["reset_pause_s"],
            camera_rate_hz=values["camera_rate_hz"],
            answer_timeout_s=values["answer_timeout_s"],
        )
        first = EpisodeRequest(
            values["task"],
            values["initial_state"],
            values["seed"],
            values["max_steps"],
            _checked(values["instruction"]),
        )
        runner = EpisodeRunner(self._sim, self, self._clock_source, first, options)
        runner.request(first)
        return runner

    def close(self) -> None:
        """End the episode, its thread and the simulation, also one that hangs."""
        self._runner.stop()
        self._thread.join(0.5)
        if self._thread.is_alive():
            self._sim.kill()
            self._thread.join(2.0)
        self._sim.close()
        self._delay.close()

    # What comes in

    def _on_command(self, message: ActionCommand) -> None:
        try:
            bridge_convert.check_space(message, self._sim.spec.action_space)
            command = bridge_convert.command_of(message)
        except BadMessage as error:
            self._runner.refuse(str(error))
            return
        self._runner.offer(command)

    def _on_reset(
        self, request: ResetEpisode.Request, response: ResetEpisode.Response
    ) -> ResetEpisode.Response:
        """Respond at once; ~/episode reports when the new episode runs, or why it does not."""
        running = self._runner.view().request
        task = request.task or running.task
        initial_state = request.initial_state
        if initial_state < 0:
            same = task == running.task
            initial_state = self._runner.following().initial_state if same else 0
        seed, max_steps = (int(self.get_parameter(n).value) for n in ("seed", "max_steps"))
        try:
            instruction = _checked(str(self.get_parameter("instruction").value))
            episode = EpisodeRequest(task, initial_state, seed, max_steps, instruction)
            response.episode = self._runner.request(episode)
        except (UnknownTask, ValueError) as error:
            response.success, response.message = False, str(error)
            return response
        response.success = True
        response.message = f"episode {response.episode} begins: {task}, state {initial_state}"
        response.instruction = episode.instruction_for(self._runner.spec.task(task).instruction)
        return response

    # Outlet

    def clock(self, stamp_ns: int) -> None:
        self._stamp_ns = stamp_ns
        if self._clock_topic is not None:
            self._clock_topic.publish(ClockMessage(clock=to_time(stamp_ns)))

    def observation(self, stamp_ns: int, observation: SimObservation) -> None:
        """Publish a step's messages; the image that policies wait for goes out last."""
        messages: list[tuple[Any, Any]] = [
            (self._truth, bridge_convert.poses_message(observation, stamp_ns)),
            (self._joints, bridge_convert.joints_message(observation, stamp_ns)),
            *self._geometry.messages(stamp_ns, observation),
        ]
        for camera, publisher in self._images.items():
            if camera in observation.images:
                image = observation.images[camera]
                frame = OPTICAL_FRAMES[camera]
                messages.append((publisher, bridge_convert.image_message(image, stamp_ns, frame)))
        self._delay.put(lambda: _publish(messages))

    def begin(self, instruction: str, interrupted: Callable[[], bool]) -> None:
        self._delay.clear()  # no image of the episode before comes in this one
        self._policy.begin(instruction, interrupted, lambda: self.clock(self._stamp_ns))

    def changed(self, view: EpisodeView) -> None:
        """Publish the status before anything that follows from it, and log one line."""
        with self._publishing:
            self._publish_episode(view)
        if line := episode_line(view, self.resolve_service_name("~/reset")):
            self.get_logger().info(line)

    def _repeat_episode(self) -> None:
        view = self._runner.view()
        with self._publishing:
            self._publish_episode(view)
        self._diagnostics.publish(bridge_convert.diagnostic_of(view, self._runner.spec))

    def _publish_episode(self, view: EpisodeView) -> None:
        message = bridge_convert.episode_message(view, self._runner.spec, self._mode.value)
        lockstep = self._mode is Mode.LOCKSTEP
        now = self._stamp_ns if lockstep else self._clock_source.now_ns()
        message.header.stamp = to_time(now)
        self._episode.publish(message)

    def rejected(self, reason: str) -> None:
        self.get_logger().warning(f"command not executed: {reason}", throttle_duration_sec=1.0)


def episode_line(view: EpisodeView, reset_service: str) -> str:
    """Log line about the begin or the end of an episode, and what comes next; "" in between."""
    episode = f"episode {view.episode} of {view.request.task}"
    if view.state is EpisodeState.RUNNING:
        return f"{episode}: begins in initial state {view.request.initial_state}"
    if view.state is EpisodeState.RESETTING:
        return ""
    next_one = f"call {reset_service} to begin another"
    if view.next_s is not None:
        next_one = f"the next begins in {view.next_s:g} s" if view.next_s else "the next begins"
    why = f" ({view.reason})" if view.reason else ""
    return f"{episode}: {view.state.name.lower()} after {view.step} steps{why}; {next_one}"


def _publish(messages: Sequence[tuple[Any, Any]]) -> None:
    for publisher, message in messages:
        publisher.publish(message)


def _checked(instruction: str) -> str:
    """Instruction that a policy would take; it may be blank. Raises ValueError."""
    return check_instruction(instruction) or instruction


def main(args: Sequence[str] | None = None) -> int:
    """Run the bridge: exit status 0 after SIGINT or SIGTERM, 2 for a bad parameter, 1 when
    the simulation cannot be started."""
    try:
        return run(lambda _: BridgeNode(), BridgeNode.close, args)
    except SimError as error:
        log_line(f"the simulation cannot be started: {error}")
        rclpy.try_shutdown()
        return 1


if __name__ == "__main__":
    sys.exit(main())
