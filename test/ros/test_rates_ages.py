"""The age of each command is true at both rates: a policy whose numbers encode the stamp of the
observation that they were made from, so that a command tells whose it is without its own account
of that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.plugins import offer
from support.policy_client import PolicyRig
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.msg import ActionCommand
from vla_ros.ros.common.convert import stamp_of

ACTION_HZ = 20.0
ENOUGH = 30  # actions
MAX_AGE_S = 1.0
SOURCE = """
import time

import numpy as np

from vla_ros.core.types import Inference, PolicyInfo


def code(stamp_ns):
    return 0.002 + 0.03 * (stamp_ns // 1000 % 1_000_000) / 1e6


class Knows:
    def __init__(self, spec):
        self.length = int(spec.options["length"])
        self.info = PolicyInfo(name="knows", chunk_length=self.length)

    def reset(self, instruction):
        pass

    def step(self, observation, timeline, clock):
        time.sleep(0.03)  # as inference takes
        rows = np.zeros((self.length, 7))
        rows[:, 0] = code(observation.stamp_ns)
        rows[:, 5] = 0.01 * np.arange(1, self.length + 1)
        done = timeline.mark("decode", clock.steady_ns())
        return Inference(observation.stamp_ns, rows, done)
"""


def code(observed_ns: int) -> float:
    """The displacement of an action made from the observation of that stamp."""
    return 0.002 + 0.03 * (observed_ns // 1000 % 1_000_000) / 1e6


def observed(command: ActionCommand) -> int:
    return stamp_of(command.observation_stamp)


@pytest.fixture
def knowing(spawn_node: Any, ros: Any, ros_env: Any, tmp_path: Any) -> Callable[..., PolicyRig]:
    """A node with the policy that knows."""
    offer(tmp_path, "knows", SOURCE, "knows = knows:Knows")

    def start(control_hz: float, length: int) -> PolicyRig:
        parameters = {
            "policy": "knows", "policy_options": [f"length={length}"], "max_age_s": MAX_AGE_S,
            "action_rate_hz": ACTION_HZ, "control_rate_hz": control_hz,
            "replan_interval": 2 if length > 1 else 0,
        }  # fmt: skip
        path = os.pathsep.join(filter(None, (str(tmp_path), ros_env.get("PYTHONPATH"))))
        node = spawn_node("policy", parameters, extra_env={"PYTHONPATH": path})
        return PolicyRig(ros, node, ros_env, [])

    return start


@pytest.mark.timing
@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("control_hz", [20.0, 100.0])
def test_each_command_is_of_the_observation_that_it_names_and_as_old_as_that(
    knowing: Callable[..., PolicyRig], control_hz: float, length: int
) -> None:
    part = ACTION_HZ / control_hz
    rig = knowing(control_hz, length)
    rig.bring_up("go")
    shown = set[int]()
    frame = rig.frame

    def noted(**fields: Any) -> Any:
        message = frame(**fields)
        shown.add(stamp_of(message.header.stamp))
        return message

    rig.frame = noted  # type: ignore[method-assign]
    ahead_ns = time.time_ns() - time.monotonic_ns()  # wall time, of the steady clock
    with rig.filming():
        status = rig.expect(State.RUNNING)
        assert (status.action_rate_hz, status.control_rate_hz) == (ACTION_HZ, control_hz)
        wait_until(lambda: len(rig.commands) > ENOUGH / part, 60.0, "enough commands")
    both = list(zip(list(rig.commands.messages), list(rig.commands.times), strict=False))
    acted = [(m, at) for m, at in both if m.kind == CommandKind.POLICY]
    late_ms = []
    for command, arrived_ns in acted:
        assert observed(command) in shown
        age_s = (stamp_of(command.header.stamp) - observed(command)) / 1e9
        assert 0.03 < age_s <= MAX_AGE_S
        assert command.stages.total_s == pytest.approx(age_s, abs=1e-4)
        late_ms.append((arrived_ns + ahead_ns - observed(command)) / MS - age_s * 1e3)
        due_s = (command.chunk_index + command.action_phase) / ACTION_HZ
        assert command.staleness_s == pytest.approx(age_s - due_s, abs=1e-6)
        assert stamp_of(command.valid_until) == observed(command) + round(MAX_AGE_S * SECOND)
    assert min(late_ms) > -1.0, "nobody hears a command before it was published"
    judge("age on arrival beside the one stated", np.median(late_ms), quiet=3.0, loaded=60.0,
          unit="ms")  # fmt: skip
    whole, alone = 0, False
    for action, group in groupby((m for m, _ in acted), lambda m: (observed(m), m.chunk_index)):
        commands = list(group)
        phases = [m.action_phase for m in commands]
        steps = np.array(phases) / part
        assert np.allclose(steps, np.round(steps), atol=1e-6) and phases == sorted(set(phases))
        before, alone = alone, list(np.round(steps)) == list(range(round(1 / part)))
        if not (before and alone):  # a late tick made up for some of them, or it began or ended
            continue
        moved = np.sum([m.action for m in commands], axis=0)
        assert moved[0] == pytest.approx(code(action[0]), abs=1e-9)
        assert moved[5] == pytest.approx(0.01 * (action[1] + 1), abs=1e-9)
        whole += 1
    judge("actions without all of their commands", ENOUGH - whole, quiet=4, loaded=20, unit="")
