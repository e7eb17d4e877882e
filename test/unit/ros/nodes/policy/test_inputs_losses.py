"""Images without a partner are said in the log: once a stream and kind, however soon one of another
stream was, and not for every image."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from unit.runtime.control.bench import Bench, Recorder
from vla_ros.core.clock import MS, SECOND
from vla_ros.ros.nodes.policy.inputs import PolicyInputs
from vla_ros.ros.nodes.policy.link import Throttle
from vla_ros.runtime.control.observation import LostImage


class Throttled(Recorder):
    """Warnings as the node logs them."""

    def __init__(self) -> None:
        super().__init__()
        self._throttle = Throttle()

    def warn(self, kind: str, text: str) -> None:
        if line := self._throttle.text(kind, text):
            super().warn(kind, line)


class Inputs:
    """As much of them as counts what is lost."""

    def __init__(self) -> None:
        self.bench = Bench(out=Throttled())
        self._self: Any = SimpleNamespace(_lost_ns={}, _control=self.bench.control)
        self._self._count = partial(PolicyInputs._count, self._self)

    def lose(self, lost: LostImage, at_ns: int = 0) -> None:
        PolicyInputs._lose(self._self, lost, at_ns)

    @property
    def said(self) -> list[str]:
        return [text for _, text in self.bench.out.warnings]


LATE = LostImage("wrist_image", "no wrist_image: wrist_image is 29.6 ms newer", "apart")
MUTE = LostImage("joint_states", "no joint_states: joint_states has said nothing yet", "silent")
NAMELESS = LostImage("joint_states", "no joint_states: joint_states has no 'thumb'", "names")


def test_each_stream_and_kind_is_said_however_soon_after_another() -> None:
    inputs = Inputs()
    for lost in (LATE, MUTE, NAMELESS):
        inputs.lose(lost)
    assert inputs.said == [f"frame dropped: {lost.reason}" for lost in (LATE, MUTE, NAMELESS)]
    assert inputs.bench.loop.counters.frames_dropped == 3


def test_the_same_is_said_once_until_it_is_news_again() -> None:
    inputs = Inputs()
    for i in range(50):
        inputs.lose(LATE, i * 50 * MS)
    assert inputs.said == [f"frame dropped: {LATE.reason}"]
    assert inputs.bench.loop.counters.frames_dropped == 50
    assert inputs.bench.loop.counters.last_drop == LATE.reason
    inputs.bench.out._throttle = Throttle()  # a while later by its own clock
    inputs.lose(LATE, 120 * SECOND)
    assert len(inputs.said) == 2


def test_a_reason_that_holds_is_logged_once_a_minute_and_another_at_once():
    now = 0.0
    throttle = Throttle(lambda: now)
    said = []
    for tick in range(20 * 200):
        now = tick / 20
        if line := throttle.text("lacks", f"no image for {now:.1f} s"):
            said.append((now, line))
    assert [round(at) for at, _ in said] == [0, 60, 180]
    assert said[1][1].endswith("(and 1199 more like it)")
    now += 2.0
    assert throttle.text("lacks", "the image is refused") == "the image is refused"
    now += 11.0
    assert throttle.text("lacks", "the image is refused") == "the image is refused"  # it was over
