"""What the policy node says of its spare worker: in its log once, on /diagnostics as it is."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from vla_ros.core.types import PolicyInfo
from vla_ros.msg import PolicyStatus
from vla_ros.ros.nodes.policy.link import LoopLink
from vla_ros.ros.nodes.policy.topics import diagnostic_of
from vla_ros.runtime.worker.wire import (
    PolicyLoaded,
    SpareLost,
    SpareReady,
    WorkerGaveUp,
    WorkerLost,
    WorkerReady,
    WorkerSwitched,
)

READY = PolicyLoaded(PolicyInfo("zero"), 7)


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, severity: str) -> Any:
        return lambda line: self.lines.append(f"{severity}: {line}")


class Control:
    """What of the loop is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *words: self.told.append(name)


def linked() -> tuple[LoopLink, Log, Control]:
    log, none = Log(), lambda *_: None
    nothing: Any = None
    link = LoopLink(log, nothing, nothing, nothing, none, none)
    link.spare = "loading"
    return link, log, Control()


def test_that_there_is_no_room_is_said_also_before_the_loop_is_there() -> None:
    link, log, _ = linked()
    link.on_event(SpareLost("3 of 2 GiB", final=True))
    assert log.lines == ["warning: no spare worker, the service goes on without: 3 of 2 GiB"]
    assert link.spare == "none: 3 of 2 GiB"


def test_each_change_is_told_the_loop_and_shown() -> None:
    link, log, control = linked()
    link.attach(Any, READY, control)  # type: ignore[arg-type]
    for event, shown in (
        (SpareReady(8, 2.0), "pid 8"),
        (WorkerSwitched("killed", PolicyLoaded(PolicyInfo("zero"), 8)), "loading"),
        (SpareReady(9, 2.0), "pid 9"),
        (SpareLost("killed", final=False), "loading"),
        (WorkerLost("killed"), "waits for the worker"),
        (WorkerReady(READY, 2.0), "loading"),
        (WorkerGaveUp("lost again"), "waits for the worker"),
    ):
        link.on_event(event)
        assert link.spare == shown
    assert control.told == ["worker_switched", "worker_lost", "worker_ready", "fault"]
    assert link.worker_restarts == 2 and link.worker_pid == 0 and link.deserted
    assert "info: a spare worker stands by, pid 8, loaded in 2.00 s" in log.lines
    assert "error: worker lost: killed; the spare took over, pid 8" in log.lines


def test_nothing_is_shown_where_none_is_wanted() -> None:
    link, _, control = linked()
    link.spare = ""
    link.attach(Any, READY, control)  # type: ignore[arg-type]
    for event in (WorkerLost("killed"), WorkerReady(READY, 2.0)):
        link.on_event(event)
        assert link.spare == ""
    shown = {pair.key: pair.value for pair in diagnostic_of(PolicyStatus(), "pid 8").values}
    assert shown["spare_worker"] == "pid 8"
    assert "spare_worker" not in {pair.key for pair in diagnostic_of(PolicyStatus()).values}
