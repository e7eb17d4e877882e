"""How far a graph reaches unless its user says otherwise: this machine, sockets included."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from vla_ros.core.resources import config_path
from vla_ros.ros.bringup.environment import defaults, shipped_profile

WHITE = "{http://www.eprosima.com}interfaceWhiteList"
RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"


@pytest.mark.parametrize(
    ("environment", "file"),
    [
        ({}, "localhost"),
        ({RANGE: ""}, "localhost"),
        ({RANGE: "LOCALHOST"}, "localhost"),
        ({RANGE: "SUBNET"}, "shm"),
        ({RANGE: "SYSTEM_DEFAULT"}, "shm"),
        ({RANGE: "LOCALHOST", "ROS_STATIC_PEERS": "192.168.10.2"}, "shm"),
        ({"ROS_DISCOVERY_SERVER": "192.168.10.2:11811"}, "shm"),
        ({"ROS_LOCALHOST_ONLY": "1"}, "localhost"),
        ({"ROS_LOCALHOST_ONLY": "0"}, "shm"),
        ({"ROS_DISTRO": "humble"}, "shm"),
        ({"ROS_DISTRO": "jazzy"}, "localhost"),
    ],
)
def test_the_profile_is_that_of_the_range(environment: dict[str, str], file: str) -> None:
    assert shipped_profile(environment).name == f"fastdds_{file}.xml"
    chosen = defaults(environment)
    assert any(value.endswith(f"fastdds_{file}.xml") for value in chosen.values())


def test_the_two_profiles_differ_in_where_sockets_are_bound_alone() -> None:
    here = ElementTree.parse(config_path("fastdds_localhost.xml")).getroot()
    anywhere = ElementTree.parse(config_path("fastdds_shm.xml")).getroot()
    bound = [(parent, part) for parent in here.iter() for part in parent if part.tag == WHITE]
    assert [[e.text for e in part] for _, part in bound] == [["127.0.0.1"]]
    for parent, part in bound:
        parent.remove(part)

    def plain(root: ElementTree.Element) -> list[tuple[str, str]]:
        return [(e.tag, (e.text or "").strip()) for e in root.iter()]

    assert plain(here) == plain(anywhere)
