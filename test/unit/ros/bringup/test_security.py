"""Whose keys a node uses, and that enclaves which would protect nothing are refused."""

from __future__ import annotations

import pytest

from vla_ros.cli.main import main
from vla_ros.core.errors import UserError
from vla_ros.ros.bringup.environment import check_enclave, enclave_of
from vla_ros.ros.bringup.graph import command_line
from vla_ros.ros.bringup.graph_file import GraphSpec

SECURED = {
    "ROS_SECURITY_ENABLE": "true",
    "ROS_SECURITY_STRATEGY": "Enforce",
    "ROS_SECURITY_KEYSTORE": "/keys",
}


def test_each_node_has_an_enclave_of_its_own() -> None:
    spec = GraphSpec.load("sim", enclave="/vla_ros", namespace="arm")
    found = {node.name: node.enclave for node in spec.nodes}
    assert found["policy"] == "/vla_ros/policy"
    assert len(set(found.values())) == len(found) >= 3
    words = command_line(spec.node("policy"))
    assert words[words.index("--enclave") + 1] == "/vla_ros/policy"
    assert words.index("--enclave") > words.index("--ros-args")


def test_without_a_word_there_is_none() -> None:
    assert "--enclave" not in command_line(GraphSpec.load("sim").node("policy"))


@pytest.mark.parametrize("folder", ["/vla_ros", "/vla_ros/", "/"])
def test_slashes_do_not_double(folder: str) -> None:
    assert enclave_of(folder, "policy").count("//") == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ROS_SECURITY_ENABLE": ""}, "ROS_SECURITY_ENABLE is not set"),
        ({"ROS_SECURITY_ENABLE": "1"}, "ROS_SECURITY_ENABLE is 1"),
        ({"ROS_SECURITY_STRATEGY": "Permissive"}, "export ROS_SECURITY_STRATEGY=Enforce"),
        ({"ROS_SECURITY_STRATEGY": "enforce"}, "is enforce"),
        ({"ROS_SECURITY_KEYSTORE": ""}, "where the keys are"),
    ],
)
def test_keys_that_would_protect_nothing_are_refused(change: dict[str, str], says: str) -> None:
    check_enclave("/vla_ros", SECURED)
    check_enclave("", change)
    with pytest.raises(UserError, match=says):
        check_enclave("/vla_ros", {**SECURED, **change})


def test_an_enclave_is_a_path_from_the_root() -> None:
    with pytest.raises(UserError, match="must begin with /"):
        check_enclave("vla_ros", SECURED)


def test_up_refuses_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ROS_SECURITY_ENABLE", raising=False)
    assert main(["up", "sim", "--enclave", "/vla_ros"]) == 2
    assert "ROS_SECURITY_ENABLE is not set" in capsys.readouterr().err


def test_a_middleware_without_security_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the wheels' Fast DDS says it under Enforce."""
    pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
    from vla_ros.ros.bringup import lifecycle
    from vla_ros.ros.bringup.graph import Graph, GraphFailed

    def refuses(_: int | None) -> None:
        raise RuntimeError("error creating node: no security libraries\nPlease compile")

    monkeypatch.setattr(lifecycle, "LifecycleClient", refuses)
    monkeypatch.setattr(Graph, "_start_processes", lambda self: None)
    with pytest.raises(GraphFailed, match=r"cannot join the ROS graph: .* no security libraries$"):
        Graph(GraphSpec.load("sim"), environment={}).start()
