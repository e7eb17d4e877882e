"""What a joint_trajectory_controller makes of `outputs: [trajectory]`, chunk after chunk.

The controller is the model of support/joint_trajectory_controller.py, which test_controller_model
holds to the real one, and messages come to it late, each by another delay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from trajectory_msgs.msg import JointTrajectory

from support.joint_trajectory_controller import JointTrajectoryController
from unit.ros.nodes.policy.test_outputs import HERE, LEAD, Arm, joint_space
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import CommandKind
from vla_ros.ros.common.convert import stamp_of
from vla_ros.runtime.control.queue import Chunking, Execution

T = 50 * MS
CYCLE = 2 * MS  # of the controller: 500 Hz
JUMP = 0.05  # of bounds from -2 to 2: 0.2 rad a period
MOST = 0.2
START = HERE[[0, 2]]
NAMES = ["shoulder", "elbow"]


@dataclass
class Told:
    """What an arm's outputs said, and when: (instant, message)."""

    arm: Arm
    messages: list[tuple[int, JointTrajectory]]

    @property
    def rows(self) -> np.ndarray:
        """[n, 2]: the joints of every action that ~/action said."""
        made = [c for c in self.arm.bench.out.commands if c.kind is CommandKind.POLICY]
        return np.array([c.action[[0, 2]] for c in made])

    def at_ns(self) -> list[int]:
        made = [c for c in self.arm.bench.out.commands if c.kind is CommandKind.POLICY]
        return [c.published_ns for c in made]


def told(chunks: int, seed: int = 0, stop: bool = False) -> Told:
    """An arm whose chunks want the joints now here, now there; each is replaced after 3 of 10."""
    draw = np.random.default_rng(seed)
    how = Chunking(Execution.ASYNC, replan_interval=3)
    arm = Arm(joint_space(), "trajectory", how=how, jump=JUMP, max_age_s=0.6)
    said, heard = arm.notes.said["joint_trajectory"], []

    def goes(step) -> None:
        step()
        heard.extend((arm.bench.clock.now, m) for m in said[len(heard) :])

    for _ in range(chunks):
        arm.measure()
        goal = draw.uniform(-1.5, 1.5, (1, 3))
        goes(lambda goal=goal: arm.cycle(np.tile(goal * [1, 0, 1], (10, 1))))
        for _ in range(2):
            goes(arm.tick)
    if stop:
        arm.measure(arm.bench.out.commands[-1].action * [0.95, 1.0, 0.95])
        arm.bench.control.stop()
        goes(arm.tick)
    return Told(arm, heard)


def driven(
    what: Told, delays: np.ndarray, after_s: float = 1.0, **controller: bool
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """(instants of the control cycles, positions [n, 2], what was refused) where each message
    comes ``delays`` after it was said, and nothing more does for ``after_s`` in the end."""
    mail = [(at + int(late), m) for (at, m), late in zip(what.messages, delays, strict=True)]
    control = JointTrajectoryController(NAMES, START, **controller)
    begin, end = mail[0][0] // CYCLE * CYCLE, mail[-1][0] + int(after_s * SECOND)
    times, path = range(begin, end, CYCLE), []
    for now in times:
        while mail and mail[0][0] <= now:
            control.receive(mail.pop(0)[1], now)
        path.append(control.update(now))
    return np.array(times), np.array(path), control.refused


def delays(what: Told, most_ms: float, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.0, most_ms * MS, len(what.messages))


def per_period(path: np.ndarray) -> float:
    """The longest way of a joint in any control period."""
    periods = T // CYCLE
    return float(np.abs(path[periods:] - path[:-periods]).max())


def test_the_stamp_is_when_the_first_action_begins_and_each_point_has_a_velocity() -> None:
    what = told(3)
    for at, message in what.messages:
        assert stamp_of(message.header.stamp) == at + LEAD
        assert all(len(p.positions) == len(p.velocities) == 2 for p in message.points)
        assert not any(p.accelerations or p.effort for p in message.points)
        assert not any(message.points[-1].velocities)


def test_no_chunk_that_replaces_another_moves_a_joint_beyond_the_jump_limit() -> None:
    """Whatever the delays, up to the lead. The controller itself goes the way of two cycles in the
    one in which it takes a chunk up."""
    what = told(30)
    _, path, refused = driven(what, delays(what, 16.0))
    assert not refused
    assert per_period(path) > 0.95 * MOST, "it goes to the limit"
    assert per_period(path) <= MOST * (1 + 3 * CYCLE / T)
    assert np.abs(np.diff(path, axis=0)).max() <= 2 * MOST * CYCLE / T


def test_what_is_executed_is_what_was_said_at_the_instant_it_was_said_for() -> None:
    what = told(12)
    times, path, _ = driven(what, delays(what, 16.0))
    due, rows = said(what)
    reached = np.array([path[np.searchsorted(times, at)] for at in due])
    assert len(due) > 30 and reached == pytest.approx(rows, abs=MOST * 2 * CYCLE / T)


def said(what: Told) -> tuple[list[int], np.ndarray]:
    """Instants and positions of all points that no later message replaces."""
    begins = [stamp_of(m.header.stamp) for _, m in what.messages]
    due, rows = [], []
    for (_, message), begin, end in zip(what.messages, begins, [*begins[1:], 1 << 62], strict=True):
        for point in message.points:
            at = begin + round(point.time_from_start.sec * SECOND) + point.time_from_start.nanosec
            if at <= end:
                due.append(at)
                rows.append(point.positions)
    return due, np.array(rows)


def test_messages_later_than_the_lead_are_executed_late_and_never_in_one_step() -> None:
    what = told(30)
    _, path, refused = driven(what, delays(what, 45.0))
    assert not refused
    assert np.abs(np.diff(path, axis=0)).max() <= 2 * MOST * CYCLE / T + 1e-9


def test_the_motion_ends_when_its_observation_is_too_old() -> None:
    what = told(4)
    times, path, _ = driven(what, delays(what, 16.0))
    end_ns = what.arm.bench.out.commands[-1].valid_until_ns
    still = path[times >= end_ns]
    assert len(still) > 100 and np.ptp(still, axis=0) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("replacement", [False, True])
def test_a_stop_ends_the_motion_a_period_after_it_comes(replacement: bool) -> None:
    what = told(4, stop=True)
    late = delays(what, 16.0)
    times, path, refused = driven(what, late, replacement=replacement)
    assert not refused
    stopped_ns = what.messages[-1][0] + int(late[-1]) + T
    still = path[times >= stopped_ns + 2 * CYCLE]
    end = what.messages[-1][1].points[-1].positions
    assert np.abs(end - what.rows[-1]).max() <= MOST + 1e-9, "on the way that it was on"
    assert still == pytest.approx(np.tile(end, (len(still), 1)))
    assert np.abs(np.diff(path, axis=0)).max() < MOST, "not in one step"


def test_a_controller_without_replacement_follows_the_chunks_too() -> None:
    """Before 6.10 another trajectory leads at once from where the arm is to its first point."""
    what = told(30)
    _, path, refused = driven(what, delays(what, 16.0), replacement=False)
    assert not refused
    assert per_period(path) <= MOST * 1.5
