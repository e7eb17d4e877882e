"""The view node: a page in the browser that shows a running policy and sends it requests.

A spectator: nothing depends on it, it runs at low priority, subscribes best effort, and draws a few
times a second and only while a browser is open. Its requests use the public services and topics; no
command of the policy passes through it, and a takeover there is gated by the policy node as any.

Threads: the executor receives, draws and calls; viser's threads put requests into a queue, but STOP
goes out from the thread that it came in: it waits behind nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import TwistStamped
from rcl_interfaces.msg import Log, ParameterType, ParameterValue
from rcl_interfaces.srv import GetParameters
from rclpy.client import Client
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, String
from std_srvs.srv import Trigger

from vla_ros.core.assumption import Assumption
from vla_ros.core.clock import MS, SECOND, SystemClock
from vla_ros.core.pixels import BadMessage, decompressed
from vla_ros.core.types import Floats, PolicyState
from vla_ros.msg import (
    ActionChunk,
    ActionCommand,
    EpisodeStatus,
    NamedPoses,
    PolicyDescription,
    PolicyStatus,
)
from vla_ros.ros.bringup.view import ADDRESS, LEFT, OPENED
from vla_ros.ros.common import qos, spin
from vla_ros.ros.common.convert import stamp_of
from vla_ros.ros.common.images import pixels_of
from vla_ros.ros.common.listening import listen
from vla_ros.ros.common.parameters import Parameter as P
from vla_ros.ros.common.parameters import declare
from vla_ros.ros.common.peer import image_topic
from vla_ros.ros.common.qos_overrides import QosOverrides, warn_of_unused
from vla_ros.ros.common.serialized import header_stamp, read_compressed, read_image
from vla_ros.ros.nodes.monitor.node import command_seen, status_seen
from vla_ros.ros.nodes.view.cloud import CloudReader
from vla_ros.srv import ResetEpisode
from vla_ros.viz.robot_model import place_of, read
from vla_ros.viz.viewer.guard import PageGuard, is_loopback
from vla_ros.viz.viewer.model import (
    CommandShown,
    LogLine,
    Page,
    SimulationState,
    Strips,
    ViewHistory,
    burnt,
    for_page,
    instructions_of,
    path_by_steps,
    side_by_side,
)
from vla_ros.viz.viewer.style import held_html
from vla_ros.viz.viewer.window import HOLD_HZ, JogRequest, PageAction, PageRequest, PageWindow

# Requests of the page to the graph: services, and the instruction.


STANDS_NS = SECOND // 8  # without a push: the button is not held
BEGINS_NS = SECOND  # for a takeover to be reported
ZERO = JogRequest((0.0,) * 6)
_LIFESPAN_S = 5.0  # a policy that is started later must not get an instruction typed long ago
_SERVICES = (
    PageAction.STOP,
    PageAction.RESUME,
    PageAction.RECOVER,
    PageAction.RESET,
    PageAction.RELEASE,
)


class PageRequests:
    """Clients of the services. ``report`` gets one line for each request, and whether it was done.
    Called by the executor, and for STOP by any thread: rclpy locks its clients and publishers."""

    def __init__(self, node: Node, report: Callable[[str, bool], None]) -> None:
        self._report = report
        self._triggers = {
            wish: node.create_client(Trigger, f"policy/{wish.value}") for wish in _SERVICES
        }
        self._episode = node.create_client(ResetEpisode, "bridge/reset")
        profile = qos.copy(qos.LATCHED)
        profile.lifespan = Duration(seconds=_LIFESPAN_S)
        self._instruction = node.create_publisher(String, "instruction", profile)
        self._clock = node.get_clock()
        self._twist = node.create_publisher(TwistStamped, "policy/takeover/twist", qos.EVENT)
        self._gripper = node.create_publisher(Float64, "policy/takeover/gripper", qos.EVENT)

    def fulfil(self, ask: PageRequest) -> None:
        """Send a request; its outcome is reported later."""
        if ask.action is PageAction.INSTRUCT:
            self._instruct(ask.text.strip())
        elif ask.action is PageAction.RESET and self._episode.service_is_ready():
            request = ResetEpisode.Request(task="", initial_state=-1)
            self._call(self._episode, request, "reset")
        else:
            self._trigger(ask.action)

    def push(self, push: JogRequest) -> None:
        """Publish a person's velocity or opening, in the frame of the policy's actions."""
        if push.opening is not None:
            self._gripper.publish(Float64(data=push.opening))
        if push.velocity:
            message = TwistStamped()
            message.header.stamp = self._clock.now().to_msg()
            linear, angular = message.twist.linear, message.twist.angular
            linear.x, linear.y, linear.z, angular.x, angular.y, angular.z = push.velocity
            self._twist.publish(message)

    def _instruct(self, text: str) -> None:
        if not text:
            self._report("write an instruction first; to stop the robot press STOP", False)
            return
        self._instruction.publish(String(data=text))
        self._report(f"instruction sent: {text}", True)

    def _trigger(self, wish: PageAction) -> None:
        client = self._triggers[wish]
        if client.service_is_ready():
            self._call(client, Trigger.Request(), wish.value)
        elif wish is PageAction.STOP:
            # A policy may still be subscribed where its service is not found: empty means stop.
            self._instruction.publish(String(data=""))
            self._report(f"{client.srv_name} is not there: sent the empty instruction", False)
        else:
            self._report(f"{client.srv_name} is not there", False)

    def _call(self, client: Client, request: Any, name: str) -> None:
        def done(future: Any) -> None:
            answer = future.result()
            self._report(f"{name}: {for_page(answer.message)}", bool(answer.success))

        client.call_async(request).add_done_callback(done)


# A person at the page who has the robot.


class PagePerson:
    """The dead-man of the page's takeover: while a button is held the person's motion goes out, in
    between a velocity of zero, so that the robot stands and the policy does not take it back.
    It ends with Give back, STOP, or when the policy reports no takeover; where the page is lost
    meanwhile, the policy is stopped. Steady times in ns. Of any thread."""

    def __init__(self) -> None:
        self._pushed_ns = self._began_ns = 0
        self.has_robot = False

    def pushed(self, now_ns: int) -> None:
        """A button is held."""
        if not self.has_robot:
            self._began_ns = now_ns
        self._pushed_ns, self.has_robot = now_ns, True

    def end(self) -> None:
        """The robot is given back, or stopped."""
        self.has_robot = False

    def held(self, now_ns: int) -> bool:
        """True while a button is held."""
        return self.has_robot and now_ns - self._pushed_ns <= STANDS_NS

    def reported(self, state: PolicyState, now_ns: int) -> None:
        """The policy's state: another than TAKEOVER means that nothing of ours is obeyed."""
        if state is not PolicyState.TAKEOVER and now_ns - self._began_ns > BEGINS_NS:
            self.end()


# Messages as the page's frozen types. Malformed ones raise BadMessage or ValueError.


_STATES = {
    EpisodeStatus.STATE_RESETTING: "resetting",
    EpisodeStatus.STATE_RUNNING: "running",
    EpisodeStatus.STATE_SUCCESS: "success",
    EpisodeStatus.STATE_FAILURE: "failure",
}


_DISPLACEMENTS = (ActionCommand.SPACE_END_EFFECTOR_DELTA, ActionCommand.SPACE_JOINT_DELTA)


def command_shown(message: ActionCommand) -> CommandShown:
    """Command of any action space."""
    return CommandShown(
        seen=command_seen(message),
        action=tuple(message.action),
        names=tuple(message.names),
        units=tuple(message.units),
        displaces=message.action_space in _DISPLACEMENTS,
    )


def step_of(message: ActionCommand) -> Floats | None:
    """Displacement of the end effector that is commanded, float64 [3]; None: none is."""
    if message.action_space != ActionCommand.SPACE_END_EFFECTOR_DELTA or len(message.action) < 3:
        return None
    step = np.array(message.action[:3], np.float64)
    return step if np.isfinite(step).all() else None


def steps_of(message: ActionChunk) -> Floats | None:
    """Displacements of the end effector in a chunk, float64 [n, 3]; None: it has none."""
    size, width = message.length, message.width
    displaces = message.action_space == ActionCommand.SPACE_END_EFFECTOR_DELTA
    if not displaces or width < 3 or len(message.actions) != size * width:
        return None
    steps = np.array(message.actions, np.float64).reshape(size, width)[:, :3]
    return steps if np.isfinite(steps).all() else None


def world_of(message: EpisodeStatus) -> SimulationState:
    """State of a simulation's episode."""
    return SimulationState(
        environment=message.environment,
        task=message.task,
        number=message.episode,
        step=message.step,
        max_steps=message.max_steps,
        state=_STATES.get(message.state, "unknown"),
    )


def note_of(message: DiagnosticArray, namespace: str) -> str | None:
    """Label of the simulation of this namespace, '' where it needs none; None: these are statuses
    of another node."""
    name = f"{namespace.rstrip('/')}/bridge: episode".lstrip("/")
    for status in message.status:
        if status.name == name:
            return next((one.value for one in status.values if one.key == "note"), "")
    return None


def joints_of(message: JointState) -> dict[str, float]:
    """Joint positions by name; names without a position are left out."""
    return dict(zip(message.name, map(float, message.position), strict=False))


def poses_of(message: NamedPoses) -> dict[str, Floats]:
    """Poses by name, float64 [4, 4]."""
    found = {}
    for name, pose in zip(message.names, message.poses, strict=False):
        p, q = pose.position, pose.orientation
        found[name] = place_of((p.x, p.y, p.z), (q.x, q.y, q.z, q.w))
    return found


def line_of(message: Log) -> LogLine:
    """Line of a node's log."""
    return LogLine(message.name, int(message.level), message.msg)


def numbers_of(value: ParameterValue) -> tuple[float, ...]:
    """Value of a parameter that is a list of numbers; () for another."""
    if value.type != ParameterType.PARAMETER_DOUBLE_ARRAY:
        return ()
    return tuple(map(float, value.double_array_value))


# The parameters, and the node.


TABLE = (
    P("host", "127.0.0.1", "Address to serve on; elsewhere than on this machine it asks for a"
      " token", fixed=True),
    P("port", 8080, "Port to serve on; the next free one where it is taken", 1, 65_535, fixed=True),
    P("token", "", "What a browser must know; empty: none on this machine, else a new one each"
      " start, which stands in the address that is logged", fixed=True),
    P("cameras", ["image", "wrist_image"], "Topics of the images", fixed=True),
    P("image_transport", "raw", "Topics of the cameras: as they are, or with /compressed",
      choices=("raw", "compressed"), fixed=True),
    P("point_cloud", "", "Topic of a depth camera's sensor_msgs/PointCloud2, shown in 3-D where"
      " sensor_msgs_py is installed; empty: none", fixed=True),
    P("suite", "", "libero: whose instructions are suggested; empty: of all suites", fixed=True),
    P("draw_rate_hz", 4.0, "How often the page is drawn, while a browser is open", 0.2, 20.0,
      fixed=True),
    P("niceness", 10, "Niceness of its process, behind all others", 0, 19, fixed=True),
)  # fmt: skip


MAX_PIXELS = 1920 * 1200  # of an image that is shown
CHARTS_EVERY = 2  # drawings: they are the dearest part
MOST_WAITING = 20  # requests of people; STOP is not among them
GONE_NS = 3 * SECOND  # without a browser for so long the page is closed; a reload is shorter


class ViewNode(QosOverrides, Node):
    """The node behind the page. ValueError: a bad parameter, or no port to serve on."""

    def __init__(self) -> None:
        super().__init__("view")
        values = declare(self, TABLE)
        os.nice(max(0, values["niceness"] - os.nice(0)))  # whoever started it may be nice too
        self._time = SystemClock()
        self._page, self._strips, self._past = Page(), Strips(), ViewHistory()
        self._suite: str = values["suite"]
        self._images: dict[str, bytes] = {}  # the newest of each camera, not decoded
        self._compressed = values["image_transport"] == "compressed"
        self._cloud: CloudReader | None = None
        self._bounds_asked = False
        self._drawings = 0
        self._watched = False
        self._watched_ns = 0  # when a browser was there last
        self._queue: deque[PageRequest | JogRequest] = deque()
        self._held: deque[JogRequest] = deque(maxlen=1)  # a button that is held: the newest counts
        self._bell = self.create_guard_condition(self._fulfil)
        self._requests = PageRequests(self, self._show_report)
        self._person = PagePerson()
        self._window = self._open(values)
        self._subscribe(values)
        self._get_parameters = self.create_client(GetParameters, "policy/get_parameters")
        spin.every(self, 1.0 / values["draw_rate_hz"], self._draw)
        spin.every(self, 0.2, self._sample)
        spin.every(self, 1.0 / HOLD_HZ, self._keep)
        warn_of_unused(self)

    def _open(self, values: dict[str, Any]) -> PageWindow:
        host: str = values["host"]
        token: str = values["token"]
        if not token and not is_loopback(host):
            token = secrets.token_urlsafe(12)
        try:
            window = PageWindow(host, values["port"], PageGuard(token), self._ask, self._jog)
        except (OSError, RuntimeError) as error:
            raise ValueError(str(error)) from None
        shown = "localhost" if is_loopback(host) else host
        address = f"http://{shown}:{window.port}/" + (f"?token={token}" if token else "")
        self.get_logger().info(f"{ADDRESS}{address}")
        return window

    def _subscribe(self, values: dict[str, Any]) -> None:
        for camera in values["cameras"]:
            kind, topic = image_topic(self, camera, values["image_transport"])

            def take(raw: bytes, camera: str = camera) -> None:
                self._images[camera] = raw

            self.create_subscription(kind, topic, take, qos.IMAGE_SUB, raw=True)
        # Best effort, so that no writer waits for it. Reports once a second need no history.
        some = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
        many = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
        all_that_come = QoSProfile(depth=500, reliability=ReliabilityPolicy.BEST_EFFORT)
        commands, shadow = (partial(self._on_command, of_shadow) for of_shadow in (False, True))
        listen(self, ActionCommand, "policy/action", commands, all_that_come)
        listen(self, ActionCommand, "policy/shadow/action", shadow, all_that_come)
        listen(self, ActionChunk, "policy/action_chunk", self._on_chunk, some)
        listen(self, PolicyStatus, "policy/status", self._on_status, some)
        listen(self, PolicyDescription, "policy/description", self._on_description, qos.LATCHED)
        listen(self, EpisodeStatus, "bridge/episode", self._on_episode, some)
        listen(self, JointState, "joint_states", self._on_joints, some)
        listen(self, NamedPoses, "ground_truth", self._on_poses, some)
        listen(self, DiagnosticArray, "/diagnostics", self._on_diagnostics, many)
        listen(self, Log, "/rosout", self._on_log, many)
        listen(self, String, "robot_description", self._on_robot, qos.LATCHED)
        if topic := values["point_cloud"]:
            self._cloud = CloudReader(self, topic, self._time.steady_ns, self._warn)

    # Received

    def _on_command(self, shadow: bool, message: ActionCommand) -> None:
        if (status := self._page.status) is not None and shadow != status.shadow:
            return  # in the shadow a person's may be on the other topic
        try:
            self._strips.add(command_shown(message), self._time.steady_ns())
        except BadMessage as error:
            self._warn(str(error))
            return
        self._past.now = replace(self._past.now, step=step_of(message))

    def _on_chunk(self, message: ActionChunk) -> None:
        self._page.hear_inference(message.target_passes, message.length)
        steady_ns = self._time.steady_ns()
        age_ns = int(self.get_clock().now().nanoseconds) - stamp_of(message.observation_stamp)
        path, hand = None, self._past.now.poses.get("gripper")
        steps = steps_of(message)
        if steps is not None and hand is not None:
            path = path_by_steps(hand, self._window.stage.base(self._past.now.joints), steps)
        self._past.now = replace(self._past.now, path=path, path_ns=steady_ns - age_ns)

    def _on_status(self, message: PolicyStatus) -> None:
        try:
            seen = status_seen(message)
        except BadMessage as error:
            self._warn(str(error))
            return
        self._page.hear_status(seen, message.instruction, self._time.steady_ns())
        self._person.reported(seen.state, self._time.steady_ns())

    def _on_description(self, message: PolicyDescription) -> None:
        self._page.assumptions = tuple(
            Assumption(a.what, a.value, a.source, a.is_default) for a in message.assumptions
        )

    def _on_episode(self, message: EpisodeStatus) -> None:
        self._page.world = world_of(message)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        note = note_of(message, self.get_namespace())
        if note is not None:
            self._page.note = note

    def _on_joints(self, message: JointState) -> None:
        joints = {**self._past.now.joints, **joints_of(message)}
        now = replace(self._past.now, steady_ns=self._time.steady_ns(), joints=joints)
        self._past.add(now)

    def _on_poses(self, message: NamedPoses) -> None:
        poses = poses_of(message)
        self._past.add(replace(self._past.now, steady_ns=self._time.steady_ns(), poses=poses))

    def _on_log(self, message: Log) -> None:
        self._page.hear_log(line_of(message))

    def _on_robot(self, message: String) -> None:
        try:
            robot = read(message.data)
        except ValueError as error:
            self._warn(f"no robot is shown: {error}")
            return
        self._window.stage.set_robot(robot)

    def _warn(self, text: str) -> None:
        self.get_logger().warning(text, throttle_duration_sec=5.0)

    # Shown

    def _sample(self) -> None:
        self._strips.sample(self._page.status, self._time.steady_ns())
        if not self._bounds_asked and self._get_parameters.service_is_ready():
            self._bounds_asked = True
            request = GetParameters.Request(names=["bounds_low", "bounds_high"])
            self._get_parameters.call_async(request).add_done_callback(self._set_bounds)

    def _set_bounds(self, future: Any) -> None:
        low, high = (numbers_of(value) for value in future.result().values)
        self._strips.set_bounds(low, high)

    def _draw(self) -> None:
        now, page = self._time.steady_ns(), self._page
        if not self._is_watched(now):
            return
        banner = page.banner_html(now)
        if self._person.has_robot:
            banner += held_html(self._person.held(now))
        self._window.show_words(banner, page.facts_html(), page.assumptions_html(), page.log_html())
        if images := self._burnt():
            self._window.show_image(side_by_side(images))
        environment = page.world.environment if page.world else ""
        self._window.show_tasks(page.suggestions(instructions_of(environment, self._suite)))
        rate_hz = page.status.control_rate_hz if page.status else 0.0
        self._window.stage.show(self._past.at(self._window.seconds_ago), rate_hz)
        if self._drawings % CHARTS_EVERY == 0:
            self._window.show_strips(self._strips.strips(now))
            if self._cloud is not None and not self._window.seconds_ago:
                places = self._window.stage.places(self._past.now.joints)
                self._window.stage.show_cloud(self._cloud.cloud(places))
        self._drawings += 1

    def _is_watched(self, now_ns: int) -> bool:
        """True while a browser is open; logs when the first comes and the last is gone."""
        watched = self._window.watched
        if watched:
            self._watched_ns = now_ns
            if not self._watched:
                self.get_logger().info(OPENED)
                self._watched = True
        elif self._watched and now_ns - self._watched_ns > GONE_NS:
            self.get_logger().info(LEFT)
            self._watched = False
        return watched

    def _burnt(self) -> list[Any]:
        """Newest image of every camera, with its age of this moment burnt in."""
        limit = self._page.status.max_age_ms if self._page.status else 0.0
        now = int(self.get_clock().now().nanoseconds)
        found = []
        for camera, raw in self._images.items():
            try:
                age_ms = (now - header_stamp(raw)) / MS
                if self._compressed:
                    image = decompressed(read_compressed(raw), MAX_PIXELS)
                else:
                    image = pixels_of(read_image(raw), MAX_PIXELS)
            except BadMessage as error:
                self._warn(f"{camera}: {error}")
                continue
            found.append(burnt(image, age_ms, limit))
        return found

    # Requested

    def _ask(self, ask: PageRequest) -> None:
        """Send STOP, queue another request. From viser's threads."""
        self.get_logger().info(f"asked at the page: {ask.action.value} {ask.text}".rstrip())
        if ask.action is not PageAction.STOP:
            if ask.action in (PageAction.RELEASE, PageAction.RESET):
                self._person.end()
                self._held.clear()
            self._put(ask)
            return
        self._person.end()
        self._queue.clear()  # what was asked before it and is not done yet
        self._held.clear()
        self._requests.fulfil(ask)

    def _jog(self, jog: JogRequest) -> None:
        """Queue a person's motion. From viser's threads."""
        if jog.opening is not None:
            self._put(jog)
            return
        self._person.pushed(self._time.steady_ns())
        self._held.append(jog)
        self._bell.trigger()

    def _keep(self) -> None:
        """Keep the robot the person's, standing, between their pushes; stop it where the page is
        lost."""
        if not self._person.has_robot or self._person.held(self._time.steady_ns()):
            return
        if self._window.watched:
            self._requests.push(ZERO)
            return
        self._ask(PageRequest(PageAction.STOP))
        self._show_report("the page was lost while a person had the robot: stopped", False)

    def _put(self, request: PageRequest | JogRequest) -> None:
        if len(self._queue) < MOST_WAITING:
            self._queue.append(request)
            self._bell.trigger()
        else:
            self._show_report(f"not done: {MOST_WAITING} requests wait already", False)

    def _fulfil(self) -> None:
        for queue in (self._queue, self._held):
            with contextlib.suppress(IndexError):  # STOP empties them, from its own thread
                while queue:
                    request = queue.popleft()
                    if isinstance(request, JogRequest):
                        self._requests.push(request)
                    else:
                        self._requests.fulfil(request)

    def _show_report(self, text: str, good: bool) -> None:
        self._window.notify(text, good)
        if good:  # two calls: rclpy holds a line of code to one severity
            self.get_logger().info(text)
        else:
            self.get_logger().warning(text)

    def close(self) -> None:
        """Close the page."""
        self._window.close()


def main(args: Sequence[str] | None = None) -> int:
    """Run the node: 0 after SIGINT or SIGTERM, 2 for a bad parameter or where viser is missing."""
    return spin.run(lambda _: ViewNode(), ViewNode.close, args, executor=SingleThreadedExecutor)


if __name__ == "__main__":
    sys.exit(main())
