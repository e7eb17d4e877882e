"""Programs, servers and paths are named by who starts a process: not by a bag, a contract or a
call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

pytest.importorskip("rcl_interfaces", reason="ROS 2 is not installed")

from vla_ros.cli.main import make_parser
from vla_ros.core.errors import UserError
from vla_ros.policies.trust import VARIABLE, Untrusted, refuse_named
from vla_ros.ros.bringup.contract import read_contract
from vla_ros.ros.nodes.policy.parameters import TABLE
from vla_ros.ros.nodes.replay.prepare import graph_of


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The only folder below which others may name paths, with a checkpoint in it."""
    folder = tmp_path / "models"
    (folder / "mine").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def named(root: Path) -> dict[str, dict]:
    """Parameters that nobody but the operator may give, by what they name."""
    outside = str(root.parent / "outside")
    return {
        "a program": {"worker_python": "/bin/sh"},
        "a plug-in": {"policy": "magic"},
        "a server": {"policy": "remote", "checkpoint": "ws://evil.example:8000"},
        "a server of GR00T's": {"policy": "remote", "checkpoint": "tcp://evil.example:5555"},
        "a folder": {"policy": "vla", "checkpoint": outside},
        "a folder and its sums": {"policy": "vla", "checkpoint": f"{outside}#/sums"},
        "a way out": {"policy": "vla", "checkpoint": f"{root}/mine/../../outside"},
        "a link's end": {"policy": "vla", "checkpoint": f"{root}/link"},
        "the hub": {"policy": "vla", "checkpoint": "evil/policy@" + "0" * 40},
        "the hub, whatever it has now": {"policy": "vla", "checkpoint": "evil/policy"},
        "what is not there": {"policy": "vla", "checkpoint": "nowhere"},
        "a file to replay": {"replay_file": "/etc/passwd"},
        "requests": {"replay_requests_file": f"{outside}/chunks.json"},
        "an option's file": {"policy_options": ["names=/etc/passwd"]},
        "an option's repository": {"policy_options": ["vlm_model_name=evil/model"]},
        "a tokenizer": {"engine_options": ["seed=1", "tokenizer=evil/words"]},
        "a drafter": {"engine_options": ["draft_checkpoint=evil"]},
        "a file name of two lines": {"replay_file": "a\n/b"},
        "a NUL": {"replay_file": "/a\0b"},
    }


KINDS = list(named(Path("/nowhere")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_recording_names_nothing_by_itself(root, kind):
    recorded = {"policy": "vla", "checkpoint": "shipped:tabletop"} | named(root)[kind]
    args = make_parser("replay")[0].parse_args(["replay", "run1"])
    with pytest.raises(UserError, match=r"run1 names .* only who starts the process may") as caught:
        graph_of(args, "lockstep", recorded, False, 20.0)
    assert "by --checkpoint, --policy or -p" in str(caught.value)


def test_what_the_user_gives_is_taken_beside_a_recording(root):
    recorded = {"policy": "remote", "checkpoint": "ws://evil:1", "worker_python": "/bin/sh"}
    words = ["replay", "run1", "--checkpoint", "ws://mine:8000", "-p", "worker_python="]
    args = make_parser("replay")[0].parse_args(words)
    values = graph_of(args, "lockstep", recorded, False, 20.0).node("policy").parameters
    assert (values["checkpoint"], values["worker_python"] or "") == ("ws://mine:8000", "")


@pytest.mark.parametrize("kind", KINDS)
def test_a_contract_names_nothing(root, tmp_path, kind):
    values = named(root)[kind]
    path = tmp_path / "contract.yaml"
    observed = {
        "channel": {"topic": "/image", "type": "sensor_msgs/msg/Image"},
        "align": {"timeline": "header"},
    }
    moved = {
        "channel": {"topic": "/to", "type": "sensor_msgs/msg/JointState"},
        "align": {"timeline": "header"},
        "select": ["position.one"],
    }
    content = {
        "robot_type": "one", "robot_interface": "ros2", "fps": 20,
        "observations": {"observation.images.top": observed}, "actions": {"action": moved},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content | {"x-vla_ros": {"max_age_s": 0.3}}))
    assert read_contract(path).parameters["max_age_s"] == 0.3
    path.write_text(yaml.safe_dump(content | {"x-vla_ros": values}))
    with pytest.raises(UserError, match=r"contract.yaml, line \d+: a contract names .* by -p"):
        read_contract(path)


def test_what_is_ours_or_was_given_or_lies_below_the_roots_may_be_named(root, monkeypatch):
    mine = str(root / "mine")
    for values in (
        {"policy": "zero", "checkpoint": "", "worker_python": ""},
        {"policy": "vla", "checkpoint": "shipped:tabletop"},
        {"policy": "vla", "checkpoint": "random:small", "engine_options": ["seed=3"]},
        {"policy": "vla", "checkpoint": mine, "engine_options": [f"tokenizer={mine}"]},
        {"policy": "remote", "policy_options": ["names=libero", "timeout_s=0.5"]},
    ):
        refuse_named(values, "it", {}, "at the start")
    started = {
        "policy": "magic", "worker_python": "/opt/python", "checkpoint": "ws://a:1",
        "policy_options": ["names=/etc/names.yaml"], "replay_file": "/data/a.npy",
    }  # fmt: skip
    refuse_named(started, "it", started, "at the start")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("HOME", str(root))
    refuse_named({"policy": "vla", "checkpoint": "~/mine"}, "it", {}, "at the start")
    monkeypatch.chdir(root.parent / "outside")
    refuse_named({"policy": "vla", "checkpoint": "."}, "it", {}, "at the start")
    with pytest.raises(Untrusted, match=f"put its folder into .{VARIABLE}"):
        refuse_named({"checkpoint": os.sep}, "it", {}, "at the start")


def test_every_parameter_that_names_a_file_is_looked_at():
    """A new one whose text says file, folder, path or program has to be known here."""
    words = ("file", "folder", "path of", "Python of", "program")
    naming = {row.name for row in TABLE if any(word in row.text for word in words)}
    known = {"policy", "checkpoint", "worker_python", "replay_file", "replay_requests_file",
             "policy_options", "engine_options"}  # fmt: skip
    assert naming <= known, naming - known
