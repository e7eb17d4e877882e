"""What replay.launch.py makes of its arguments, with stand-ins for launch where it is missing.

The file is the real one, and the command goes through the parser of vla-ros.
"""

from __future__ import annotations

import runpy
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from support.launch_files import own_arguments
from vla_ros.cli.main import make_parser
from vla_ros.cli.replay import check
from vla_ros.core.errors import UserError
from vla_ros.core.resources import share
from vla_ros.ros.nodes.replay.prepare import graph_of

MODULES = (
    "launch", "launch.actions", "launch.event_handlers", "launch.events", "launch.events.process",
    "launch.launch_description_sources", "launch.substitutions", "launch_ros",
    "launch_ros.substitutions",
)  # fmt: skip


class Configuration:
    """launch's: the value that an argument has by now."""

    def __init__(self, name: str) -> None:
        self.name = name

    def perform(self, context: Any) -> str:
        return context.launch_configurations[self.name]


class Launched:
    """replay.launch.py, and the processes and files that it started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stubs = {name: MagicMock() for name in MODULES}
        stubs["launch.substitutions"].LaunchConfiguration = Configuration
        for name, stub in stubs.items():
            monkeypatch.setitem(sys.modules, name, stub)
        self.actions = stubs["launch.actions"]
        self.file = runpy.run_path(str(share() / "launch" / "replay.launch.py"))
        installed = {"entry_points": lambda group: [SimpleNamespace(name="bag")]}
        monkeypatch.setitem(self.file["_refuse_without_ros2_bag"].__globals__, *installed.popitem())

    def play(self, **given: str) -> list[str]:
        """The command of the player, with these arguments and the others' defaults."""
        self.actions.reset_mock()
        self.file["arguments"]()
        declared = {
            call.args[0]: call.kwargs.get("default_value", "")
            for call in self.actions.DeclareLaunchArgument.call_args_list
        }
        values = {**declared, "bag": "run1", **given}
        self.file["play"](SimpleNamespace(launch_configurations=values, environment={}))
        (process,) = self.actions.ExecuteProcess.call_args_list
        return process.kwargs["cmd"]

    def handed_on(self) -> dict[str, str]:
        """What the included policy.launch.py was given."""
        (included,) = self.actions.IncludeLaunchDescription.call_args_list
        return dict(included.kwargs["launch_arguments"])


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    return Launched(monkeypatch)


def parameters(command: list[str]) -> dict[str, Any]:
    """Of the policy node, as `vla-ros replay` understands the command."""
    parser, _ = make_parser("replay")
    args = parser.parse_args(command[1:])
    return dict(graph_of(args, check(args), {}, False, 20.0).node("policy").parameters)


def test_what_is_not_given_is_not_said(launched):
    assert launched.play() == ["vla-ros", "replay", "run1"]


def test_every_parameter_reaches_the_policy_node(launched):
    given = {
        "policy": "vla", "checkpoint": "shipped:tabletop", "decoding": "speculative",
        "device": "cuda:0", "dtype": "bfloat16", "weights": "decoder=int4,head=int8",
        "require_verified": "true", "frame_id": "base", "control_rate_hz": "10", "max_age_s": "0.3",
        "action_rate_hz": "5",
        "replay_file": "rows.npy",
    }  # fmt: skip
    more = (
        "{joint_names: [b, a], engine_options: [gamma=3], unnorm_key: 'grün',"
        " cameras.main.topic: eye}"
    )
    found = parameters(launched.play(**given, parameters=more))
    typed = {"require_verified": True, "control_rate_hz": 10.0, "max_age_s": 0.3}
    typed["action_rate_hz"] = 5.0
    assert {name: found[name] for name in given} == {**given, **typed}
    assert found["joint_names"] == ["b", "a"] and found["engine_options"] == ["gamma=3"]
    assert (found["unnorm_key"], found["cameras.main.topic"]) == ("grün", "eye")


def test_arguments_of_the_report_and_topics_are_handed_on(launched):
    command = launched.play(html="a.html", tolerance="0.1", rate="2", image="/eye")
    args = make_parser("replay")[0].parse_args(command[1:])
    assert (str(args.html), args.tolerance, args.rate) == ("a.html", 0.1, 2.0)
    assert args.remap == ["image=/eye"]


def test_every_argument_of_the_policy_s_file_is_handed_on_or_refused(launched):
    file = launched.file
    known = {name for name, _ in file["OVERRIDES"]} | {*file["PARAMETERS"], "parameters"}
    known |= {*file["TOPICS"][:3]}
    refused = set(file["ROS2BAG_ALONE"])
    assert not known & refused
    assert own_arguments("policy.launch.py") == (known | refused) - {"start_after_s"}
    for name in refused:
        with pytest.raises(RuntimeError, match=f"^{name} is for player:=ros2bag: [^\n]*$"):
            launched.play(**{name: "other"})
        for nothing in ("", file["ROS2BAG_ALONE"][name]):  # as an outer launch file may have it
            assert launched.play(**{name: nothing})[:2] == ["vla-ros", "replay"]


@pytest.mark.parametrize("text", ["{a: [", "3"])
def test_parameters_that_are_no_mapping_are_refused(launched, text):
    with pytest.raises(UserError, match=r"^parameters:=[^\n]*$"):
        launched.play(parameters=text)


def test_ros2_bag_play_has_the_policy_s_arguments_and_no_report(launched):
    command = launched.play(player="ros2bag", weights="int8", dtype="bfloat16")
    assert command[:3] == ["ros2", "bag", "play"]
    handed_on = launched.handed_on()
    assert (handed_on["weights"], handed_on["dtype"]) == ("int8", "bfloat16")
    assert "html" not in handed_on
    for name in ("golden", "save", "tolerance", "html"):
        with pytest.raises(RuntimeError, match=f"^{name} is for player:=vla_ros"):
            launched.play(player="ros2bag", **{name: "1"})
