"""`vla-ros record --for`: how long it records, however long its node takes to start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("rosbags", reason="rosbags is not installed")

from support.wait import wait_until
from vla_ros.cli.main import make_parser
from vla_ros.ros.bringup import environment
from vla_ros.ros.nodes.recorder import node as recorder


class Quiet:
    """A recorder without a graph."""

    summary, seconds = "0 messages", 0.0

    def __init__(self, say: Callable[[str], None]) -> None:
        pass

    def create_timer(self, seconds: float, call: Callable[[], None], clock: object) -> None:
        pass

    def close(self) -> None:
        pass


def test_the_seconds_begin_when_it_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They began before the node was made: a slow start was taken from them, and could be all."""
    began, ended = [], []

    def main(args: object, make: Callable[[], Any], close: Callable[[Any], None]) -> int:
        time.sleep(0.4)  # a slow start
        node = make()
        began.append(time.monotonic())
        wait_until(lambda: ended, 5.0, "the end")
        close(node)
        return 0

    monkeypatch.setattr(recorder, "main", main)
    monkeypatch.setattr(recorder, "RecorderNode", Quiet)
    monkeypatch.setattr(environment, "prepare", lambda: None)
    monkeypatch.setattr(os, "kill", lambda *_: ended.append(time.monotonic()))
    words = ["record", "-o", str(tmp_path / "bag"), "--for", "0.2"]
    parser, module = make_parser("record")
    assert module is not None and module.run(parser.parse_args(words)) == 0
    assert ended[0] - began[0] > 0.19
