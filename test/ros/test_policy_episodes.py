"""The end of a simulated episode is no fault: bridge, policy and monitor as they ship."""

from __future__ import annotations

import re
import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("mujoco", reason="mujoco is not installed: the bridge needs the simulation")

from support.wait import wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.msg import ActionCommand, EpisodeStatus, PolicyStatus
from vla_ros.ros.common import qos
from vla_ros.srv import ResetEpisode

TASK = "reach_blue_cube"
ENDS = (EpisodeStatus.STATE_SUCCESS, EpisodeStatus.STATE_FAILURE)
QUICK_S = 0.4  # shorter than max_age: the frame before the end is no older
REST_S = 2.5  # longer than max_age, silence_after and the monitor's camera timeout together


class Stage:
    """A graph, and what is heard of it."""

    def __init__(self, spawn_node, ros, mode, **bridge) -> None:
        self.ros = ros
        self.episodes = ros.inbox(EpisodeStatus, "/bridge/episode", qos.LATCHED)
        self.status = ros.inbox(PolicyStatus, "/policy/status", qos.LATCHED)
        self.commands = ros.inbox(ActionCommand, "/policy/action", qos.ACTION)
        self.simulated = mode == "lockstep"
        time_source = {"use_sim_time": self.simulated}
        self.nodes = [
            spawn_node("bridge", {"mode": mode, "image_size": 32, "task": TASK} | bridge),
            spawn_node("monitor", time_source),
            spawn_node(
                "policy",
                {"policy": "scripted", "mode": mode, "detect_frozen": False} | time_source,
            ),
        ]
        ros.bring_up("/policy")

    def ended(self, episode: int) -> EpisodeStatus:
        end = self.episodes.wait(lambda m: m.episode == episode and m.state in ENDS, 40.0)
        self._ended_s = time.time()
        return end

    def rest(self) -> PolicyStatus:
        """A while after the end: what the policy says then."""
        over = "the episode is over"
        wait_until(lambda: self.status.last.reason.startswith(over), 5.0, "the policy's rest")
        time.sleep(REST_S)
        return self.status.last

    def errors(self) -> list[str]:
        """What was logged as an error since the end; a busy machine may HOLD before it."""
        lines = [line for node in self.nodes for line in node.log.splitlines()]
        times = [(re.search(r"\[ERROR\] \[([0-9.]+)\]", line), line) for line in lines]
        return [line for at, line in times if at and float(at[1]) > self._ended_s + QUICK_S]


@pytest.mark.parametrize("mode", ["realtime", "lockstep"])
def test_after_success_the_policy_waits_and_the_next_episode_runs(spawn_node, ros, mode):
    stage = Stage(spawn_node, ros, mode)
    for episode in (1, 2):
        end = stage.ended(episode)
        assert end.state == EpisodeStatus.STATE_SUCCESS, end.reason
        rest = stage.rest()
        assert (State(rest.state), rest.reason) == (State.WAITING, "the episode is over: success")
        late = [m.kind for m in stage.commands.messages if m.epoch == rest.epoch]
        assert late == ([] if stage.simulated else [CommandKind.STOP])
        assert stage.commands.last.epoch == rest.epoch - stage.simulated
        assert stage.errors() == []
        if episode == 1:
            assert ros.call(ResetEpisode, "/bridge/reset", ResetEpisode.Request()).success
    policy_log = stage.nodes[-1].log
    assert policy_log.count("RUNNING -> WAITING: the episode is over: success") == 2


def test_images_that_are_still_on_their_way_move_nothing(spawn_node, ros):
    """At the step limit, frames of up to 400 ms ago are still to come."""
    stage = Stage(spawn_node, ros, "realtime", max_steps=25, image_delay_ms=400.0)
    end = stage.ended(1)
    assert end.reason == "not solved within 25 steps"
    over = stage.status.wait(lambda s: s.reason == f"the episode is over: {end.reason}", 5.0)
    rest = stage.rest()
    assert (rest.state, rest.epoch) == (State.WAITING, over.epoch)
    assert rest.frames_received > over.frames_received, "they did come"
    assert rest.actions_published == over.actions_published
    assert stage.errors() == []


def test_an_episode_begun_by_nobody_s_reset_runs_all_the_same(spawn_node, ros):
    """A simulation that cannot reach the policy's reset service says that its episode runs."""
    stage = Stage(spawn_node, ros, "realtime", policy_reset_service="nobody/reset")
    assert stage.ended(1).state == EpisodeStatus.STATE_SUCCESS
    stage.status.wait(lambda s: s.reason.startswith("the episode is over"), 5.0)
    assert ros.call(ResetEpisode, "/bridge/reset", ResetEpisode.Request()).success
    assert stage.ended(2).state == EpisodeStatus.STATE_SUCCESS
    wait_until(lambda: stage.status.last.state == State.WAITING, 5.0, "the rest after it")
    assert stage.errors() == []
