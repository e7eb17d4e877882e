"""Shadow mode of the policy node: ~/shadow/action beside what a person does, the difference on
~/shadow/difference.

The person's commands are on ``shadow_topic``, of whatever type drives the robot; without one the
measured movement counts, where it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from geometry_msgs.msg import TwistStamped
from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.clock import Clock
from vla_ros.core.pixels import BadMessage
from vla_ros.core.types import Command, CommandKind, Floats
from vla_ros.msg import ActionCommand
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import set_time
from vla_ros.ros.common.listening import listen
from vla_ros.ros.common.spin import every
from vla_ros.ros.nodes.policy.inputs import joints_of
from vla_ros.ros.nodes.policy.needs import gripper_ends_of
from vla_ros.ros.nodes.policy.takeover import numbers_of, velocity_of
from vla_ros.runtime.control.control import Control
from vla_ros.runtime.shadow import ShadowComparison

_LOOK_S = 0.5  # between two looks for the type of the person's topic

Read = Callable[[Any], Floats]


def compared_with(values: Mapping[str, Any], space: ActionSpace) -> str:
    """What the shadow's commands are compared with, in words; "": nothing."""
    if values["shadow_topic"]:
        return str(values["shadow_topic"])
    measured = space.kind is not ActionKind.END_EFFECTOR_DELTA
    return "the measured movement, which is behind any command by the servo's lag" * measured


class Shadow:
    """Comparison of the shadow's commands with what a person does, from construction until
    :meth:`close`."""

    def __init__(
        self, node: LifecycleNode, values: Mapping[str, Any], clock: Clock, control: Control
    ) -> None:
        self._node, self._clock, self._control = node, clock, control
        space = self._space = control.loop.limits.space
        self._topic, self._frame_id = values["shadow_topic"], values["frame_id"]
        self._ends = gripper_ends_of(values, space)
        self._measured = not self._topic and bool(compared_with(values, space))
        self._differences = ShadowComparison(
            space, control.loop.limits.takeover_timeout_s, self._measured
        )
        self._publisher = node.create_publisher(JointState, "~/shadow/difference", qos.ACTION)
        self._message = JointState(name=list(space.names))
        self._subscription: Any = None
        self._look = every(node, _LOOK_S, self._find) if self._topic else None

    def close(self) -> None:
        """Leave the graph."""
        if self._look is not None:
            self._node.destroy_timer(self._look)
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
        self._node.destroy_publisher(self._publisher)

    @property
    def line(self) -> str:
        """How far the policy is from the person, for the status. Under the loop's lock."""
        if found := self._differences.line(self._clock.steady_ns()):
            return f"differs from the person by {found} on average"
        if self._topic:
            heard = "no command came" if self._subscription is not None else "nobody publishes"
            return f"{heard} on {self._topic}"
        return "" if self._measured else "compared with nothing: shadow_topic names the person's"

    def command(self, command: Command) -> None:
        """Compare a command of the policy, and publish the difference. Under the loop's lock."""
        if command.kind is not CommandKind.POLICY:
            return
        steady_ns = self._clock.steady_ns()
        if self._measured:
            self._measure(steady_ns)
        away = self._differences.compare(command.action, steady_ns)
        if away is not None:
            set_time(self._message.header.stamp, command.published_ns)
            self._message.position = away.tolist()
            self._publisher.publish(self._message)

    def _measure(self, steady_ns: int) -> None:
        loop, now = self._control.loop, self._control.moment()
        here = loop.fresh_pose(now)
        if here is not None:
            grippers = list(self._space.grippers)
            here[grippers] = loop.measured.openings(now, loop.limits.max_age_ns)
            self._differences.given(here, steady_ns, positions=True)

    # The person's topic

    def _find(self) -> None:
        """Listen to the person's topic as soon as somebody publishes it."""
        full = self._node.resolve_topic_name(self._topic)
        if self._subscription is not None or not self._node.count_publishers(full):
            return
        kinds = dict(self._node.get_topic_names_and_types()).get(full, [])
        for kind, (read, positions) in self._readers().items():
            if f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}" in kinds:
                self._subscription = listen(
                    self._node, kind, full, partial(self._take, read, positions), qos.EVENT_SUB,
                    refuse=self._refuse,
                )  # fmt: skip
                return
        given = self._space.kind.name.lower()
        known = ", ".join(kind.__name__ for kind in self._readers())
        self._refuse(f"it is a {' and a '.join(kinds) or 'nothing yet'}; commands of"
                     f" {given} are read of {known}")  # fmt: skip

    def _readers(self) -> dict[Any, tuple[Read, bool]]:
        """Message type -> its reader, and whether it has positions, for this action space."""
        own: dict[Any, tuple[Read, bool]] = {
            ActionCommand: (lambda message: numbers_of(message, self._space), False)
        }
        if self._space.kind.joints:
            own |= {
                JointState: (self._joints, True),
                JointTrajectory: (self._trajectory, True),
                Float64MultiArray: (self._array, True),
            }
        elif self._space.kind is ActionKind.END_EFFECTOR_DELTA and len(self._space.motion) == 6:
            own[TwistStamped] = (self._twist, False)
        return own

    def _take(self, read: Read, positions: bool, message: Any) -> None:
        try:
            values = read(message)
        except BadMessage as error:
            self._refuse(str(error))
            return
        with self._control.lock:
            self._differences.given(values, self._clock.steady_ns(), positions=positions)

    def _refuse(self, why: str) -> None:
        with self._control.lock:
            self._control.loop.sink.warn("shadow", f"{self._topic} is not compared: {why}")

    def _twist(self, message: TwistStamped) -> Floats:
        values = np.full(self._space.width, np.nan)
        velocity = velocity_of(message, self._frame_id)
        values[list(self._space.motion)] = velocity * self._control.loop.limits.period_s
        return values

    def _joints(self, message: JointState) -> Floats:
        return self._named(*joints_of(message, frozenset(self._space.names)))

    def _trajectory(self, message: JointTrajectory) -> Floats:
        """The first of its points: where it goes now."""
        if not message.points:
            raise BadMessage("a trajectory without points")
        positions = message.points[0].positions
        return self._joints(JointState(name=message.joint_names, position=positions))

    def _array(self, message: Float64MultiArray) -> Floats:
        space, count = self._space, len(message.data)
        at = {space.width: range(space.width), len(space.motion): space.motion}.get(count)
        if at is None:
            raise BadMessage(f"it has {count} numbers, for the joints {' '.join(space.names)}")
        names = [space.names[i] for i in at]
        return self._joints(JointState(name=names, position=message.data))

    def _named(self, names: tuple[str, ...], positions: Floats) -> Floats:
        values = np.full(self._space.width, np.nan)
        for name, position in zip(names, positions, strict=True):
            if name in self._space.names:
                closed, opened = self._ends.get(name, (0.0, 1.0))
                values[self._space.names.index(name)] = (position - closed) / (opened - closed)
        if np.isnan(values).all():
            raise BadMessage(f"it has none of the joints {' '.join(self._space.names)}")
        return values
