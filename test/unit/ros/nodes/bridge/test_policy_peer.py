"""What the bridge asks the policy, where nothing answers."""

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from rclpy.task import Future
from std_srvs.srv import Trigger

from support.wait import wait_until
from vla_ros.msg import PolicyStatus
from vla_ros.ros.common import qos
from vla_ros.ros.nodes.bridge import node as policy
from vla_ros.ros.nodes.bridge.node import PolicyPeer


def test_a_reset_that_is_not_answered_is_forgotten(ros, monkeypatch):
    """A bridge that runs for weeks beside a policy that hangs must not grow."""
    monkeypatch.setattr(policy, "_RESET_S", 0.2)

    async def never(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        await Future(executor=ros.node.executor)
        return response

    ros.node.create_service(Trigger, "reset", never)
    peer = PolicyPeer(ros.node, "reset", wait=False, rate_hz=20.0)
    wait_until(peer._reset_client.service_is_ready, 10.0, "the service")
    for _ in range(3):
        peer.begin("reach", lambda: False, lambda: None)
    assert len(peer._reset_client._pending_requests) == 0


@pytest.mark.parametrize(("theirs", "warned"), [(100.0, True), (20.0, False), (0.0, False)])
def test_commands_at_another_rate_than_the_world_s_are_warned_of(ros, capfd, theirs, warned):
    """A step of the world that has no command of its own, or loses one, is another displacement."""
    status = ros.publisher(PolicyStatus, "policy/status", qos.LATCHED)
    peer = PolicyPeer(ros.node, "reset", wait=True, rate_hz=20.0)
    told = PolicyStatus(state=PolicyStatus.STATE_RUNNING, control_rate_hz=theirs, instruction="r")
    status.publish(told)
    peer.begin("r", lambda: False, lambda: None)
    text = f"the policy commands at {theirs:g} Hz and the world takes 20 steps a second"
    assert (text in capfd.readouterr().err) is warned
