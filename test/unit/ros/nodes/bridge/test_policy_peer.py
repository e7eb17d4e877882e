"""What the bridge asks the policy, where nothing answers."""

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from rclpy.task import Future
from std_srvs.srv import Trigger

from support.wait import wait_until
from vla_ros.ros.nodes.bridge import node as policy
from vla_ros.ros.nodes.bridge.node import PolicyPeer


def test_a_reset_that_is_not_answered_is_forgotten(ros, monkeypatch):
    """A bridge that runs for weeks beside a policy that hangs must not grow."""
    monkeypatch.setattr(policy, "_RESET_S", 0.2)

    async def never(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        await Future(executor=ros.node.executor)
        return response

    ros.node.create_service(Trigger, "reset", never)
    peer = PolicyPeer(ros.node, "reset", wait=False)
    wait_until(peer._reset_client.service_is_ready, 10.0, "the service")
    for _ in range(3):
        peer.begin("reach", lambda: False, lambda: None)
    assert len(peer._reset_client._pending_requests) == 0
