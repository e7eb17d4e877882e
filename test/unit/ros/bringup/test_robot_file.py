"""Robot files: their parameters and topics as `vla-ros up` gives them to its nodes; refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from vla_ros.core.errors import UserError
from vla_ros.ros.bringup.graph_file import GraphSpec
from vla_ros.ros.bringup.robot_file import find_robot, read_robot, shipped_robots

ROBOT = """\
# An arm.
/**/policy:
  ros__parameters:
    cameras.main.topic: /front/image_raw   # the driver's
    action_space: joint_position
    joint_names: [shoulder, elbow]
    bounds_low: [-1.0, -1.0]
    bounds_high: [1.0, 1.0]
remappings:
  ros__parameters:
    joint_states: /follower/joint_states
    ~/joint_trajectory: /arm_controller/joint_trajectory
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "robot.yaml"
    path.write_text(ROBOT)
    return path


def test_a_robot_file_is_the_policys_graph_with_its_parameters_and_topics(file: Path) -> None:
    spec = GraphSpec.load(file)
    policy, monitor = spec.node("policy"), spec.node("monitor")
    assert spec.source == str(file)
    assert policy.values()["joint_names"] == ["shoulder", "elbow"]
    assert policy.values()["cameras.main.topic"] == "/front/image_raw"
    assert policy.values()["max_age_s"] == 0.5, "config/policy.yaml comes first"
    for node in (policy, monitor):
        assert node.remappings == {
            "joint_states": "/follower/joint_states",
            "~/joint_trajectory": "/arm_controller/joint_trajectory",
        }
    assert file not in monitor.parameter_files, "it has nothing for the monitor"


def test_what_is_given_outside_wins_over_a_robot_file(file: Path) -> None:
    spec = GraphSpec.load(
        file, {"policy": {"joint_names": ["a", "b"]}}, remappings=["joint_states=/mine"]
    )
    assert spec.node("policy").values()["joint_names"] == ["a", "b"]
    assert spec.node("policy").remappings["joint_states"] == "/mine"


def test_a_part_for_the_monitor_reaches_the_monitor(file: Path) -> None:
    file.write_text(f"{ROBOT}monitor:\n  ros__parameters:\n    window_s: 3.0\n")
    assert GraphSpec.load(file).node("monitor").values()["window_s"] == 3.0


def test_topics_of_arms_in_namespaces_are_known(file: Path) -> None:
    text = ROBOT.replace("    action_space", "    arms: [left/, right/]\n    action_space")
    text += "    left/joint_states: /left/joint_states\n    ~/right/joint_trajectory: /right/jt\n"
    file.write_text(text)
    found = GraphSpec.load(file).node("policy").remappings
    assert found["left/joint_states"] == "/left/joint_states"
    assert found["~/right/joint_trajectory"] == "/right/jt"
    file.write_text(text.replace("    left/joint_states", "    left/joint_state"))
    with pytest.raises(UserError, match="no node here has a topic or service 'left/joint_state'"):
        GraphSpec.load(file)


def test_cameras_beside_main_and_wrist_are_the_robots_own(file: Path) -> None:
    more = "    camera_roles: [left]\n    cameras.left.topic: /left\nremappings:"
    file.write_text(ROBOT.replace("remappings:", more))
    assert GraphSpec.load(file).node("policy").values()["cameras.left.topic"] == "/left"


@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        ("remappings:", "remapings:",
         "{file}, line 9: no node here is called 'remapings': did you mean 'remappings'?"),
        ("  joint_states:", "  joint_state:",
         "{file}, line 11: no node here has a topic or service 'joint_state': did you mean"
         " 'joint_states'?"),
        ("    action_space", "    actions_space",
         "{file}, line 5: node policy has no parameter 'actions_space': did you mean"
         " 'action_space'?"),
        ("/**/policy", "polcy",
         "{file} is neither a graph file, which has nodes, nor a robot file, which has a section of"
         " the node policy: its section is 'polcy': did you mean 'policy'?"),
        ("joint_states: /follower/joint_states", "joint_states: [1]",
         "{file}, line 11: joint_states must be the name of a topic, not [1]"),
        ("    joint_states: /follower", "  joint_states: /follower",
         "{file}, line 9: below remappings must stand ros__parameters, and below it NAME: TOPIC"),
        ("bounds_low: [-1.0, -1.0]", "bounds_low: [-1, -1.0]",
         "{file}, line 7: policy.bounds_low: must be no whole number to ROS: write -1 as -1.0"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_with_its_line(
    file: Path, old: str, new: str, refusal: str
) -> None:
    text = ROBOT.replace(old, new)
    if "below remappings" in refusal:
        text = text.replace("  ros__parameters:\n  joint_states", "  joint_states")
        text = text.replace("    ~/joint_t", "  ~/joint_t")
    file.write_text(text)
    with pytest.raises(UserError) as error:
        GraphSpec.load(file)
    assert str(error.value) == refusal.format(file=file)


def test_a_contract_is_named_as_one(tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    path.write_text("robot_type: so_101\nrobot_interface: ros2\n")
    with pytest.raises(UserError, match=r"is a contract: vla-ros up policy --contract"):
        GraphSpec.load(path)


@pytest.mark.parametrize("robot", sorted(shipped_robots()))
def test_every_shipped_robot_is_read_by_both_doors(robot: str) -> None:
    by_name = find_robot(robot)
    assert find_robot(f"robots/{robot}.yaml") == by_name
    spec = GraphSpec.load(f"robots/{robot}.yaml")
    assert spec.source == str(by_name.path)
    assert spec.node("policy").remappings == by_name.remappings
    assert by_name.parameters().items() <= spec.node("policy").values().items()


def test_a_name_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no robot file 'so100'; there are .*so101|'so101'"):
        find_robot("so100")


def test_a_file_of_a_graph_is_no_robot(tmp_path: Path) -> None:
    path = tmp_path / "my.up.yaml"
    path.write_text("nodes:\n  policy: {}\n")
    with pytest.raises(UserError, match="is no robot file, which has policy"):
        read_robot(path)
