"""What feeds a `MotionJudge` from a graph: the outputs, status and parameters of a policy node, and
the joints of its robot.

    with MotionListener(domain, "/policy") as listener:
        ...
    assert not listener.judge.finish()

The limits are the node's own, read when it answers and followed as they change.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from geometry_msgs.msg import PoseStamped, TwistStamped
from rcl_interfaces.msg import ParameterEvent
from rcl_interfaces.srv import GetParameters, ListParameters
from rclpy.parameter import parameter_value_to_python
from rclpy.qos import QoSProfile, qos_profile_parameter_events
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, Float64MultiArray, String
from trajectory_msgs.msg import JointTrajectory, MultiDOFJointTrajectory

from support.motion_judge import MotionJudge
from support.motion_limits import PARAMETERS
from support.ros import RosPeer
from vla_ros.core.clock import SECOND
from vla_ros.msg import ActionCommand, PolicyStatus
from vla_ros.ros.common import qos
from vla_ros.ros.common.listening import listen

ASK_S = 0.2  # between two tries to read the parameters
SETTLE_S = 5.0  # after which nothing older is on its way
DEPTH = 1000
ROBOT = {"joint_states": JointState, "measured_pose": PoseStamped}
OF_ARMS = {
    "twist": TwistStamped,
    "gripper": Float64,
    "joint_trajectory": JointTrajectory,
    "cartesian_reference": MultiDOFJointTrajectory,
    "positions": Float64MultiArray,
    "joint_commands": JointState,
    "gripper_positions": Float64MultiArray,
}


class MotionListener:
    """Listens from construction until :meth:`close`; ``judge`` has what was heard.

    ``name``: the policy node's full name. ``remappings``: as the node was given them. ``joints``:
    a topic that has the joints as they are, where joint_states is made to be wrong.
    """

    def __init__(
        self,
        domain: int,
        name: str = "/policy",
        remappings: Mapping[str, str] | None = None,
        joints: str = "joint_states",
    ) -> None:
        self.judge = MotionJudge()
        self._name, self._namespace = name, name.rpartition("/")[0]
        self._renamed = {self._full(a): self._full(b) for a, b in (remappings or {}).items()}
        self._values: dict[str, Any] = {}
        self._endless: list[str] = []  # joints, as the robot's description has them
        self._since: dict[str, int] = {}  # of the values
        self._arms: set[str] = set()
        self._asked: Any = None
        self._answered = False
        self._lock = threading.Lock()
        self._peer = RosPeer(domain, "motion_judge")
        node = self._peer.node
        self._lists = node.create_client(ListParameters, f"{name}/list_parameters")
        self._gets = node.create_client(GetParameters, f"{name}/get_parameters")
        events = qos_profile_parameter_events
        listen(node, ParameterEvent, "/parameter_events", self._changed, events, with_info=True)
        self._listen(ActionCommand, "action", qos.ACTION)
        self._listen(PolicyStatus, "status", qos.EVERY_CHANGE)
        self._listen_to("")
        for topic, kind in ROBOT.items():
            at = joints if topic == "joint_states" else topic
            self._listen(kind, topic, qos.STATE_SUB, f"{self._namespace}/{at}")
        described = f"{self._namespace}/robot_description"
        described = self._renamed.get(described, described)
        listen(node, String, described, self._describe, qos.LATCHED)
        node.create_timer(ASK_S, self._tick)

    def __enter__(self) -> MotionListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the graph. What was heard can be judged all the same."""
        self._peer.close()

    def settle(self, age_s: float = SETTLE_S) -> MotionJudge:
        """Judge what is older than that: nothing older is on its way."""
        with self._lock:
            self.judge.settle(time.time_ns() - round(age_s * SECOND))
        return self.judge

    def leave(self) -> list[str]:
        """Leave the graph; a line a broken promise. How much was judged goes to the output."""
        self.close()
        lines = self.judge.finish()
        print(f"----- motion of {self._name}: {dict(self.judge.judged)}")
        return lines

    # Messages

    def _full(self, topic: str) -> str:
        """The whole name of a topic as a remapping of the node has it."""
        if topic.startswith("/"):
            return topic
        if topic.startswith("~/"):
            return f"{self._name}/{topic[2:]}"
        return f"{self._namespace}/{topic}"

    def _listen(self, kind: type, topic: str, profile: QoSProfile, at: str = "") -> None:
        full = at or f"{self._name}/{topic}"
        deep = QoSProfile(
            depth=DEPTH, reliability=profile.reliability, durability=profile.durability
        )
        listen(
            self._peer.node,
            kind,
            self._renamed.get(full, full),
            self._hears(topic),
            deep,
            refuse=lambda reason: None,  # of a fuzz: the node hears them too
            with_info=True,
        )

    def _hears(self, topic: str) -> Callable[[Any, Any], None]:
        space = topic[: topic.rfind("/") + 1]  # of an arm that is a namespace

        def hear(message: Any, info: Any) -> None:
            for field in ("joint_names", "name") if space else ():
                if hasattr(message, field):  # its driver's names are without it
                    setattr(message, field, [space + name for name in getattr(message, field)])
            gid = info.get("publisher_gid")  # older rclpy has none of these
            with self._lock:
                self.judge.hear(
                    topic,
                    message,
                    int(info.get("source_timestamp") or time.time_ns()),
                    info.get("publication_sequence_number"),
                    None if gid is None else gid["data"],
                )

        return hear

    # Limits

    def _changed(self, event: ParameterEvent, info: Any) -> None:
        if event.node == self._name:
            at = int(info.get("source_timestamp") or time.time_ns())
            new = [*event.new_parameters, *event.changed_parameters]
            self._know({one.name: parameter_value_to_python(one.value) for one in new}, at)

    def _tick(self) -> None:
        """Ask for the parameters until they are known, and judge what is old enough."""
        if not self._answered:
            self._ask()
        self.settle()

    def _ask(self) -> None:
        if self._asked is None:
            if self._lists.service_is_ready() and self._gets.service_is_ready():
                self._asked = self._lists.call_async(ListParameters.Request()), time.monotonic()
                self._asked[0].add_done_callback(self._listed)
        elif time.monotonic() - self._asked[1] > 10 * ASK_S:
            self._asked = None  # a request of just after the start may reach nobody

    def _listed(self, future: Any) -> None:
        names = [name for name in PARAMETERS if name in future.result().result.names]
        request = GetParameters.Request(names=names)

        def got(answer: Any) -> None:
            values = map(parameter_value_to_python, answer.result().values)
            self._answered = True  # before that a part of them may be missing
            self._know(dict(zip(names, values, strict=True)), 0)

        self._gets.call_async(request).add_done_callback(got)

    def _know(self, values: Mapping[str, Any], at_ns: int) -> None:
        """``at_ns``: since when; 0: since an earlier time."""
        newer = {
            name: value
            for name, value in values.items()
            if name in PARAMETERS and value is not None and at_ns >= self._since.get(name, 0)
        }
        self._since.update(dict.fromkeys(newer, at_ns))
        self._values.update(newer)
        if not self._answered or (at_ns and not newer):
            return
        self._promise(at_ns or time.time_ns())
        for arm in filter(None, self._values.get("arms", ())):
            self._listen_to(arm)

    def _describe(self, message: String) -> None:
        """Which joints turn without end."""
        joints = re.findall(r"<joint\b[^>]*>", message.data)
        endless = [one for one in joints if re.search(r"""\btype\s*=\s*["']continuous["']""", one)]
        names = (re.search(r"""\bname\s*=\s*["']([^"']+)["']""", one) for one in endless)
        self._endless = [name.group(1) for name in names if name]
        if self._answered:
            self._promise(time.time_ns())

    def _promise(self, at_ns: int) -> None:
        named = [*self._values.get("continuous_joints", ()), *self._endless]
        with self._lock:
            self.judge.limits({**self._values, "continuous_joints": named}, at_ns)

    def _listen_to(self, arm: str) -> None:
        """To its outputs."""
        if arm not in self._arms:
            self._arms.add(arm)
            for topic, kind in OF_ARMS.items():
                self._listen(kind, arm + topic, qos.ACTION)
