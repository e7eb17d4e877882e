"""Lock-step: the world waits, every frame is answered once, and again only when asked again."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from rosgraph_msgs.msg import Clock

from support.policy_client import PolicyRig
from support.wait import wait_until
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common.convert import stamp_of, to_time

PERIOD = 50 * MS


class World:
    """A simulation that stands still until its frame is answered."""

    def __init__(self, rig: PolicyRig) -> None:
        self.rig = rig
        self.now = 100 * SECOND
        self._clock = rig.ros.publisher(Clock, "/clock", 10)
        rig.ros.wait_for_subscriber(self._clock)
        self.tell_time()

    def tell_time(self) -> None:
        self._clock.publish(Clock(clock=to_time(self.now)))

    def show(self):
        """Send the frame of this instant and return the command that answers it."""
        self.tell_time()
        message = self.rig.frame()
        message.header.stamp = to_time(self.now)
        return self.send(message)

    def send(self, message):
        begin = len(self.rig.commands)
        stamp = stamp_of(message.header.stamp)
        self.rig.show(message)

        def answers():
            new = self.rig.commands.messages[begin:]
            return [m for m in new if stamp_of(m.latest_observation_stamp) == stamp]

        return wait_until(answers, 5.0, "an answer")[0]

    def step(self):
        """One control period later."""
        self.now += PERIOD
        return self.show()


@pytest.fixture
def world(start_policy):
    rig = start_policy(mode="lockstep", use_sim_time=True, detect_frozen=False)
    rig.ros.bring_up("/policy")
    world = World(rig)
    rig.connect()  # the first frames may be lost; a bridge sends them again
    rig.commands.clear()
    rig.instruct("reach")
    rig.expect(lambda s: s.instruction == "reach")
    return world


def test_every_frame_is_answered_exactly_once(world):
    first = world.step()
    assert first.kind == CommandKind.POLICY
    assert first.action[0] == pytest.approx(0.001)
    begin = len(world.rig.commands) - 1
    for i in range(2, 41):
        answer = world.step()
        assert answer.kind == CommandKind.POLICY
        assert answer.action[0] == pytest.approx(0.001 * i)  # every row of the file, once
        assert stamp_of(answer.observation_stamp) == world.now
        assert stamp_of(answer.header.stamp) == world.now
    assert len(world.rig.commands) - begin == 40
    stages = world.rig.commands.last.stages
    spent = [getattr(stages, name) for name in ("transport_s", "queue_s", "decode_s", "gate_s")]
    assert abs(sum(spent) - stages.total_s) < 1e-4  # steady time, since the world's stands still
    world.rig.check_commands()


def test_a_frame_that_comes_again_gets_the_same_answer_again(world):
    world.step()
    world.now += PERIOD
    world.tell_time()
    frame = world.rig.frame()
    frame.header.stamp = to_time(world.now)
    answers = [world.send(frame) for _ in range(3)]
    assert len({m.sequence for m in answers}) == 3
    for m in answers[1:]:
        assert (m.kind, m.epoch) == (answers[0].kind, answers[0].epoch)
        assert m.action.tolist() == answers[0].action.tolist()
        assert m.observation_stamp == answers[0].observation_stamp
    following = world.step()
    assert following.action[0] == pytest.approx(0.003)  # sent thrice, taken once
    world.rig.expect(State.RUNNING)
    assert world.rig.status.last.state == State.RUNNING


def test_frames_of_a_stopped_task_are_answered_with_a_stop(world):
    world.step()
    world.rig.call("stop")
    world.rig.expect(lambda s: s.instruction == "")
    for _ in range(3):
        answer = world.step()
        assert answer.kind == CommandKind.STOP
        assert not any(answer.action[:6])


def test_a_clock_that_goes_back_voids_what_was_known(world):
    for _ in range(5):
        before = world.step()
    world.now = 50 * SECOND
    world.tell_time()
    flushed = world.rig.expect(State.HOLD)
    assert flushed.reason.startswith("the clock went back by 50")
    assert flushed.epoch == before.epoch + 1
    # Frames of the new time are taken although their stamps are older than those before.
    answers = [world.step() for _ in range(5)]
    assert [m.kind for m in answers] == [CommandKind.STOP] * 2 + [CommandKind.POLICY] * 3
    assert {m.epoch for m in answers} == {flushed.epoch}
    world.rig.check_commands()


def test_a_lost_worker_costs_no_answer_for_good(world):
    """Nothing answers while there is no worker; the frame sent again is answered."""
    world.step()
    world.rig.worker(signal.SIGKILL)
    world.rig.expect(lambda s: s.worker_restarts == 1)
    world.now += PERIOD
    world.tell_time()
    frame = world.rig.frame()
    frame.header.stamp = to_time(world.now)
    world.rig.show(frame)
    answer = world.send(frame)
    assert stamp_of(answer.latest_observation_stamp) == world.now
    kinds = [world.step().kind for _ in range(4)]
    assert kinds[-1] == CommandKind.POLICY
    world.rig.check_commands()
