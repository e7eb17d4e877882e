"""The layouts of Foxglove, PlotJuggler and rviz that are shipped: every topic and every field that
they name exists in the interfaces of this version."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from rosbags.interfaces import Nodetype

from vla_ros.core.resources import share
from vla_ros.data.bag_writer import typestore
from vla_ros.data.run_info import TOPICS

CHECKOUT = Path(__file__).resolve().parents[4]

CONFIG = share() / "config"
KINDS = {f"/{name.lstrip('/')}": kind.rstrip("*") for name, kind in TOPICS}
KINDS |= {"/rosout": "rcl_interfaces/msg/Log", "/tf": "tf2_msgs/msg/TFMessage"}
SERVICES = {"/policy/stop"}  # docs/reference/topics.md; test_the_services_are_documented
MOST = {"/policy/action.action": 7}  # numbers of the default action space
PICTURES = {"sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"}


def check(topic, fields):
    """AssertionError for a topic or a field that nobody has; the type of what is meant."""
    assert topic in KINDS, f"no topic {topic}"
    kind = KINDS[topic]
    for field in fields:
        name, index = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", field).groups()
        found = dict(typestore().fielddefs[kind][1])
        assert name in found, f"{kind} has no field {name}, only {', '.join(found)}"
        sort, content = found[name]
        if index is not None:
            assert sort in (Nodetype.ARRAY, Nodetype.SEQUENCE), f"{kind}.{name} is no array"
            assert int(index) < MOST.get(f"{topic}.{name}", 0)
            sort, content = content[0]
        assert sort in (Nodetype.BASE, Nodetype.NAME), f"{kind}.{name} is an array"
        kind = content if sort is Nodetype.NAME else content[0]
    return kind


def foxglove():
    return json.loads((CONFIG / "foxglove" / "vla_ros.json").read_text())


def foxglove_paths():
    """(topic, fields) of every message path in the layout."""
    panels = foxglove()["configById"]
    lists = [p["value"] for panel in panels.values() for p in panel.get("paths", ())]
    lists += [panel["topicPath"] for panel in panels.values() if "topicPath" in panel]
    for path in lists:
        topic, *fields = path.split(".")
        yield topic, fields


def plotjuggler_curves():
    tree = ElementTree.parse(CONFIG / "plotjuggler" / "vla_ros.xml")
    for curve in tree.iter("curve"):
        name = curve.get("name")
        topic = max((t for t in KINDS if name.startswith(f"{t}/")), key=len, default=name)
        yield topic, name[len(topic) + 1 :].split("/")


def test_foxglove_plots_only_what_there_is():
    found = list(foxglove_paths())
    assert len(found) > 15
    for topic, fields in found:
        assert fields and check(topic, fields) in NUMBERS | {"string"}


NUMBERS = {"float64", "float32", "uint8", "uint16", "uint32", "uint64", "int32", "int64"}


def test_foxglove_shows_pictures_the_robot_and_says_the_instruction():
    panels = foxglove()["configById"]
    pictures = [p["imageMode"]["imageTopic"] for p in panels.values() if p.get("imageMode")]
    assert pictures == ["/image", "/wrist_image"]
    assert all(KINDS[topic] in PICTURES for topic in pictures)
    assert set(panels["3D!world"]["topics"]) <= set(KINDS)
    say = panels["Publish!say"]
    assert KINDS[say["topicName"]] == say["datatype"] == "std_msgs/msg/String"
    assert set(json.loads(say["value"])) == {"data"}
    assert panels["RosOut!log"]["topicToRender"] in KINDS
    assert panels["CallService!stop"]["serviceName"] in SERVICES


def test_every_panel_of_foxglove_has_its_place():
    layout = foxglove()
    places = []

    def walk(node):
        if isinstance(node, str):
            places.append(node)
        else:
            walk(node["first"])
            walk(node["second"])

    walk(layout["layout"])
    assert sorted(places) == sorted(layout["configById"])


def test_plotjuggler_draws_only_numbers_that_there_are():
    found = list(plotjuggler_curves())
    assert len(found) > 20
    for topic, fields in found:
        assert check(topic, fields) in NUMBERS


def test_rviz_shows_topics_of_the_types_that_its_displays_take():
    takes = {
        "RobotModel": {"std_msgs/msg/String"},
        "Pose": {"geometry_msgs/msg/PoseStamped"},
        "Camera": {"sensor_msgs/msg/Image"},
        "Image": {"sensor_msgs/msg/Image"},
    }
    config = yaml.safe_load((CONFIG / "rviz" / "vla_ros.rviz").read_text())
    seen = set()
    for display in config["Visualization Manager"]["Displays"]:
        kind = display["Class"].removeprefix("rviz_default_plugins/")
        topic = display.get("Topic", display.get("Description Topic"))
        if topic is not None:
            seen.add(kind)
            assert KINDS[topic["Value"]] in takes[kind]
    assert seen == set(takes)
    assert config["Visualization Manager"]["Global Options"]["Fixed Frame"] == "world"


def test_what_is_renamed_is_found_out():
    """The checks above can fail."""
    for topic, fields, reason in (
        ("/policy/action", ["action[7]"], "7 < 7"),
        ("/policy/action", ["actions[0]"], "has no field actions"),
        ("/policy/action", ["action"], "is an array"),
        ("/policy/action", ["stages", "total_ms"], "has no field total_ms"),
        ("/policy/said", ["state"], "no topic /policy/said"),
    ):
        with pytest.raises(AssertionError, match=reason):
            check(topic, fields)


def test_the_services_are_documented():
    text = (CHECKOUT / "docs" / "reference" / "topics.md").read_text()
    for service in SERVICES:
        assert f"| `~/{service.split('/')[-1]}` | std_srvs/Trigger |" in text
