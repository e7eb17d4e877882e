"""A machine that is busy while inference is timed, at configure: asked again, not refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState

from support.plugins import offer
from support.policy_client import PolicyRig
from vla_ros.core.types import PolicyState as State

#: its first LOADS workers are slow: a load on the machine that passes
SPIKY = """
import os, time
from pathlib import Path
import numpy as np
from vla_ros.core.types import Inference, PolicyInfo

class Spiky:
    info = PolicyInfo(name="spiky", dtype="float32")
    def __init__(self, spec):
        self._count = Path(os.environ["COUNT"])
        loads = int(self._count.read_text()) + 1
        self._count.write_text(str(loads))
        self._slow = loads <= int(os.environ["LOADS"])
    def reset(self, instruction):
        pass
    def step(self, observation, timeline, clock):
        time.sleep(0.5 if self._slow else 0.0)
        return Inference(
            observation.stamp_ns, np.zeros((1, 7)), timeline.mark("decode", clock.steady_ns())
        )
"""


@pytest.mark.long
@pytest.mark.parametrize(("slow_loads", "configured", "loads"), [(2, True, 3), (9, False, 3)])
def test_too_slow_at_configure_is_measured_again(
    spawn_node, ros, ros_env, tmp_path: Path, slow_loads: int, configured: bool, loads: int
) -> None:
    offer(tmp_path / "site", "spiky", SPIKY, "spiky = spiky:Spiky")
    count = tmp_path / "count"
    count.write_text("0")
    path = os.pathsep.join(filter(None, (str(tmp_path / "site"), ros_env.get("PYTHONPATH"))))
    env = {"PYTHONPATH": path, "COUNT": str(count), "LOADS": str(slow_loads)}
    node = spawn_node("policy", {"policy": "spiky", "max_age_s": 0.3}, extra_env=env)
    rig = PolicyRig(ros, node, ros_env, [])
    request = ChangeState.Request(transition=Transition(label="configure"))  # once
    assert ros.call(ChangeState, "/policy/change_state", request, 60).success is configured
    assert int(count.read_text()) == loads
    assert node.log.count("if the machine was busy, that passes: measuring again") == 2
    if configured:
        assert ros.change_state("/policy", "activate")
        rig.expect(State.WAITING)
    else:
        node.wait_for_log("configure refused: max_age_s 0.3 cannot be met")
