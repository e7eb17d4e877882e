"""Rosetta's contract as parameters of the policy node: read, refused by line, and made of ours."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.contracts import JOINTS, joints, so_101
from vla_ros.cli import main
from vla_ros.core.errors import UserError
from vla_ros.core.resources import config_path, share
from vla_ros.ros.bringup.contract import read_contract, robot_parameters, write_contract

#: Those that a contract has words for: one arm that is commanded in joints, in degrees.
ROBOTS = [share() / "config" / "robots" / "so101.yaml"]


def written(folder: Path, content: Any) -> Path:
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def test_cameras_joints_units_rate_and_topics(tmp_path: Path) -> None:
    contract = read_contract(written(tmp_path, so_101()))
    said = contract.parameters
    assert contract.robot == "so_101"
    rates = ("action_rate_hz", "control_rate_hz", "camera_rate_hz")
    assert [said[name] for name in rates] == [30.0] * 3
    assert said["camera_map"] == "right=main top=top wrist.right=wrist"
    assert said["camera_roles"] == ["top"]
    assert said["cameras.main.topic"] == "/front_camera/image_raw"
    assert said["cameras.wrist.topic"] == "/wrist_camera/image_raw"
    assert {said[f"cameras.{r}.transport"] for r in ("main", "top", "wrist")} == {"compressed"}
    assert said["cameras.top.reliability"] == "best_effort"
    assert said["joint_names"] == said["action_names"] == list(JOINTS)
    assert said["state_units"] == said["action_units"] == ["deg"] * 6
    assert said["action_space"] == "joint_position"
    assert (said["outputs"], said["stale_action"]) == (["joint_state"], "hold")
    assert said["bounds_low"] == pytest.approx([-math.pi] * 6)
    assert contract.remappings == {
        "joint_states": "/follower_arm/joint_states",
        "~/joint_commands": "/leader_arm/joint_states",
        "instruction": "/task_prompt",
    }


def put(*way: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        *before, last = way
        at: Any = content
        for step in before:
            at = at[step]
        at[last] = value

    return change


STATE = ("observations", "observation.state")
ACTION = ("actions", "action")
REFUSED = [
    (put("robot_interface", value="ros1"), "robot_interface:", "must be ros2"),
    (put("fps", value=0), "fps:", "1 to 500 times a second"),
    (put("name", value="x"), "name:", "a contract has no 'name'"),
    (put("observations", "observation.imu", value=joints("/imu")), "observation.imu:", "cannot be"),
    (put(*STATE, "align", "timeline", value="receive"), "timeline: receive", "by its header"),
    (put(*STATE, "select", 2, value="velocity.elbow"), "- velocity.elbow", "only positions"),
    (put(*STATE, "channel", "decoder", value="a:b"), "decoder:", "names code, and none is"),
    (put(*STATE, "apply", value=["mine"]), "- mine", "applies mine, which cannot be followed"),
    (put(*STATE, "kind", value="quaternion"), "kind:", "joints are continuous"),
    (put(*ACTION, "channel", "safety", value="zeros"), "safety:", "zero is a place to go to"),
    (put(*ACTION, "channel", "type", value="geometry_msgs/msg/TwistStamped"), "TwistStamped",
     "joints are commanded by"),
    (put("actions", "action.base", value=joints("/base")), "action.base:", "has one action"),
    (put("actions", "action", value=[joints("/a"), joints("/b")]), None, "/b beside /a"),
    (put("observations", "observation.images.top", "channel", "topic", value="/top"),
     "topic: /top\n", "TOPIC/compressed, not /top"),
    (put("observations", "observation.images.top", "apply", value=[{"crop": [1, 2]}]), "- crop:",
     "can be resized, once, and nothing else"),
    (put("observations", "observation.images.top", "apply", value=[{"resize": [1, 2, 3]}]), None,
     "give height and width, such as [480, 640]"),
    (put("observations", "observation.images.top", "apply", value=["resize"]), "- resize",
     "resize is None"),
    (put("observations", "observation.images.top", "apply", value=[{"resize": [1, 2]}] * 2), None,
     "once, and nothing else"),
    (put("observations", "observation.images.top", "channel", "qos", value={"deph": 1}), "deph: 1",
     "has 'deph', which cannot be followed"),
    (put(*STATE, "align", "strategy", value="holt"), "strategy: holt", "none of hold, asof, drop"),
    (put("tasks", "task", "channel", "type", value="std_msgs/msg/Bool"), "std_msgs/msg/Bool",
     "not std_msgs/msg/String"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "line", "why"), REFUSED)
def test_what_cannot_be_followed_is_refused_with_its_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], line: str | None, why: str
) -> None:
    content = copy.deepcopy(so_101())  # its parts share nothing
    content = yaml.safe_load(yaml.dump(content, Dumper=_Whole))
    change(content)
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.dump(content, Dumper=_Whole, sort_keys=False), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_contract(path)
    said = str(caught.value)
    assert why in said
    assert "\n" not in said
    if line is not None:
        text = path.read_text(encoding="utf-8")
        lines = [n for n, one in enumerate(text.splitlines(True), 1) if line in one]
        assert any(said.startswith(f"{path}, line {n}: ") for n in lines), said


class _Whole(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def test_what_is_no_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("robot_type: a\nfps: [\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"bad.yaml, line 3: not YAML"):
        read_contract(path)


@pytest.mark.parametrize("robot", ROBOTS, ids=[path.stem for path in ROBOTS])
def test_our_robots_as_contracts_and_back(tmp_path: Path, robot: Path) -> None:
    parameters = robot_parameters(robot)
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    write_contract(parameters, robot.stem, first)
    again = read_contract(first).parameters
    assert {name: again[name] for name in parameters} == parameters
    write_contract(again, robot.stem, second)
    assert read_contract(second).parameters == again
    plain = yaml.safe_load(first.read_text(encoding="utf-8"))
    assert plain["actions"]["action"][0]["apply"] == ["rad2deg"]
    assert "joint_names" not in plain["x-vla_ros"], "the contract itself says it"


@pytest.mark.parametrize(
    ("given", "fps", "own"),
    [
        # A robot that is commanded faster than its data was recorded.
        ({"action_rate_hz": 30.0, "control_rate_hz": 120.0}, 30, {"control_rate_hz": 120.0}),
        # Its file leaves the data's rate to the checkpoint: the contract's fps is no claim.
        ({"control_rate_hz": 100.0}, 100, {"action_rate_hz": 0.0}),
        ({"action_rate_hz": 12.5, "control_rate_hz": 50.0}, 12,
         {"action_rate_hz": 12.5, "control_rate_hz": 50.0}),
    ],
)  # fmt: skip
def test_a_contracts_fps_is_the_rate_of_the_data(
    tmp_path: Path, given: dict[str, float], fps: int, own: dict[str, float]
) -> None:
    parameters = robot_parameters(ROBOTS[0])
    parameters = {n: v for n, v in parameters.items() if not n.endswith("_rate_hz")} | given
    path = tmp_path / "robot.yaml"
    write_contract(parameters, "so101", path)
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert plain["fps"] == fps
    assert {n: v for n, v in plain["x-vla_ros"].items() if n in ("action_rate_hz",
            "control_rate_hz")} == own  # fmt: skip
    again = read_contract(path).parameters
    assert {name: again[name] for name in parameters} == parameters
    assert again["action_rate_hz"] == given.get("action_rate_hz", 0.0)


def test_the_verb_turns_either_into_the_other(tmp_path: Path, capsys: Any) -> None:
    made = tmp_path / "so101_contract.yaml"
    robot = config_path("robots/so101.yaml")
    assert main.main(["contract", str(robot), "--out", str(made)]) == 0
    assert main.main(["contract", str(made)]) == 0
    said = yaml.safe_load(capsys.readouterr().out.split("\n", 1)[1])
    told = said["/**/policy"]["ros__parameters"]
    assert told["bounds_high"] == robot_parameters(robot)["bounds_high"]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("/**:\n  ros__parameters: {policy: zero}\n", encoding="utf-8")
    assert main.main(["contract", str(wrong)]) == 2
    assert "a contract describes joints" in capsys.readouterr().err


def test_the_topics_of_a_robot_file_are_the_contracts(tmp_path: Path, capsys: Any) -> None:
    robot = tmp_path / "robot.yaml"
    shipped = config_path("robots/so101.yaml").read_text(encoding="utf-8")
    text = shipped.partition("\nremappings:")[0]
    topics = {"joint_states": "/follower/joint_states", "instruction": "/task"}
    more = yaml.safe_dump({"remappings": {"ros__parameters": topics}})
    robot.write_text(f"{text}\n{more}", encoding="utf-8")
    made = tmp_path / "contract.yaml"
    assert main.main(["contract", str(robot), "--out", str(made)]) == 0
    assert topics.items() <= read_contract(made).remappings.items()
    robot.write_text(robot.read_text(encoding="utf-8").replace("instruction:", "tf:"))
    assert main.main(["contract", str(robot)]) == 2
    assert "a contract has no word for the topic tf" in capsys.readouterr().err


def test_a_given_parameter_wins_over_the_contract(tmp_path: Path, capsys: Any) -> None:
    path = written(tmp_path, so_101())
    words = ["up", "policy", "--contract", str(path), "--list", "-p", "policy.control_rate_hz=15"]
    assert main.main(words) == 0
    said = capsys.readouterr().out
    assert "control_rate_hz: 15.0" in said
    assert "camera_rate_hz: 30.0" in said
    assert "instruction -> /task_prompt" in said


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"max_age": 0.3}, "line [0-9]+: .* 'max_age': did you mean 'max_age_s'"),
        ({"limits": {"max_age_s": 0.3}}, "'limits.max_age_s': did you mean 'max_age_s'"),
        ({"velocity_limits": 1.0}, "velocity_limits: must be a list"),
        ({"max_age_s": "old"}, "max_age_s: must be a number"),
        ({"cameras": {"side": {"topic": "x"}}}, "'cameras.side.topic'"),
    ],
)  # fmt: skip
def test_what_the_policy_node_does_not_have_is_refused(
    tmp_path: Path, own: dict[str, Any], says: str
) -> None:
    content = yaml.safe_load(written(tmp_path, so_101()).read_text(encoding="utf-8"))
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**content, "x-vla_ros": own}), encoding="utf-8")
    with pytest.raises(UserError, match=says):
        read_contract(path)


def test_images_are_brought_to_the_size_that_rosetta_recorded_them_in(tmp_path: Path) -> None:
    content = copy.deepcopy(so_101())
    wrist = content["observations"]["observation.images.wrist.right"]
    wrist["apply"] = [{"resize": [240, 320]}]
    del content["observations"]["observation.images.top"]["apply"]
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.dump(content), encoding="utf-8")
    parameters = read_contract(path).parameters
    assert parameters["image_resize"] == ["main=512x512", "wrist=240x320"]


def test_video_of_a_contract_is_a_transport(tmp_path: Path) -> None:
    content = copy.deepcopy(so_101())
    channel = content["observations"]["observation.images.top"]["channel"]
    channel |= {"topic": "/top/ffmpeg", "type": "ffmpeg_image_transport_msgs/msg/FFMPEGPacket"}
    path = tmp_path / "contract.yaml"
    path.write_text(yaml.dump(content), encoding="utf-8")
    found = read_contract(path).parameters
    assert (found["cameras.top.topic"], found["cameras.top.transport"]) == ("/top", "ffmpeg")
    write_contract(found, "so_101", tmp_path / "again.yaml")
    again = read_contract(tmp_path / "again.yaml").parameters
    assert {name: again[name] for name in found} == found
