"""ROS's ``qos_overrides.TOPIC.ENTITY.POLICY`` for the publishers and subscriptions of a node.

rclpy declares three parameters for each topic that allows it, a hundred here that nobody sets. So
an entity allows it where a value was given for it, and `ros2 param list` shows those that were.
"""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING, Any

from rclpy.publisher import Publisher
from rclpy.qos import QoSPolicyKind, QoSProfile
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription

from vla_ros.core.names import nearest

_PREFIX = "qos_overrides."
_KINDS = (QoSPolicyKind.HISTORY, QoSPolicyKind.DEPTH, QoSPolicyKind.RELIABILITY)
#: What can be given. Not the durability of a publisher: a command is never for late joiners.
_POLICIES = {"publisher": _KINDS, "subscription": (*_KINDS, QoSPolicyKind.DURABILITY)}
_OWN = "/parameter_events"  # rclpy's, made before there are parameters

if TYPE_CHECKING:
    from rclpy.node import Node as _Base
else:
    _Base = object


class QosOverrides(_Base):
    """Goes before Node in a class's bases: its publishers and subscriptions have the QoS that
    qos_overrides give, each said once in the log. ValueError, one line, where that is none."""

    def create_publisher(
        self, msg_type: Any, topic: str, qos_profile: QoSProfile, *rest: Any, **more: Any
    ) -> Publisher:
        return self._overridden("publisher", super().create_publisher, msg_type, topic,
                                qos_profile, rest, more)  # fmt: skip

    def create_subscription(
        self, msg_type: Any, topic: str, callback: Any, qos_profile: QoSProfile, *rest: Any,
        **more: Any,
    ) -> Subscription:  # fmt: skip
        def create(msg_type: Any, topic: str, profile: QoSProfile, *rest: Any, **more: Any) -> Any:
            return super(QosOverrides, self).create_subscription(
                msg_type, topic, callback, profile, *rest, **more
            )

        return self._overridden("subscription", create, msg_type, topic, qos_profile, rest, more)

    def _overridden(
        self, entity: str, create: Any, msg_type: Any, topic: str, profile: QoSProfile,
        rest: tuple[Any, ...], more: dict[str, Any],
    ) -> Any:  # fmt: skip
        any_given = any(name.startswith(_PREFIX) for name in self._parameter_overrides)
        given: dict[str, QoSPolicyKind] = {}
        if any_given and topic != _OWN and "qos_overriding_options" not in more:
            with contextlib.suppress(RuntimeError):  # no name of a topic: rclpy refuses it below
                given = self._given(self.resolve_topic_name(topic), entity)
        if not given:
            return create(msg_type, topic, profile, *rest, **more)
        options = QoSOverridingOptions(list(given.values()))
        mine = copy.copy(profile)  # rclpy writes into it, and all topics of a kind share one
        try:
            made = create(msg_type, topic, mine, *rest, qos_overriding_options=options, **more)
        except RuntimeError as error:
            raise ValueError(f"{', '.join(given)}: {error}") from None
        values = [f"{name} {self.get_parameter(name).value}" for name in given]
        self.get_logger().info(f"as given: {', '.join(values)}")
        return made

    def _given(self, topic: str, entity: str) -> dict[str, QoSPolicyKind]:
        """Names that were given for an entity, and their policies. ValueError: it has none such."""
        prefix = f"{_PREFIX}{topic}.{entity}."
        used = self.__dict__.setdefault("_qos_entities", set())
        used.add(prefix)
        known = {kind.name.lower(): kind for kind in _POLICIES[entity]}
        found = {}
        for name, value in self._parameter_overrides.items():  # rclpy has no public name for it
            if name.startswith(prefix):
                policy = name.removeprefix(prefix)
                if policy not in known:
                    raise ValueError(f"{name}: of a {entity} here {', '.join(known)} can be given")
                if policy == "depth" and isinstance(value.value, int) and value.value < 1:
                    raise ValueError(f"{name} is {value.value}: depth is at least 1")
                found[name] = known[policy]
        return found


def warn_of_unused(node: QosOverrides) -> None:
    """A warning for each that was given for a topic that the node has not: another node in the same
    file may have it."""
    used = sorted(node.__dict__.get("_qos_entities", ()))
    for name in sorted(node._parameter_overrides):
        if name.startswith(_PREFIX) and not node.has_parameter(name):
            hint = nearest(name.rpartition(".")[0], [one.rstrip(".") for one in used])
            node.get_logger().warning(f"{name}: this node has no such topic{hint}")
