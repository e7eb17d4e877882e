"""The proposal of `vla-ros setup`: sources, doubts, what is left out, and that it is read again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.errors import UserError
from vla_ros.ros.bringup.graph_file import GraphSpec
from vla_ros.ros.bringup.robot_file import RobotFile, find_robot, read_robot, shipped_robots
from vla_ros.ros.bringup.robot_proposal import (
    CheckpointNeeds,
    Proposal,
    Safe,
    flow,
    propose,
    roles_of,
    round_rate,
)
from vla_ros.ros.common.seen_graph import SeenCamera, SeenController, SeenGraph, SeenJoints

URDF = """<robot name="arm">
<joint name="a" type="revolute"><limit lower="-2" upper="2" velocity="3"/></joint>
<joint name="b" type="revolute"><limit lower="-1" upper="1.5" velocity="2"/></joint>
<joint name="gripper" type="revolute"><limit lower="0" upper="0.8" velocity="1"/></joint>
</robot>"""


def camera(topic: str, **fields: object) -> SeenCamera:
    values = {"width": 64, "height": 48, "encoding": "rgb8", "rate_hz": 29.4, **fields}
    return SeenCamera(topic, publishers=("/driver",), **values)  # type: ignore[arg-type]


FRONT, WRIST = camera("/front/image_raw"), camera("/wrist/image_raw", rate_hz=15.2)
STATES = SeenJoints("/joint_states", ("a", "b", "gripper"), 100.0, ("/broadcaster",))
TRAJECTORY = SeenController(
    "/arm/joint_trajectory", "trajectory_msgs/msg/JointTrajectory", ("/arm",), ("b", "a")
)
ARM = SeenGraph((FRONT, WRIST), (STATES,), (TRAJECTORY,), URDF)
ACT = CheckpointNeeds(
    "/models/act", family="act of LeRobot", cameras=("top", "wrist"), state=3, actions=3,
    names=("a.pos", "b.pos", "gripper.pos"), rate_hz=30.0,
)  # fmt: skip


def values_of(made: Proposal) -> dict[str, object]:
    return {name: one.value for name, one in made.parameters.items()}


def test_a_controllers_own_order_is_the_joints_and_limits_are_a_tenth_of_the_urdfs() -> None:
    values = values_of(made := propose(ARM))
    assert values["action_names"] == ["b", "a", "gripper"]
    assert values["bounds_low"] == [-1.0, -2.0]
    assert values["bounds_high"] == [1.5, 2.0]
    assert values["velocity_limits"] == [0.2, 0.3]
    assert values["outputs"] == ["trajectory"]
    assert values["stale_action"] == "hold"
    assert made.remappings["~/joint_trajectory"].value == "/arm/joint_trajectory"
    assert "policy" not in values, "zero is the default"


def test_a_checkpoints_names_and_cameras_win_over_the_graphs_order() -> None:
    values = values_of(made := propose(ARM, ACT))
    assert (values["policy"], values["checkpoint"]) == ("vla", "/models/act")
    assert values["action_names"] == ["a", "b", "gripper"]
    assert values["velocity_limits"] == [0.3, 0.2]
    assert values["camera_map"] == "top=main wrist=wrist"
    assert values["camera_rate_hz"] == 15.0
    assert "action_rate_hz" not in values, "the checkpoint says it"
    assert "action_names" not in made.doubts


def test_what_does_not_fit_a_checkpoint_is_doubtful_and_said() -> None:
    made = propose(ARM, CheckpointNeeds("/models/x", actions=6, state=4))
    assert "6 values" in made.parameters["action_names"].why
    assert "state has 4" in made.parameters["joint_names"].why
    assert {"action_names", "joint_names"} <= set(made.doubts)
    assert "action_rate_hz" in made.missing


def test_seven_values_without_names_are_a_displacement_that_is_doubted() -> None:
    made = propose(SeenGraph((FRONT,)), CheckpointNeeds("/models/x", actions=7))
    assert made.value("action_space") == "end_effector_delta"
    assert {"action_space", "velocity_limits", "frame_id"} <= set(made.doubts)


def test_the_state_of_a_policy_of_displacements_is_joints_or_asked_for() -> None:
    needs = CheckpointNeeds("/models/x", actions=7, state=3)
    made = propose(SeenGraph((FRONT,), (STATES,)), needs)
    assert made.value("joint_names") == ["a", "b", "gripper"]
    assert "joint_names" in made.doubts
    needs = CheckpointNeeds("/models/x", actions=7, state=8)
    assert "8 values" in propose(SeenGraph((FRONT,), (STATES,)), needs).missing["joint_names"]


def test_an_empty_list_of_ros_is_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    path.write_text(
        "policy:\n  ros__parameters:\n    action_space: joint_position\n"
        '    action_names: [a, b]\n    gripper_names: [""]\n    outputs: [""]\n'
    )
    made = propose(ARM, robot=read_robot(path))
    assert "gripper_range" not in {**made.parameters, **made.missing}
    assert made.value("outputs") == ["trajectory"]


def test_torques_are_refused() -> None:
    with pytest.raises(UserError, match="torques"):
        propose(ARM, CheckpointNeeds("/models/x", actions=1, names=("a.effort",)))


@pytest.mark.parametrize(
    ("seen", "name", "why"),
    [
        (SeenGraph((camera("/front", late_s=3.0),)), "cameras.main.topic", "stamps are 3 s old"),
        (SeenGraph((camera("/front", width=0),)), "cameras.main.topic", "no image was read"),
        (SeenGraph((), (SeenJoints("/js", ("a",), 50.0, ("/x", "/y")),)), "joint_states",
         "two publishers, stop one"),
        (SeenGraph((camera("/left"), camera("/right"))), "cameras.main.topic", "raw 64x48"),
        (SeenGraph((), (STATES,)), "action_names", "is it the policy's?"),
    ],
)  # fmt: skip
def test_what_a_person_must_look_at_is_marked(seen: SeenGraph, name: str, why: str) -> None:
    made = propose(seen)
    assert name in made.doubts
    values = {**made.parameters, **made.remappings}
    assert why in values[name].why
    assert f"# ? {values[name].why}" in made.text("A robot.", [])


def test_slow_joint_states_get_room_to_be_paired() -> None:
    seen = SeenGraph((FRONT,), (SeenJoints("/js", ("a",), 10.0, ("/x",)),))
    assert propose(seen).value("pairing_slop_s") == pytest.approx(0.06)


class Person(Safe):
    """Chooses the last option and knows every number."""

    def choose(self, question: str, options: Sequence[str], default: int) -> tuple[int, bool]:
        return len(options) - 1, True

    def numbers(self, question: str, count: int) -> list[float]:
        return [float(i) for i in range(count)]


def test_answers_are_taken_and_no_doubt_is_left() -> None:
    seen = SeenGraph((camera("/left"), camera("/right")), (STATES,), (TRAJECTORY,))
    needs = CheckpointNeeds("/m", actions=3, names=("a", "b", "gripper"),
                            choices={"unnorm_key": ("x", "y"),
                                     "state_in_prompt": ("robot", "padded")})  # fmt: skip
    made = propose(seen, needs, answers=Person())
    assert made.value("cameras.main.topic") == "/right"
    assert made.value("unnorm_key") == "y"
    assert made.value("engine_options") == ["state_in_prompt=padded"]
    assert made.value("bounds_high") == [0.0, 1.0]
    assert made.value("action_rate_hz") == 0.0
    assert not made.missing
    assert "unnorm_key" not in made.doubts


def test_limits_are_the_tighter_ones_of_file_and_description(tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    path.write_text(
        "policy:\n  ros__parameters:\n    action_space: joint_position  # as taught\n"
        "    action_names: [a, b]\n    velocity_limits: [0.1, 0.9]  # ? data sheet\n"
        "    bounds_low: [-9.0, -0.5]\n    bounds_high: [1.0, 9.0]\n"
        "remappings:\n  ros__parameters:\n    joint_states: /other/joint_states  # the driver's\n"
    )
    made = propose(ARM, robot=read_robot(path))
    assert made.value("velocity_limits") == [0.1, 0.2]
    assert made.value("bounds_low") == [-2.0, -0.5]
    assert made.value("bounds_high") == [1.0, 1.5]
    assert made.parameters["action_space"].comment == "as taught"
    assert made.remappings["joint_states"].value == "/joint_states", "the running graph's"
    alone = propose(SeenGraph(), robot=read_robot(path))
    assert alone.parameters["velocity_limits"].comment == "? data sheet"
    assert alone.remappings["joint_states"].comment == "the driver's"


def test_a_topic_of_the_file_that_the_graph_does_not_have_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    path.write_text(
        "policy:\n  ros__parameters:\n    action_space: end_effector_delta\n"
        "    outputs: [twist]\n"
        "remappings:\n  ros__parameters:\n    ~/twist: /servo/cmds\n"
    )
    made = propose(SeenGraph((FRONT,)), robot=read_robot(path))
    assert made.remappings["~/twist"].comment.startswith("? it is not in the running graph")


@pytest.mark.parametrize("robot", sorted(shipped_robots()))
def test_of_every_shipped_robot_a_file_is_made_that_up_reads(robot: str, tmp_path: Path) -> None:
    shipped = find_robot(robot)
    path = tmp_path / "robot.yaml"
    path.write_text(propose(SeenGraph(), robot=shipped).text("A robot.", ["vla-ros up"]))
    again = read_robot(path)
    assert again.parameters() == shipped.parameters()
    assert again.remappings == shipped.remappings
    GraphSpec.load(path)


def test_the_file_is_read_again_as_it_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    made = propose(ARM, ACT)
    path.write_text(made.text("A robot.", []))
    again: RobotFile = read_robot(path)
    assert again.parameters() == values_of(made)
    policy = GraphSpec.load(path).node("policy")
    assert policy.values()["checkpoint"] == "/models/act"


texts = st.text(st.characters(codec="utf-8"), max_size=30)
numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(st.one_of(texts, numbers, st.booleans(), st.integers(-(2**31), 2**31),
                 st.lists(texts, min_size=1), st.lists(numbers, min_size=1)))  # fmt: skip
def test_every_value_is_one_line_that_yaml_reads_back(value: object) -> None:
    line = flow(value)
    assert "\n" not in line
    again = yaml.safe_load(line)
    assert again == value
    assert type(again) is type(value)


@given(texts)
def test_a_strangers_text_stays_in_its_comment(text: str) -> None:
    made = Proposal()
    made.set("checkpoint", "x", text, doubt=True)
    content = yaml.safe_load(made.text(text, []))
    assert content == {"/**/policy": {"ros__parameters": {"checkpoint": "x"}}}


@pytest.mark.parametrize("word", ["y", "n", "on", "off", "true", "null", "~", "1e3", "0..100", ""])
def test_words_that_ros_takes_for_something_else_are_quoted(word: str) -> None:
    assert flow(word).startswith('"')


def test_rates_are_those_that_drivers_are_set_to() -> None:
    assert [round_rate(hz) for hz in (29.4, 14.8, 62.0, 7.3)] == [30.0, 15.0, 60.0, 7.3]
    assert not math.isnan(round_rate(0.0))


def test_a_camera_at_the_hand_is_the_wrists() -> None:
    assert roles_of(["hand", "top"]) == {"wrist": "hand", "main": "top"}
    assert roles_of(["a", "b"]) == {"main": "a", "wrist": "b"}
    assert roles_of(["top", "left.x", "right"]) == {"main": "top", "left_x": "left.x",
                                                     "right": "right"}  # fmt: skip
