"""LIBERO under the bridge's episode runner, and what its environment refuses."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from support.wait import wait_until
from vla_ros.core.clock import SystemClock
from vla_ros.sim.env import AGENTVIEW, RefusedAction, UnknownTask
from vla_ros.sim.episode import EpisodeOptions, EpisodeRequest, EpisodeState, Mode
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.runner import EpisodeRunner

STILL = [0, 0, 0, 0, 0, 0, -1]


@pytest.fixture(scope="module")
def env():
    """In this process: tests that look inside."""
    environment = EnvConfig("libero", 16, False)()
    yield environment
    environment.close()


def test_success_is_the_benchmarks_own_and_ends_the_episode(env):
    env.reset("libero_object/0", 0, render=False)
    assert not env.step(STILL, render=False).done
    _drop_into_basket(env)
    steps = [env.step(STILL, render=False)]
    while not steps[-1].done and len(steps) < 40:
        steps.append(env.step(STILL, render=False))
    assert steps[-1].success and steps[-1].done
    assert not any(step.success for step in steps[:-1])
    with pytest.raises(RefusedAction, match="the episode has ended: reset before the next step"):
        env.step(STILL)
    assert not env.reset("libero_object/0", 0, render=False).images
    assert not env.step(STILL, render=False).success  # forgotten


def _drop_into_basket(env):
    inner = env._world._env
    basket = inner.sim.data.body_xpos[inner.obj_body_id["basket_1"]]
    x, y, z = basket
    pose = np.array([x, y, z + 0.1, 1, 0, 0, 0])
    joint = inner.objects_dict["alphabet_soup_1"].joints[-1]
    inner.sim.data.set_joint_qpos(joint, pose)
    inner.sim.forward()


@pytest.mark.parametrize("action", [[0] * 6, [0] * 8, "open", [np.nan] * 7, [[0] * 7], None])
def test_a_bad_action_is_refused_and_moves_nothing(env, action):
    before = env.reset("libero_object/0", 1, render=False)
    with pytest.raises(RefusedAction, match="action"):
        env.step(action)
    assert env.step(STILL, render=False).observation.poses.keys() == before.poses.keys()
    again = env.reset("libero_object/0", 1, render=False)
    assert again.poses == before.poses


def test_unknown_tasks_and_states_leave_the_episode_running(env):
    env.reset("libero_object/0", 0, render=False)
    with pytest.raises(UnknownTask, match="libero has no task 'libero_object/10'"):
        env.reset("libero_object/10", 0)
    with pytest.raises(UnknownTask, match="no initial state 50; it has 0 to 49"):
        env.reset("libero_object/0", 50)
    env.step(STILL, render=False)


def test_an_action_too_large_is_clipped(env):
    def end_of(action):
        env.reset("libero_object/0", 0, render=False)
        return env.step(action, render=False).observation.eef_pos

    assert np.array_equal(end_of([9, 0, 0, 0, 0, 0, -5]), end_of([1, 0, 0, 0, 0, 0, -1]))


def test_the_callers_random_numbers_are_left_alone(env):
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    env.reset("libero_object/0", 2, render=False)
    assert np.random.random() == expected  # noqa: NPY002


@pytest.mark.slow
def test_memory_stays_bounded_when_tasks_change(env):
    def resident_mb():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

    tasks = ["libero_object/1", "libero_spatial/0"]
    for task in tasks:
        env.reset(task, 0, render=False)
    after_each_once = resident_mb()
    for task in tasks:
        env.reset(task, 0, render=False)
    assert resident_mb() - after_each_once < 500  # one world has 1,000 and more


class Nobody:
    """An outlet without a policy behind it."""

    def __init__(self):
        self.frames = 0

    def observation(self, stamp_ns, observation):
        self.frames += AGENTVIEW in observation.images

    def clock(self, stamp_ns): ...
    def begin(self, instruction, interrupted): ...
    def changed(self, view): ...
    def rejected(self, reason): ...


@pytest.mark.long
@pytest.mark.parametrize(("image_size", "camera_hz"), [(16, 1.0), (256, 0.0)])
def test_real_time_goes_on_without_a_policy_and_says_when_it_cannot(start, image_size, camera_hz):
    """Without a GPU, 256 pixels take more than the 50 ms of a step, and 16 pixels a part."""
    process = start("libero_object", image_size, False)
    first = EpisodeRequest("libero_object/0")
    options = EpisodeOptions(mode=Mode.REALTIME, camera_rate_hz=camera_hz)
    runner = EpisodeRunner(process, Nobody(), SystemClock(), first, options)
    runner.request(first)
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: runner.view().state is EpisodeState.RUNNING, 120.0)
        wait_until(lambda: runner.view().step >= 25, 60.0)
        view = runner.view()
    finally:
        runner.stop()
        thread.join(20.0)
    assert view.counters.idle == pytest.approx(view.step, abs=1)
    assert ("the simulation cannot keep up" in view.reason) is (view.achieved_rate_hz < 18.0)
    assert view.achieved_rate_hz < 21.0  # never faster than the robot
    assert view.counters.late > 0 or not view.reason
