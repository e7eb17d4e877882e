"""The simulation bridge: a simulated robot's topics, its episodes, and its obedience.

It publishes camera images, joint states, ground truth and the task's instruction, and
executes the policy's commands, in lock-step or real time (:mod:`vla_ros.sim.episode`).

Threads: the node's executor receives commands and requests; the episode thread drives the
simulation, which lives in a process of its own, and publishes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import Image, JointState

from vla_ros.control import check_instruction
from vla_ros.msg import ActionCommand, EpisodeStatus, NamedPoses
from vla_ros.nodes.bridge import convert as bridge_convert
from vla_ros.nodes.bridge.delay import DelayLine
from vla_ros.nodes.bridge.geometry import GeometryTopics
from vla_ros.nodes.bridge.parameters import TABLE
from vla_ros.nodes.bridge.policy import PolicyPeer
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import BadMessage, to_time
from vla_ros.nodes.common.diagnostics import Diagnostics
from vla_ros.nodes.common.listening import listen
from vla_ros.nodes.common.parameters import declare
from vla_ros.nodes.common.spin import run
from vla_ros.sim.env import (
    AGENTVIEW,
    OPTICAL_FRAMES,
    WRIST,
    SimError,
    SimObservation,
    UnknownTask,
)
from vla_ros.sim.episode import EpisodeRunner
from vla_ros.sim.episode.state import (
    EpisodeOptions,
    EpisodeRequest,
    EpisodeState,
    EpisodeView,
    Mode,
)
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.process import SimProcess
from vla_ros.srv import ResetEpisode
from vla_ros.timing import MS, SystemClock


class BridgeNode(Node):
    """See the module's text. It is also the outlet of its episode runner.

    ValueError: a bad parameter. SimError: the simulation cannot be started.
    """

    def __init__(self) -> None:
        super().__init__("bridge")
        values = declare(self, TABLE)
        self._mode = Mode(values["mode"])
        self._clock_source = SystemClock()
        delay_ns = 0 if self._mode is Mode.LOCKSTEP else round(values["image_delay_ms"] * MS)
        self._delay = DelayLine(delay_ns, self._clock_source)
        policy = values["policy_reset_service"]
        self._policy = PolicyPeer(self, policy, values["wait_for_policy"])
        config = EnvConfig(
            values["environment"],
            values["image_size"],
            values["wrist_camera"],
            values["suite"],
            values["nudge_m"],
        )
        self._sim = SimProcess(config)
        if self._sim.spec.note:
            self.get_logger().warning(f"what is seen here is labelled: {self._sim.spec.note}")
        self._make_topics(values)
        try:
            self._runner = self._make_runner(values)
        except (UnknownTask, ValueError) as error:
            self._sim.close()
            raise ValueError(str(error)) from None
        listen(self, ActionCommand, "policy/action", self._on_command, qos.ACTION)
        self.create_service(ResetEpisode, "~/reset", self._on_reset)
        # Steady: in lock-step this node is the one that makes ROS time pass.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._saying = threading.Lock()  # a status read before another must not go out after it
        self.create_timer(1.0, self._repeat_episode, clock=steady)
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
        self._stamp_ns = 0  # lock-step: what /clock said last

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

    # ------------------------------------------------------------------ what comes in

    def _on_command(self, message: ActionCommand) -> None:
        try:
            command = bridge_convert.command_of(message)
        except BadMessage as error:
            self._runner.refuse(str(error))
            return
        self._runner.offer(command)

    def _on_reset(
        self, request: ResetEpisode.Request, response: ResetEpisode.Response
    ) -> ResetEpisode.Response:
        """Answers at once; ~/episode says when the new episode runs, or why it does not."""
        running = self._runner.view().request
        task = request.task or running.task
        initial_state = request.initial_state
        if initial_state < 0:
            same = task == running.task
            initial_state = self._runner.following().initial_state if same else 0
        seed, max_steps = (int(self.get_parameter(n).value) for n in ("seed", "max_steps"))
        try:
            instruction = _checked(str(self.get_parameter("instruction").value))
            wanted = EpisodeRequest(task, initial_state, seed, max_steps, instruction)
            response.episode = self._runner.request(wanted)
        except (UnknownTask, ValueError) as error:
            response.success, response.message = False, str(error)
            return response
        response.success = True
        response.message = f"episode {response.episode} begins: {task}, state {initial_state}"
        response.instruction = wanted.told(self._runner.spec.task(task).instruction)
        return response

    # ------------------------------------------------------------------ Outlet

    def clock(self, stamp_ns: int) -> None:
        self._stamp_ns = stamp_ns
        if self._clock_topic is not None:
            self._clock_topic.publish(ClockMessage(clock=to_time(stamp_ns)))

    def observation(self, stamp_ns: int, observation: SimObservation) -> None:
        """The image that policies wait for goes out last, when its companions are under way."""
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
        self._delay.clear()  # what the episode before showed is not seen in this one
        self._policy.begin(instruction, interrupted, lambda: self.clock(self._stamp_ns))

    def changed(self, view: EpisodeView) -> None:
        """The status goes out before anything that follows from it, and one line into the log."""
        with self._saying:
            self._publish_episode(view)
        if line := told(view, self.resolve_service_name("~/reset")):
            self.get_logger().info(line)

    def _repeat_episode(self) -> None:
        view = self._runner.view()
        with self._saying:
            self._publish_episode(view)
        self._diagnostics.say(bridge_convert.diagnostic_of(view))

    def _publish_episode(self, view: EpisodeView) -> None:
        spec = self._runner.spec
        message = bridge_convert.episode_message(
            view, spec.name, self._mode.value, spec.control_rate_hz
        )
        lockstep = self._mode is Mode.LOCKSTEP
        now = self._stamp_ns if lockstep else self._clock_source.now_ns()
        message.header.stamp = to_time(now)
        self._episode.publish(message)

    def rejected(self, reason: str) -> None:
        self.get_logger().warning(f"command not executed: {reason}", throttle_duration_sec=1.0)


def told(view: EpisodeView, reset_service: str) -> str:
    """The line about the begin or the end of an episode, and what comes next; "" in between."""
    episode = f"episode {view.episode} of {view.request.task}"
    if view.state is EpisodeState.RUNNING:
        return f"{episode}: begins in initial state {view.request.initial_state}"
    if view.state is EpisodeState.RESETTING:
        return ""
    comes = f"call {reset_service} to begin another"
    if view.next_s is not None:
        comes = f"the next begins in {view.next_s:g} s" if view.next_s else "the next begins"
    why = f" ({view.reason})" if view.reason else ""
    return f"{episode}: {view.state.name.lower()} after {view.step} steps{why}; {comes}"


def _publish(messages: Sequence[tuple[Any, Any]]) -> None:
    for publisher, message in messages:
        publisher.publish(message)


def _checked(instruction: str) -> str:
    """The parameter's value, if the policy would take it; it may be blank. Raises ValueError."""
    return check_instruction(instruction) or instruction


def main(args: Sequence[str] | None = None) -> int:
    """Run the bridge: exit status 0 after SIGINT or SIGTERM, 2 for a bad parameter, 1 when
    the simulation cannot be started."""
    try:
        return run(lambda _: BridgeNode(), BridgeNode.close, args)
    except SimError as error:
        print(f"the simulation cannot be started: {error}", file=sys.stderr)
        rclpy.try_shutdown()
        return 1


if __name__ == "__main__":
    sys.exit(main())
