"""What was asked for at the page, said to the graph: services, and the instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.client import Client
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_ros.srv import ResetEpisode
from vla_ros.view.window import Ask, Wish

_SAID_S = 5.0  # a policy that is started later must not be told what was typed long ago
_SERVICES = (Wish.STOP, Wish.RESUME, Wish.RECOVER, Wish.RESET)


class Wishes:
    """``tell`` gets one line for each wish and whether it was done. Belongs to the executor."""

    def __init__(self, node: Node, tell: Callable[[str, bool], None]) -> None:
        self._tell = tell
        self._triggers = {
            wish: node.create_client(Trigger, f"policy/{wish.value}") for wish in _SERVICES
        }
        self._episode = node.create_client(ResetEpisode, "bridge/reset")
        said = QoSProfile(
            depth=1,
            reliability=ReliabilityPolicy.RELIABLE,
            durability=DurabilityPolicy.TRANSIENT_LOCAL,
            lifespan=Duration(seconds=_SAID_S),
        )
        self._instruction = node.create_publisher(String, "instruction", said)

    def fulfil(self, ask: Ask) -> None:
        """Begin it; what comes of it is told later."""
        if ask.wish is Wish.SAY:
            self._say(ask.text.strip())
        elif ask.wish is Wish.RESET and self._episode.service_is_ready():
            request = ResetEpisode.Request(task="", initial_state=-1)
            self._call(self._episode, request, "reset")
        else:
            self._trigger(ask.wish)

    def _say(self, text: str) -> None:
        if not text:
            self._tell("there is no text to say; to stop the robot press STOP", False)
            return
        self._instruction.publish(String(data=text))
        self._tell(f"said: {text}", True)

    def _trigger(self, wish: Wish) -> None:
        client = self._triggers[wish]
        if client.service_is_ready():
            self._call(client, Trigger.Request(), wish.value)
        elif wish is Wish.STOP:
            # Whoever executes may still listen where the service is not found: empty means stop.
            self._instruction.publish(String(data=""))
            self._tell(f"{client.srv_name} is not there; said the empty instruction", False)
        else:
            self._tell(f"{client.srv_name} is not there", False)

    def _call(self, client: Client, request: Any, name: str) -> None:
        def done(future: Any) -> None:
            answer = future.result()
            self._tell(f"{name}: {answer.message}", bool(answer.success))

        client.call_async(request).add_done_callback(done)
