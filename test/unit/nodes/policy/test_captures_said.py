"""The policy node says in its log that a graph was captured while the robot waited: once each."""

from __future__ import annotations

from typing import Any

from vla_ros.nodes.policy.link import LoopLink


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
        link._say_captures(count)
    assert [line.split(" ", 1)[0] for line in log.lines] == ["2", "3", "1"]
    assert "captured in service, each while the robot waited" in log.lines[0]
