"""Episodes without ROS: lock-step, real time, resends, aborts, resets."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from support.sim import CountingEnvironment
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Command, CommandKind
from vla_ros.sim.env import SimError, UnknownTask
from vla_ros.sim.episode import EpisodeOptions, EpisodeRequest, EpisodeState, Mode
from vla_ros.sim.runner import MAX_RESENDS, EpisodeRunner

CLOCK = SystemClock()
LOCKSTEP = EpisodeOptions(answer_timeout_s=0.15)
REALTIME = EpisodeOptions(mode=Mode.REALTIME)


class Policy:
    """An outlet that answers every frame as ``answer(number, stamp)`` says; None: not at all."""

    def __init__(self, answer=None):
        self.answer = answer or (lambda number, stamp: act(stamp, number))
        self.stamps, self.clocks, self.views, self.begun, self.rejections = [], [], [], [], []
        self.blind = 0
        self.runner = None

    def clock(self, stamp_ns):
        self.clocks.append(stamp_ns)

    def observation(self, stamp_ns, observation):
        if not observation.images:
            self.blind += 1
        number = len(self.stamps)
        self.stamps.append(stamp_ns)
        command = self.answer(number, stamp_ns)
        if command is not None:
            threading.Thread(target=self.runner.offer, args=(command,)).start()

    def begin(self, instruction, interrupted):
        self.begun.append(instruction)

    def changed(self, view):
        self.views.append(view)

    def rejected(self, reason):
        self.rejections.append(reason)


def act(stamp, sequence=0, **changes):
    action = np.array([0.05, 0, 0, 0, 0, 0, 0.0])
    stamps = {"published_ns": stamp + 1, "stamp_ns": stamp, "latest_ns": stamp}
    return Command(CommandKind.POLICY, action, sequence, 0, 0, **(stamps | changes))


@pytest.fixture
def start():
    running = []

    def make(policy, options=LOCKSTEP, task="count", environment=None, **request):
        environment = environment or CountingEnvironment()
        first = EpisodeRequest(task, **request)
        runner = EpisodeRunner(environment, policy, CLOCK, first, options)
        policy.runner = runner
        runner.request(first)
        thread = threading.Thread(target=runner.run, daemon=True)
        thread.start()
        running.append((runner, thread))
        return runner, environment

    yield make
    for runner, thread in running:
        runner.stop()
        thread.join(2.0)
        assert not thread.is_alive()


def ended(runner, episode=1):
    wait_until(
        lambda: runner.view().episode == episode and runner.view().state >= EpisodeState.SUCCESS,
        10.0,
        lambda: f"the end of episode {episode}: {runner.view()}",
    )
    return runner.view()


# Lock-step


def test_every_frame_is_answered_once_and_the_task_solved(start):
    policy = Policy()
    runner, environment = start(policy)
    view = ended(runner)
    assert view.state is EpisodeState.SUCCESS
    assert (view.step, view.counters.applied, view.counters.idle) == (4, 4, 0)
    assert view.counters.resends == view.counters.rejected == 0
    assert view.achieved_rate_hz > 0
    assert [a.tolist() for a in environment.actions] == [[1, 0, 0, 0, 0, 0, 1]] * 4
    assert np.diff(policy.stamps).tolist() == [5_000_000] * 4  # 200 Hz, the last frame shown too
    assert [v.state for v in policy.views] == [0, 0, 1, 2]
    assert policy.begun == ["count to four"]


def test_sim_time_never_goes_back_and_leads_every_frame(start):
    policy = Policy()
    runner, _ = start(policy)
    ended(runner)
    runner.request(EpisodeRequest("count", 1))
    ended(runner, 2)
    assert policy.clocks == sorted(policy.clocks)
    assert policy.stamps == sorted(policy.stamps)
    assert set(policy.stamps) <= set(policy.clocks)
    assert policy.stamps[0] > 0


def test_a_lost_answer_makes_the_frame_come_again(start):
    policy = Policy(lambda number, stamp: act(stamp, number) if number % 2 else None)
    runner, _ = start(policy)
    view = ended(runner)
    assert view.state is EpisodeState.SUCCESS
    assert (view.step, view.counters.applied) == (4, 4)
    assert view.counters.resends == 4


def test_a_late_answer_to_an_old_frame_is_not_executed(start):
    seen = []

    def answer(number, stamp):
        seen.append(stamp)
        return act(seen[0] if number == 1 else stamp, number)

    runner, _ = start(Policy(answer))
    view = ended(runner)
    assert view.counters.applied == view.step == 4
    assert view.counters.rejected == 1
    assert view.counters.resends == 1


def test_no_answer_at_all_aborts(start):
    policy = Policy(lambda number, stamp: None)
    runner, environment = start(policy)
    view = ended(runner)
    assert view.state is EpisodeState.FAILURE
    assert view.reason == f"no answer to the frame of step 0 after {MAX_RESENDS} resends"
    assert len(set(policy.stamps)) == 1
    assert len(policy.stamps) == MAX_RESENDS + 1
    assert environment.actions == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"action": np.full(7, np.nan)}, "not finite"),
        ({"action": np.zeros(6)}, "shape"),
        ({"valid_until_ns": 1}, "expired"),
    ],
)
def test_a_bad_answer_is_none_and_the_abort_says_why(start, changes, why):
    policy = Policy(lambda number, stamp: replace(act(stamp, number), **changes))
    runner, environment = start(policy, EpisodeOptions(answer_timeout_s=0.02))
    view = ended(runner)
    assert view.state is EpisodeState.FAILURE
    assert why in view.reason
    assert view.counters.rejected == MAX_RESENDS + 1
    assert environment.actions == []


def test_a_slow_policy_is_waited_for(start):
    """2 x the slowest answer of late counts where it is longer than the least wait."""

    def answer(number, stamp):
        time.sleep(0.03)  # in the runner's thread: before it begins to wait
        return act(stamp, number)

    runner, _ = start(Policy(answer), EpisodeOptions(answer_timeout_s=0.01))
    assert ended(runner).counters.applied == 4


def test_a_stop_steps_the_world_but_moves_nothing(start):
    policy = Policy(lambda number, stamp: replace(act(stamp, number), kind=CommandKind.STOP))
    runner, environment = start(policy, task="wait")
    view = ended(runner)
    assert view.state is EpisodeState.FAILURE
    assert view.reason == "not solved within 4 steps"
    assert (view.counters.applied, view.counters.idle) == (0, 4)
    assert all(action.tolist() == [0, 0, 0, 0, 0, 0, -1] for action in environment.actions)


def test_the_gripper_stays_as_last_commanded(start):
    def answer(number, stamp):
        kind = CommandKind.POLICY if number == 0 else CommandKind.HELD
        return replace(act(stamp, number), kind=kind)

    runner, environment = start(Policy(answer))
    ended(runner)
    assert [action[6] for action in environment.actions] == [1.0] * 4
    runner.request(EpisodeRequest("wait"))
    ended(runner, 2)
    assert environment.actions[0][6] == -1.0  # a new episode begins with it open


def test_limits_count_actions_and_every_control_step_has_its_frame(start):
    """ "wait" has four actions, of which a control step makes a tenth."""
    policy = Policy()
    environment = CountingEnvironment(rate_hz=200, action_rate_hz=20.0)
    runner, _ = start(policy, task="wait", environment=environment)
    view = ended(runner)
    assert view.reason == "not solved within 4 steps"
    assert (view.step, view.max_steps, view.control_steps) == (4, 4, 40)
    assert (view.counters.applied, len(policy.stamps), policy.blind) == (40, 41, 0)
    assert np.diff(policy.stamps).tolist() == [5_000_000] * 40
    runner.request(EpisodeRequest("wait", max_steps=2))
    assert (ended(runner, 2).step, runner.view().control_steps) == (2, 20)
    runner.request(EpisodeRequest("count"))  # solved at its fourth step, within the first action
    assert (ended(runner, 3).step, runner.view().control_steps) == (0, 4)


# Real time


def test_the_camera_goes_at_the_action_rate(start):
    """A world that is stepped at 200 Hz is not rendered at 200 Hz."""
    policy = Policy(lambda number, stamp: None)
    environment = CountingEnvironment(rate_hz=200, action_rate_hz=80.0)
    runner, _ = start(policy, REALTIME, task="wait", environment=environment)
    view = ended(runner)
    assert (view.step, view.control_steps) == (4, 10)
    assert policy.blind == 6  # 4 of 10 steps were rendered: 80 of 200 Hz


@pytest.mark.timing
def test_the_world_does_not_wait(start):
    policy = Policy(lambda number, stamp: None)
    began = time.monotonic()
    environment = CountingEnvironment(rate_hz=50)
    runner, _ = start(policy, REALTIME, environment=environment)
    view = ended(runner)
    assert view.state is EpisodeState.SUCCESS  # four steps solve it, whatever they did
    assert view.counters.idle == 4
    assert time.monotonic() - began > 0.075
    judge("four steps at 50 Hz", time.monotonic() - began, quiet=2.0, loaded=10.0)
    assert policy.clocks == []


def test_real_time_stamps_are_wall_time(start):
    policy = Policy()
    before = time.time_ns()
    runner, _ = start(policy, REALTIME)
    view = ended(runner)
    assert before < policy.stamps[0] < policy.stamps[-1] < time.time_ns()
    assert view.counters.applied >= 1


def test_a_command_of_an_earlier_episode_is_rejected(start):
    policy = Policy(lambda number, stamp: act(1_000, number, published_ns=time.time_ns()))
    runner, _ = start(policy, REALTIME)
    view = ended(runner)
    assert view.counters.applied == 0
    assert view.counters.rejected >= 3
    assert "it belongs to an earlier episode" in policy.rejections


def test_late_steps_are_counted_and_not_caught_up(start):
    class Slow(CountingEnvironment):
        def step(self, action, render=True):
            time.sleep(0.02)
            return super().step(action, render)

    began = time.monotonic()
    runner, _ = start(Policy(), REALTIME, environment=Slow(rate_hz=100))
    view = ended(runner)
    assert view.counters.late >= 3  # all but perhaps the first
    assert time.monotonic() - began > 0.08


@pytest.mark.parametrize(("rate_hz", "slow"), [(200, True), (20, False)])
def test_a_world_that_cannot_keep_up_says_so_while_it_runs(start, rate_hz, slow):
    class Endless(CountingEnvironment):
        def step(self, action, render=True):
            time.sleep(0.01)
            return replace(super().step(action, render), success=False, done=False)

    world = Endless(rate_hz=rate_hz)
    runner, _ = start(Policy(), REALTIME, environment=world, max_steps=10_000)
    wait_until(lambda: runner.view().step >= 22, 10.0)
    reason = runner.view().reason
    assert ("the simulation cannot keep up" in reason) is slow
    assert (f"instead of {rate_hz} steps a second" in reason) is slow
    runner.request(EpisodeRequest("wait"))
    assert ended(runner, 2).reason == "not solved within 4 steps"


def test_a_slower_camera(start):
    policy = Policy(lambda number, stamp: None)
    options = EpisodeOptions(mode=Mode.REALTIME, camera_rate_hz=100.0)
    runner, _ = start(policy, options)
    ended(runner)
    assert (len(policy.stamps), policy.blind) == (5, 2)  # steps 1 and 3 were not rendered


# Between episodes

PAUSE = EpisodeOptions(mode=Mode.REALTIME, auto_reset=True, reset_pause_s=0.5)


class Frames(Policy):
    """Also remembers what was seen, and in which state the episode was."""

    def __init__(self):
        super().__init__(lambda number, stamp: None)
        self.seen = []

    def observation(self, stamp_ns, observation):
        super().observation(stamp_ns, observation)
        images = {name: image.copy() for name, image in observation.images.items()}
        self.seen.append((self.views[-1].state, images, observation.joint_positions.tolist()))


@pytest.mark.parametrize("camera_hz", [0.0, 20.0])
def test_a_camera_does_not_stop_when_a_task_ends(start, camera_hz):
    """The world stands still, and is shown at the camera's rate with the time it is shown at."""
    policy = Frames()
    environment = CountingEnvironment(rate_hz=40)
    options = EpisodeOptions(mode=Mode.REALTIME, camera_rate_hz=camera_hz)
    runner, _ = start(policy, options, environment=environment)
    ended(runner)
    begin = time.monotonic()
    shown = len(policy.seen)
    wait_until(lambda: len(policy.seen) >= shown + 10, 5.0, "ten more frames")
    assert time.monotonic() - begin > 0.8 * 10 / (camera_hz or 40)
    after = policy.seen[shown:]
    assert {state for state, _, _ in after} == {EpisodeState.SUCCESS}
    assert len({images["agentview"].tobytes() for _, images, _ in after}) == 1
    assert {int(images["agentview"].max()) for _, images, _ in after} == {4}  # as it ended
    assert len(environment.actions) == 4
    assert policy.stamps == sorted(set(policy.stamps))
    assert policy.stamps[-1] > time.time_ns() - 200_000_000
    runner.request(EpisodeRequest("wait"))
    assert ended(runner, 2).step == 4
    first = next(state for state, images, _ in policy.seen if images["agentview"].max() == 0)
    assert first is EpisodeState.RUNNING  # nothing of the next episode is seen before it runs


@pytest.mark.timing
def test_real_time_pauses_before_the_next_episode_begins_by_itself(start):
    policy = Frames()
    runner, environment = start(policy, PAUSE)
    assert ended(runner).next_s == 0.5
    begin, shown = time.monotonic(), len(policy.seen)
    wait_until(lambda: len(environment.resets) == 2, 5.0, "the next episode")
    assert time.monotonic() - begin > 0.3
    judge("the next episode", time.monotonic() - begin, quiet=1.5, loaded=5.0)
    assert len(policy.seen) > shown + 20  # of 100 at 200 Hz
    assert [state for _, state, _ in environment.resets] == [0, 1]


def test_a_request_in_the_pause_comes_first(start):
    policy = Frames()
    runner, environment = start(policy, replace(PAUSE, reset_pause_s=30.0))
    ended(runner)
    runner.request(EpisodeRequest("count", 2))
    assert ended(runner, 2).state is EpisodeState.SUCCESS
    assert [state for _, state, _ in environment.resets] == [0, 2]


def test_lock_step_has_no_time_to_pause_and_shows_nothing_more(start):
    policy = Policy()
    options = replace(LOCKSTEP, auto_reset=True, reset_pause_s=30.0)
    _, environment = start(policy, options)
    wait_until(lambda: len(environment.resets) >= 3, 5.0, "three episodes")
    alone, _ = start(silent := Policy())
    assert ended(alone).next_s is None
    shown = len(silent.stamps)
    time.sleep(0.1)
    assert len(silent.stamps) == shown == 5


def test_a_world_that_was_lost_is_not_shown(start):
    class Broken(CountingEnvironment):
        def step(self, action, render=True):
            raise SimError("lost")

    policy = Frames()
    runner, environment = start(policy, PAUSE, environment=Broken())
    assert ended(runner).next_s == 0.5
    shown = len(policy.seen)
    wait_until(lambda: len(environment.resets) == 2, 5.0, "the next episode")
    assert shown == 1


# Requests


def test_a_new_request_ends_the_running_episode(start):
    policy = Policy(lambda number, stamp: None)
    runner, environment = start(policy, EpisodeOptions(answer_timeout_s=30.0))
    wait_until(lambda: policy.stamps, 5.0, "the first frame")
    policy.answer = lambda number, stamp: act(stamp, number)
    assert runner.request(EpisodeRequest("count", 2, seed=5)) == 2
    assert ended(runner, 2).state is EpisodeState.SUCCESS
    assert environment.resets == [("count", 0, 0), ("count", 2, 5)]


def test_a_bad_request_leaves_the_episode_alone(start):
    policy = Policy()
    runner, _ = start(policy)
    view = ended(runner)
    with pytest.raises(UnknownTask, match="no task 'fly'; it has: count, wait"):
        runner.request(EpisodeRequest("fly"))
    with pytest.raises(UnknownTask, match="0 to 2"):
        runner.request(EpisodeRequest("count", 3))
    assert runner.view() == view


def test_auto_reset_goes_round_the_initial_states(start):
    policy = Policy()
    _, environment = start(policy, replace(LOCKSTEP, auto_reset=True), initial_state=1)
    wait_until(lambda: len(environment.resets) >= 4, 5.0, "four episodes")
    assert [state for _, state, _ in environment.resets[:4]] == [1, 2, 0, 1]


def test_max_steps_can_be_set(start):
    runner, _ = start(Policy(), max_steps=2)
    assert ended(runner).reason == "not solved within 2 steps"


@pytest.mark.parametrize("error", [SimError("the simulation was lost"), ZeroDivisionError("bug")])
def test_a_lost_simulation_fails_the_episode_and_not_the_next(start, error):
    class Broken(CountingEnvironment):
        def reset(self, task, initial_state, seed=0, render=True):
            if initial_state == 0:
                raise error
            return super().reset(task, initial_state, seed, render)

    runner, _ = start(Policy(), environment=Broken())
    view = ended(runner)
    assert view.state is EpisodeState.FAILURE
    assert str(error) in view.reason
    runner.request(EpisodeRequest("count", 1))
    assert ended(runner, 2).state is EpisodeState.SUCCESS


def test_auto_reset_gives_up_on_a_simulation_that_is_always_lost(start):
    class Broken(CountingEnvironment):
        def reset(self, task, initial_state, seed=0, render=True):
            self.resets.append((task, initial_state, seed))
            raise SimError("lost")

    environment = Broken()
    runner, _ = start(Policy(), replace(LOCKSTEP, auto_reset=True), environment=environment)
    assert ended(runner, 3).next_s is None
    assert len(environment.resets) == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [("", "count to four"), (" push the moon ", "push the moon"), (" ", "")],
    ids=["the task's own", "another", "none"],
)
def test_the_policy_is_told_what_the_request_says(start, given, told):
    policy = Policy()
    runner, _ = start(policy, instruction=given)
    view = ended(runner)
    assert policy.begun == [told]
    assert view.instruction == told
    assert view.state is EpisodeState.SUCCESS  # judged by the task, whatever was said
