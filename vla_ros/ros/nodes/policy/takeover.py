"""Teleoperation topics, by which a person takes over: ~/takeover/action, twist, gripper,
joint_states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from geometry_msgs.msg import TwistStamped
from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64

from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.clock import SECOND, Clock
from vla_ros.core.pixels import BadMessage, quoted
from vla_ros.core.types import Floats
from vla_ros.msg import ActionCommand
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of
from vla_ros.ros.common.listening import listen
from vla_ros.ros.nodes.policy.inputs import joints_of
from vla_ros.runtime.control.control import Control
from vla_ros.runtime.control.takeover import TakeoverNumbers, Teleoperation


class TakeoverInputs:
    """Subscriptions to a person's commands, from construction until :meth:`close`.

    An action of the policy's own space is taken in every space. A twist (of a joystick, a
    SpaceMouse or a keyboard) is for end effectors, a leader arm's joint states are for joints. An
    opening that is commanded of a gripper holds until the person pauses.
    """

    def __init__(self, node: LifecycleNode, clock: Clock, control: Control, frame_id: str) -> None:
        self._node, self._clock, self._control = node, clock, control
        self._frame_id = frame_id
        self._received_ns = 0
        space = control.loop.limits.space
        self._twists: dict[int, tuple[int, Floats]] = {}  # an arm's first index -> stamp, [6]
        self._openings = np.full(space.width, np.nan)
        self._open: list[Any] = []
        self._listen(ActionCommand, "~/takeover/action", self._action)
        for index in space.grippers:
            self._listen(Float64, f"~/takeover/{space.names[index]}", partial(self._gripper, index))
        if space.kind.joints:
            self._listen(JointState, "~/takeover/joint_states", self._joints)
            return
        for first in space.motion[::6]:
            arm = space.names[first].removesuffix("x")
            self._listen(TwistStamped, f"~/takeover/{arm}twist", partial(self._twist, first))

    def close(self) -> None:
        for subscription in self._open:
            self._node.destroy_subscription(subscription)
        self._open.clear()

    def _listen(self, kind: Any, topic: str, read: Callable[[Any], Teleoperation | None]) -> None:
        def refuse(why: str) -> None:
            self._control.loop.sink.warn("takeover", f"takeover command ignored: {why}")

        def callback(message: Any) -> None:
            if self._control.loop.shadow:
                refuse("in the shadow nothing of ours moves the robot; drive it past this node")
                return
            self._forget_after_a_pause()
            try:
                command = read(message)
            except BadMessage as error:
                refuse(f"{topic}: {error}")
                return
            if command is not None:
                self._control.take_over(command)

        self._open.append(listen(self._node, kind, topic, callback, qos.EVENT_SUB, refuse=refuse))

    def _forget_after_a_pause(self) -> None:
        steady_ns = self._clock.steady_ns()
        if steady_ns - self._received_ns > self._control.loop.limits.takeover_timeout_s * SECOND:
            self._openings[:] = np.nan
        self._received_ns = steady_ns

    # Messages

    def _action(self, message: ActionCommand) -> Teleoperation:
        values = numbers_of(message, self._control.loop.limits.space)
        return Teleoperation(values, TakeoverNumbers.ACTION, stamp_of(message.header.stamp))

    def _twist(self, first: int, message: TwistStamped) -> Teleoperation:
        stamp_ns = stamp_of(message.header.stamp)
        self._twists[first] = stamp_ns, velocity_of(message, self._frame_id)
        return self._velocities(stamp_ns)

    def _gripper(self, index: int, message: Float64) -> Teleoperation | None:
        """Opening of a gripper: an arm that is moved goes on moving, and with joints it goes out
        with the next positions."""
        if not 0.0 <= message.data <= 1.0:
            raise BadMessage(
                f"an opening of {message.data:g} is not within 0 (closed) and 1 (open)"
            )
        self._openings[index] = message.data
        if self._control.loop.limits.space.kind.joints:
            return None
        return self._velocities(self._clock.now_ns())

    def _velocities(self, stamp_ns: int) -> Teleoperation:
        """Velocities of all arms: one without a fresh twist stands still."""
        values = self._openings.copy()
        values[list(self._control.loop.limits.space.motion)] = 0.0
        young_ns = self._control.loop.limits.takeover_timeout_s * SECOND
        for first, (twist_ns, velocity) in self._twists.items():
            if abs(stamp_ns - twist_ns) <= young_ns:
                values[first : first + 6] = velocity
        return Teleoperation(values, TakeoverNumbers.VELOCITY, stamp_ns)

    def _joints(self, message: JointState) -> Teleoperation:
        space = self._control.loop.limits.space
        names, positions = joints_of(message, frozenset(space.names))
        values = self._openings.copy()
        for name, position in zip(names, positions, strict=True):
            if name in space.names:
                values[space.names.index(name)] = position
        if missing := [space.names[at] for at in space.motion if np.isnan(values[at])]:
            raise BadMessage(f"it lacks the joints {' '.join(missing)}")
        return Teleoperation(values, TakeoverNumbers.JOINTS, stamp_of(message.header.stamp))


def numbers_of(message: ActionCommand, space: ActionSpace) -> Floats:
    """The numbers of a person's action of this space, float64 [D]. BadMessage: it is of another."""
    if int(message.action_space) != int(space.kind):
        names = {int(kind): kind.name.lower() for kind in ActionKind}
        given = int(message.action_space)
        raise BadMessage(
            f"its action_space is {names.get(given, given)}, this robot's is"
            f" {space.kind.name.lower()}"
        )
    values = np.asarray(message.action, np.float64)
    if (message.names and tuple(message.names) != space.names) or len(values) != space.width:
        raise BadMessage(f"its numbers are not this robot's {' '.join(space.names)}")
    if not np.isfinite(values).all():
        raise BadMessage("it has numbers that are not finite")
    return values


def velocity_of(message: TwistStamped, frame_id: str) -> Floats:
    """The velocity of a twist in ``frame_id``, or in no frame, float64 [6] in m/s and rad/s.
    BadMessage: it is in another, or not finite."""
    frame = message.header.frame_id
    if frame not in ("", frame_id):
        raise BadMessage(f"it is in {quoted(frame)}, actions are in '{frame_id}'")
    linear, angular = message.twist.linear, message.twist.angular
    velocity = np.array([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])
    if not np.isfinite(velocity).all():
        raise BadMessage("it has numbers that are not finite")
    return velocity
