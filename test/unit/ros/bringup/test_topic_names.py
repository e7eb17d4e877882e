"""Remappings: of names that nodes have, in every spelling, and of none other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vla_ros.cli.main import main
from vla_ros.core.errors import UserError
from vla_ros.ros.common.topic_names import check_remapped

ROOT = Path(__file__).resolve().parents[4]
KNOWN = (
    "image", "/image", "wrist_image", "left_image", "image/compressed", "image/ffmpeg",
    "left_image/foxglove", "joint_states", "left_joint_states", "left_measured_pose", "/tf",
    "~/twist", "~/left_twist", "policy/action", "/policy/action", "/arm/policy/takeover/left_twist",
    "~/takeover/left_gripper", "~/hand_cmd", "bridge/episode", "/arm/image", "~/get_state",
    "policy/get_parameters", "monitor/report",
)  # fmt: skip
UNKNOWN = {
    "imgae": "did you mean 'image'?",
    "camera": "",
    "twist": "did you mean '~/twist'?",
    "~/twsit": "did you mean '~/twist'?",
    "/joint_state": "did you mean 'joint_states'?",
    "policy/actoin": "",
    "instructions": "did you mean 'instruction'?",
    "image/compresed": "did you mean 'image/compressed'?",
}


def test_names_that_nodes_have():
    for name in KNOWN:
        check_remapped(name, "-r")
    check_remapped("eye", "-r", ["eye"])
    check_remapped("eye/compressed", "-r", ["eye"])


@pytest.mark.parametrize("name", UNKNOWN)
def test_names_that_none_has_with_the_nearest(name):
    with pytest.raises(
        UserError, match=re.escape(f"-r x: no node here has a topic or service {name!r}")
    ) as caught:
        check_remapped(name, "-r x")
    assert UNKNOWN[name] in str(caught.value)


def test_every_topic_and_service_of_the_reference_can_be_renamed():
    text = (ROOT / "docs" / "reference" / "topics.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| (?:topic|service|action) \|.*\n(?:\|.*\n)+", text, re.M)
    rows = re.findall(r"^\| (`[^|]*)\|", "".join(tables), re.M)
    names = {name for row in rows for name in re.findall(r"`([~/a-z_]+)`", row)}
    assert {"image", "~/twist", "~/stop", "~/execute_instruction"} <= names
    for name in names - {"camera_roles"}:
        check_remapped(name, "-r")


@pytest.mark.parametrize(
    "words", [["-r", "imgae=/camera/image"], ["-r", "policy:imgae:=/camera/image"]]
)
def test_up_refuses_it_before_anything_starts(capsys, words):
    assert main(["up", "policy", *words]) == 2
    error = capsys.readouterr().err
    assert "no node here has a topic or service 'imgae': did you mean 'image'?" in error
    assert error.count("\n") == 1


def test_a_graph_file_names_the_line(tmp_path, capsys):
    graph = tmp_path / "my.up.yaml"
    graph.write_text(
        "nodes:\n  policy:\n    parameter_files: [policy.yaml]\n    lifecycle: true\n"
        "    remappings:\n      imgae: /camera/image\n"
    )
    assert main(["up", str(graph)]) == 2
    assert f"{graph}, line 6: no node here has a topic" in capsys.readouterr().err
    graph.write_text(graph.read_text().replace("imgae", "eye").replace(
        "lifecycle: true", "parameters: {cameras.main.topic: eye}"))  # fmt: skip
    assert main(["up", str(graph), "--list"]) == 0
