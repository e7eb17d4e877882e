"""The policy node says that a graph was captured while the robot waited: once each in its log, in
its status as a count, and on /diagnostics for a while."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus

from vla_ros.core.clock import SECOND
from vla_ros.msg import PolicyStatus
from vla_ros.ros.nodes.policy.link import LoopLink
from vla_ros.ros.nodes.policy.topics import CAPTURED_S, PolicyTopics


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, line: str) -> None:
        self.lines.append(line)


def test_captures_in_service_are_said_when_there_are_more() -> None:
    log, nothing = Log(), None
    none: Any = nothing
    link = LoopLink(log, none, none, none, none, none)
    for count in (0, 0, 2, 2, 3, 0, 1):  # the 0: a new worker
        link._count_captures(count)
    assert [line.split(" ", 1)[0] for line in log.lines] == ["2", "3", "1"]
    assert "captured in service, each while the robot waited" in log.lines[0]
    assert link.graphs_captured == 3 + 1  # of both workers


class Node:
    """Publishers that keep what was published."""

    def __init__(self) -> None:
        self.published: list[Any] = []

    def create_publisher(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(publish=self.published.append)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: SimpleNamespace(now=lambda: Time(), to_msg=lambda: Time())


def test_diagnostics_warn_while_it_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    node: Any = Node()
    topics = PolicyTopics(node)
    said: list[DiagnosticStatus] = []
    monkeypatch.setattr(topics._diagnostics, "publish", said.append)
    running = PolicyStatus.STATE_RUNNING
    for second, count in ((0, 0), (1, 2), (5, 2), (CAPTURED_S + 2, 2), (CAPTURED_S + 3, 3)):
        status = PolicyStatus(state=running, graphs_captured=count)
        topics.status(status, round(second * SECOND))
        topics.diagnose()
    assert [one.level for one in said] == [b"\x00", b"\x01", b"\x01", b"\x00", b"\x01"]
    assert "2 CUDA graphs captured in service" in said[1].message
    assert "1 CUDA graphs" in said[4].message
    assert {pair.key: pair.value for pair in said[4].values}["graphs_captured"] == "3"
