"""The model of the joint_trajectory_controller against what the real one commanded.

``golden/joint_trajectory_controller.npz`` has streams of trajectories, made by hand and by the
policy node, and the positions that ros2_controllers' own controller commanded, compiled over the
Kilted wheels and updated at 500 Hz over mock hardware with position interfaces: kilted (5.17) and
master (6.9 and `positions_upsampling`). ``about`` has versions, streams and parameters,
``commanded`` every fifth cycle of all cases, as differences in 0.1 urad, joint after joint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from builtin_interfaces.msg import Duration
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from support.joint_trajectory_controller import JointTrajectoryController
from vla_ros.core.clock import SECOND
from vla_ros.ros.common.convert import to_time

GOLDEN = Path(__file__).parents[4] / "golden" / "joint_trajectory_controller.npz"
with np.load(GOLDEN) as recorded:
    ABOUT, COMMANDED = json.loads(recorded["about"].tobytes()), recorded["commanded"]
UNIT = ABOUT["unit_rad"]
WHY = {  # what the real controller's log says of the stream of refusals, and the model
    "doesn't match the controller's joints": "joints do not match",
    "don't match the controller joints": "joints do not match",
    "Empty trajectory": "empty trajectory",
    "not strictly increasing": "not strictly increasing",
    "ends in the past": "ends in the past",
    "is not zero": "does not end at rest",
    "and positions (1)": "a point without all positions",
    "and velocities (1)": "a point without all velocities",
}


def as_message(names: list[str], stamp_ns: int, points: list[Any]) -> JointTrajectory:
    message = JointTrajectory(joint_names=names)
    message.header.stamp = to_time(stamp_ns)
    for since_ns, positions, velocities in points:
        since = Duration(sec=since_ns // SECOND, nanosec=since_ns % SECOND)
        message.points.append(
            JointTrajectoryPoint(positions=positions, velocities=velocities, time_from_start=since)
        )
    return message


def model_of(case: dict[str, Any], stream: dict[str, Any]) -> JointTrajectoryController:
    given = case["parameters"]
    return JointTrajectoryController(
        stream["joints"],
        np.array(stream["start"]),
        replacement=case["controller"] == "master"
        and given.get("allow_trajectory_replacement", True),
        from_desired=given.get("interpolate_from_desired_state", False),
        upsampling=given.get("positions_upsampling.enable", False),
        policy_hz=given.get("positions_upsampling.policy_frequency", 0.0),
        period_ns=ABOUT["cycle_ns"],
        lag_s=case["lag_s"],
    )


def driven(model: JointTrajectoryController, stream: dict[str, Any]) -> tuple[Any, list[int]]:
    """Positions commanded in every cycle, and which messages were taken."""
    mail, taken, path = list(stream["msgs"]), [], []
    for now in range(stream["from_ns"], stream["to_ns"] + 1, ABOUT["cycle_ns"]):
        while mail and mail[0][0] <= now:
            at, *what = mail.pop(0)
            taken.append(int(model.receive(as_message(*_named(what)), at)))
        path.append(model.update(now).copy())
    return np.array(path), taken


def _named(what: list[Any]) -> tuple[list[str], int, list[Any]]:
    stamp_ns, names, points = what
    return names, stamp_ns, points


def recorded_answers() -> list[Any]:
    """Cases, with the positions that the real controller commanded, int [n, joints]."""
    out, begin = [], 0
    for case in ABOUT["cases"]:
        stream = ABOUT["streams"][case["stream"]]
        cycles = (stream["to_ns"] - stream["from_ns"]) // ABOUT["cycle_ns"] + 1
        shape = len(stream["joints"]), -(-cycles // ABOUT["every"])
        end = begin + shape[0] * shape[1]
        answer = np.cumsum(COMMANDED[begin:end].reshape(shape), axis=1).T
        begin = end
        out.append(pytest.param(case, answer, id=f"{case['stream']}-{case['controller']}"))
    assert begin == len(COMMANDED)
    return out


@pytest.mark.parametrize(("case", "answer"), recorded_answers())
def test_the_model_commands_what_the_real_controller_commanded(
    case: dict[str, Any], answer: Any
) -> None:
    """To the rounding of the record, 0.1 urad."""
    stream = ABOUT["streams"][case["stream"]]
    path, taken = driven(model_of(case, stream), stream)
    assert taken == case["taken"]
    assert path[:: ABOUT["every"]] == pytest.approx(answer * UNIT, abs=0.6 * UNIT)


def test_the_model_refuses_for_the_reasons_of_the_real_controller() -> None:
    stream, said = ABOUT["streams"]["refusals"], [why for why in ABOUT["refusals"] if why]
    case = next(c for c in ABOUT["cases"] if c["stream"] == "refusals")
    model = model_of(case, stream)
    driven(model, stream)
    assert len(said) == len(model.refused) == len(WHY)
    for real, ours in zip(said, model.refused, strict=True):
        assert next(mine for theirs, mine in WHY.items() if theirs in real) in ours


def test_chunks_with_velocities_are_unchanged_by_positions_upsampling() -> None:
    """The real controller, with and without it."""
    ours = [p.values for p in recorded_answers() if p.values[0]["stream"] == "our chunks"]
    enabled = [x for x in ours if "positions_upsampling.enable" in x[0]["parameters"]]
    without = [x for x in ours if x[0]["controller"] == "master" and len(x[0]["parameters"]) == 1]
    assert len(enabled) == len(without) == 1
    assert (enabled[0][1] == without[0][1]).all()
