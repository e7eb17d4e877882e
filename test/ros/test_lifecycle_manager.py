"""What nav2's lifecycle_manager calls, in its order and with its times, against the real node.

Read from nav2_lifecycle_manager of 2026: each transition by its number, no time for its answer,
then get_state within `service_timeout` (5 s), whose answer must be the state that was asked for.
Its bond is a package of C++ that this node has not: `bond_timeout: 0.0`, see the how-to.
"""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState

from vla_ros.msg import PolicyStatus
from vla_ros.ros.common.qos import LATCHED

SERVICE_TIMEOUT_S = 5.0
REACHED = {
    Transition.TRANSITION_CONFIGURE: State.PRIMARY_STATE_INACTIVE,
    Transition.TRANSITION_ACTIVATE: State.PRIMARY_STATE_ACTIVE,
    Transition.TRANSITION_DEACTIVATE: State.PRIMARY_STATE_INACTIVE,
    Transition.TRANSITION_CLEANUP: State.PRIMARY_STATE_UNCONFIGURED,
    Transition.TRANSITION_UNCONFIGURED_SHUTDOWN: State.PRIMARY_STATE_FINALIZED,
}
STARTUP = (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)
PAUSE, RESUME = (Transition.TRANSITION_DEACTIVATE,), (Transition.TRANSITION_ACTIVATE,)
RESET = (Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP)
SHUTDOWN = (*RESET, Transition.TRANSITION_UNCONFIGURED_SHUTDOWN)


def test_the_lifecycle_manager_s_calls_do_what_it_expects(spawn_node, ros) -> None:
    node = spawn_node("policy", {"policy": "zero"}, namespace="arm")
    status = ros.inbox(PolicyStatus, "/arm/policy/status", LATCHED)
    for command in (STARTUP, PAUSE, RESUME, RESET, STARTUP, SHUTDOWN):
        for number in command:
            request = ChangeState.Request(transition=Transition(id=number))
            assert ros.call(ChangeState, "/arm/policy/change_state", request, 60.0).success
            state = ros.call(
                GetState, "/arm/policy/get_state", GetState.Request(), SERVICE_TIMEOUT_S
            ).current_state
            assert state.id == REACHED[number], state.label
        if command in (STARTUP, RESUME):
            status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING, timeout=10)
    assert node.returncode is None, "it ends by its signal: the manager ends no process"


def test_a_refused_configure_is_no_success_and_leaves_it_to_be_asked_again(spawn_node, ros) -> None:
    spawn_node("policy", {"policy": "vla"})
    request = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))
    for _ in range(2):
        assert not ros.call(ChangeState, "/policy/change_state", request, 60.0).success
        state = ros.call(GetState, "/policy/get_state", GetState.Request(), SERVICE_TIMEOUT_S)
        assert state.current_state.id == State.PRIMARY_STATE_UNCONFIGURED
