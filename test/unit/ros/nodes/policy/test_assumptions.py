"""What the policy node takes for granted, read as a robot's owner reads it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.core.assumption import Assumption
from vla_ros.core.types import PolicyInfo
from vla_ros.ros.nodes.policy.assumptions import of_robot
from vla_ros.ros.nodes.policy.needs import needs_of
from vla_ros.ros.nodes.policy.parameters import TABLE, camera_rows
from vla_ros.ros.nodes.policy.rates import settle_rate
from vla_ros.ros.nodes.policy.settings import limits_of

ARM = {"action_space": "joint_position", "action_names": ["a", "b"], "joint_names": ["a", "b"],
       "bounds_low": [-3.0, -3.0], "bounds_high": [3.0, 3.0], "stale_action": "hold",
       "outputs": ["joint_state"], "action_rate_hz": 20.0}  # fmt: skip


def described(remapped: dict[str, str] | None = None, **given: Any) -> dict[str, Assumption]:
    values = {row.name: row.default for row in TABLE} | given
    values |= {row.name: given.get(row.name, row.default) for row in camera_rows(values)}
    limits, info = limits_of(values), PolicyInfo("vla", state_dim=len(given.get("joint_names", ())))
    rate = settle_rate(limits, info, values, False)

    def resolve(topic: str, *, only_expand: bool = False) -> str:
        full = f"/lab/{topic}"
        return full if only_expand else (remapped or {}).get(topic, full)

    rows = of_robot(
        values, info, limits, rate, needs_of(values, info), resolve, lambda _: [], ["/lab/commands"]
    )
    found = {row.what: row for row in rows}
    assert len(found) == len(rows), "a row stands twice"
    assert all(row.default == (row.source == "default") for row in rows)
    return found


def test_of_two_parameters_the_one_that_is_given_is_named() -> None:
    row = described(bounds_low=[-0.01] * 6)["bounds of an action"]
    assert (row.source, row.default) == ("parameter bounds_low", False)
    assert row.value == "x y z -0.01 to 0.05 m, rx ry rz -0.01 to 0.5 rad"
    assert described()["bounds of an action"].default


def test_limits_have_their_units() -> None:
    said = described(**ARM, velocity_limits=[1.0, 1.0], acceleration_limits=[2.0, 3.0])
    assert said["largest speeds"].value == "1 rad/s each"
    assert said["largest accelerations"].value == "a 2 rad/s², b 3 rad/s²"
    assert said["bounds of an action"].source == "parameters bounds_low and bounds_high"
    assert said["when it is older"].value == "hold"


def test_a_remapping_is_one_whatever_its_end_and_a_namespace_is_none() -> None:
    row = described({"joint_states": "/follower/joint_states"}, **ARM)["joint states"]
    assert (row.source, row.default) == ("a remapping", False)
    assert row.value.startswith("/follower/joint_states, ")
    assert described(**ARM)["joint states"].default, "in /lab"


def test_an_output_has_its_topic() -> None:
    assert described(**ARM)["outputs"].value == "joint_state on /lab/commands"


def test_what_changes_images_and_actions_on_their_way_is_a_row() -> None:
    said = described(**{
        "camera_roles": ["left_hand"], "cameras.left_hand.rotate": 180,
        "cameras.main.colors": "bgr", "image_resize": ["512x512"], "action_turn": "z90",
    })  # fmt: skip
    assert said["camera left_hand, rotate"].value == "180"
    assert said["camera main, colors"].source == "parameter cameras.main.colors"
    assert said["size of images"].value == "brought to 512x512 (height x width)"
    assert said["action, turn"].value == "z90"
