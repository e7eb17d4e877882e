"""The view node: a page in the browser that shows a running policy and speaks to it.

A spectator: it is nobody's condition, runs at low priority, listens best effort, and draws a few
times a second and only while somebody looks. What it says goes over the same services and the
same topic as anybody's word; no command passes through it.

Threads: the executor hears, draws and speaks; viser's threads only put wishes into a queue.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rcl_interfaces.msg import Log
from rcl_interfaces.srv import GetParameters
from rclpy.clock import Clock as RclpyClock
from rclpy.clock import ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from vla_ros.msg import ActionChunk, ActionCommand, EpisodeStatus, NamedPoses, PolicyStatus
from vla_ros.nodes.common import qos, spin
from vla_ros.nodes.common.convert import BadMessage, decompressed, image_of
from vla_ros.nodes.common.images import image_topic
from vla_ros.nodes.common.listening import listen
from vla_ros.nodes.common.parameters import declare
from vla_ros.nodes.common.serialized import header_stamp, read_compressed, read_image
from vla_ros.nodes.monitor.convert import status_seen
from vla_ros.nodes.view import convert
from vla_ros.nodes.view.parameters import TABLE
from vla_ros.nodes.view.wishes import Wishes
from vla_ros.timing import MS, SECOND, SystemClock
from vla_ros.view.guard import Guard, is_loopback
from vla_ros.view.page import Page
from vla_ros.view.pictures import burnt, side_by_side
from vla_ros.view.robot import read
from vla_ros.view.space import Past
from vla_ros.view.strips import Strips
from vla_ros.view.tasks import sentences_of
from vla_ros.view.window import Ask, Window

MAX_PIXELS = 1920 * 1200  # of a picture that is shown
CHARTS_EVERY = 2  # drawings: they are the dearest part
#: what a graph reads in the log, see vla_ros.bringup.view
ADDRESS = "the view is at "
OPENED = "the page was opened"
LEFT = "nobody looks at the page any more"
GONE_NS = 3 * SECOND  # without a browser for so long: nobody looks. A page that is loaded anew does


class ViewNode(Node):
    """See the module's text. ValueError: a bad parameter, or no port to serve on."""

    def __init__(self) -> None:
        super().__init__("view")
        values = declare(self, TABLE)
        os.nice(max(0, values["niceness"] - os.nice(0)))  # whoever started it may be nice too
        self._time = SystemClock()
        self._page, self._strips, self._past = Page(), Strips(), Past()
        self._suite: str = values["suite"]
        self._pictures: dict[str, bytes] = {}  # the newest of each camera, not decoded
        self._compressed = values["image_transport"] == "compressed"
        self._bounds_asked = False
        self._drawings = 0
        self._watched = False
        self._watched_ns = 0  # when somebody was there last
        self._asked: deque[Ask] = deque(maxlen=20)
        self._bell = self.create_guard_condition(self._fulfil)
        self._window = self._open(values)
        self._wishes = Wishes(self, self._told)
        self._subscribe(values)
        self._parameters = self.create_client(GetParameters, "policy/get_parameters")
        steady = RclpyClock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0 / values["draw_rate_hz"], self._draw, clock=steady)
        self.create_timer(0.2, self._sample, clock=steady)

    def _open(self, values: dict[str, Any]) -> Window:
        host: str = values["host"]
        token: str = values["token"]
        if not token and not is_loopback(host):
            token = secrets.token_urlsafe(12)
        try:
            window = Window(host, values["port"], Guard(token), self._ask)
        except (OSError, RuntimeError) as error:
            raise ValueError(str(error)) from None
        shown = "localhost" if is_loopback(host) else host
        address = f"http://{shown}:{window.port}/" + (f"?token={token}" if token else "")
        self.get_logger().info(f"{ADDRESS}{address}")
        return window

    def _subscribe(self, values: dict[str, Any]) -> None:
        for camera in values["cameras"]:
            kind, topic = image_topic(self, camera, values["image_transport"])

            def hear(raw: bytes, camera: str = camera) -> None:
                self._pictures[camera] = raw

            self.create_subscription(kind, topic, hear, qos.IMAGE_SUB, raw=True)
        # Best effort, so that nobody waits for us. What is said once a second needs no history.
        some = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
        many = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
        listen(self, ActionCommand, "policy/action", self._on_command, many)
        listen(self, ActionChunk, "policy/action_chunk", self._on_chunk, some)
        listen(self, PolicyStatus, "policy/status", self._on_status, some)
        listen(self, EpisodeStatus, "bridge/episode", self._on_episode, some)
        listen(self, JointState, "joint_states", self._on_joints, some)
        listen(self, NamedPoses, "ground_truth", self._on_poses, some)
        listen(self, Log, "/rosout", self._on_log, many)
        listen(self, String, "robot_description", self._on_robot, qos.LATCHED)

    # ------------------------------------------------------------------ what is heard

    def _on_command(self, message: ActionCommand) -> None:
        try:
            self._strips.add(convert.command_shown(message), self._time.steady_ns())
        except BadMessage as error:
            self._complain(str(error))
            return
        self._past.now = replace(self._past.now, step=convert.step_of(message))

    def _on_chunk(self, message: ActionChunk) -> None:
        self._page.hear_inference(message.target_passes, message.length)

    def _on_status(self, message: PolicyStatus) -> None:
        try:
            seen = status_seen(message)
        except BadMessage as error:
            self._complain(str(error))
            return
        self._page.hear_status(seen, message.instruction, self._time.steady_ns())

    def _on_episode(self, message: EpisodeStatus) -> None:
        self._page.world = convert.world_of(message)

    def _on_joints(self, message: JointState) -> None:
        joints = {**self._past.now.joints, **convert.joints_of(message)}
        now = replace(self._past.now, steady_ns=self._time.steady_ns(), joints=joints)
        self._past.add(now)

    def _on_poses(self, message: NamedPoses) -> None:
        poses = convert.poses_of(message)
        self._past.add(replace(self._past.now, steady_ns=self._time.steady_ns(), poses=poses))

    def _on_log(self, message: Log) -> None:
        self._page.hear_log(convert.line_of(message))

    def _on_robot(self, message: String) -> None:
        try:
            robot = read(message.data)
        except ValueError as error:
            self._complain(f"no robot is shown: {error}")
            return
        self._window.stage.set_robot(robot)

    def _complain(self, text: str) -> None:
        self.get_logger().warning(text, throttle_duration_sec=5.0)

    # ------------------------------------------------------------------ what is shown

    def _sample(self) -> None:
        self._strips.sample(self._page.status, self._time.steady_ns())
        if not self._bounds_asked and self._parameters.service_is_ready():
            self._bounds_asked = True
            request = GetParameters.Request(names=["bounds_low", "bounds_high"])
            self._parameters.call_async(request).add_done_callback(self._set_bounds)

    def _set_bounds(self, future: Any) -> None:
        low, high = (convert.numbers_of(value) for value in future.result().values)
        self._strips.set_bounds(low, high)

    def _draw(self) -> None:
        now, page = self._time.steady_ns(), self._page
        if not self._anybody(now):
            return
        self._window.show_words(page.banner_html(now), page.facts_html(), page.log_html())
        if pictures := self._burnt():
            self._window.show_picture(side_by_side(pictures))
        environment = page.world.environment if page.world else ""
        self._window.show_tasks(page.suggestions(sentences_of(environment, self._suite)))
        rate_hz = page.status.control_rate_hz if page.status else 0.0
        self._window.stage.show(self._past.at(self._window.seconds_ago), rate_hz)
        if self._drawings % CHARTS_EVERY == 0:
            self._window.show_strips(self._strips.strips(now))
        self._drawings += 1

    def _anybody(self, now_ns: int) -> bool:
        """Whether somebody looks; the log says when the first comes and the last is gone."""
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
        """Every camera's newest picture with its age of this moment."""
        limit = self._page.status.max_age_ms if self._page.status else 0.0
        now = int(self.get_clock().now().nanoseconds)
        found = []
        for camera, raw in self._pictures.items():
            try:
                age_ms = (now - header_stamp(raw)) / MS
                if self._compressed:
                    image = decompressed(read_compressed(raw), MAX_PIXELS)
                else:
                    image = image_of(read_image(raw), MAX_PIXELS)
            except BadMessage as error:
                self._complain(f"{camera}: {error}")
                continue
            found.append(burnt(image, age_ms, limit))
        return found

    # ------------------------------------------------------------------ what is asked

    def _ask(self, ask: Ask) -> None:
        """From viser's threads."""
        self._asked.append(ask)
        self._bell.trigger()

    def _fulfil(self) -> None:
        while self._asked:
            ask = self._asked.popleft()
            self.get_logger().info(f"asked at the page: {ask.wish.value} {ask.text}".rstrip())
            self._wishes.fulfil(ask)

    def _told(self, text: str, good: bool) -> None:
        self._window.tell(text, good)
        if good:  # two calls: rclpy holds a line of code to one severity
            self.get_logger().info(text)
        else:
            self.get_logger().warning(text)

    def close(self) -> None:
        """Let the browsers go."""
        self._window.close()


def main(args: Sequence[str] | None = None) -> int:
    """Run the node: 0 after SIGINT or SIGTERM, 2 for a bad parameter or where viser is missing."""
    return spin.run(lambda _: ViewNode(), ViewNode.close, args, executor=SingleThreadedExecutor)


if __name__ == "__main__":
    sys.exit(main())
