"""Why the loop does what it does, in the words that the status and the log show."""

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.action_space import ActionKind, end_effectors, joints
from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.core.types import CommandKind, PolicyState
from vla_ros.runtime.control.goals import Goal, GoalOutcome, GoalRefused
from vla_ros.runtime.safety import Limits

BOTH = pytest.mark.parametrize("lockstep", [False, True], ids=["realtime", "lockstep"])


def said(bench):
    return [(state.state.name, state.reason) for state in bench.out.states]


def warned(bench, kind):
    return [text for of, text in bench.out.warnings if of == kind]


@BOTH
def test_from_activation_to_running_it_says_what_it_waits_for(lockstep):
    bench = Bench(lockstep=lockstep)
    assert bench.loop.safety.since_ns == bench.clock.steady
    assert bench.loop.safety.reason == "inactive"
    bench.clock.advance(1.0)
    bench.control.activate()
    assert bench.loop.safety.since_ns == bench.clock.steady
    bench.clock.advance(1.0)
    bench.control.set_instruction("reach")
    bench.control.stop()
    bench.control.resume()
    bench.clock.advance(1.0)
    bench.control.deactivate()
    assert said(bench) == [
        ("WAITING", "waits for an instruction"),
        ("WAITING", "waits for a fresh frame and a valid action"),
        ("WAITING", "stopped: waits for resume or another instruction"),
        ("WAITING", "waits for a fresh frame and a valid action"),
        ("INACTIVE", "inactive"),
    ]
    assert bench.loop.safety.since_ns == bench.clock.steady
    assert bench.control.resume() is True and bench.control.resume() is False


def test_of_a_change_both_sides_are_told():
    bench, heard = Bench(), []
    bench.out.changed = lambda before, after: heard.append((before.reason, after.reason))
    bench.control.activate()
    assert heard == [("inactive", "waits for an instruction")]


def test_whoever_gives_another_task_hears_of_its_epoch_though_the_state_stays():
    bench = Bench().ready()
    heard, state = [], bench.loop.safety
    bench.out.changed = lambda before, after: heard.append((before, after))
    bench.control.set_instruction("push")
    assert heard == [(state, state)]


@BOTH
def test_an_episode_s_end_says_how(lockstep):
    bench = Bench(lockstep=lockstep)
    bench.control.activate()
    bench.control.episode_runs(3, 0)
    bench.control.episode_over(3, "too slow")
    assert said(bench)[-1] == ("WAITING", "the episode is over: too slow")
    bench.control.reset()
    assert said(bench)[-1] == ("WAITING", "waits for an instruction")


@BOTH
def test_a_lost_worker_s_reason_is_shown_until_another_is_ready(lockstep):
    bench = Bench(lockstep=lockstep)
    bench.control.activate()
    bench.control.worker_lost("the worker was killed")
    assert said(bench)[-1] == ("WAITING", "waits for an instruction")
    bench.control.set_instruction("reach")
    assert said(bench)[-1] == ("WAITING", "the worker was killed")
    bench.control.worker_ready()
    assert said(bench)[-1] == ("WAITING", "waits for a fresh frame and a valid action")
    bench.running_either()
    bench.control.worker_lost("killed again")
    assert said(bench)[-1] == ("HOLD", "killed again")
    bench.control.worker_ready()
    bench.running_either()
    bench.control.worker_switched("it hung")
    assert said(bench)[-1] == ("WAITING", "it hung; the spare worker took over")


@BOTH
def test_a_fault_is_named_and_while_inactive_it_is_only_named(lockstep):
    bench = Bench(lockstep=lockstep)
    bench.control.fault("no such checkpoint")
    assert (bench.state, bench.loop.safety.reason) == (
        PolicyState.INACTIVE, "inactive: no such checkpoint",
    )  # fmt: skip
    with pytest.raises(GoalRefused, match=r"^the policy node is not active$"):
        bench.control.begin_goal(Goal("pick"))
    bench.running_either()
    epoch = bench.loop.instruction.epoch
    bench.clock.advance(1.0)
    bench.control.fault("broken")
    assert (bench.state, bench.loop.safety.reason) == (PolicyState.FAULT, "broken")
    assert bench.loop.safety.since_ns == bench.clock.steady
    assert bench.loop.instruction.epoch == epoch + 1
    with pytest.raises(GoalRefused, match=r"^the policy node is in FAULT, call ~/recover: broken$"):
        bench.control.begin_goal(Goal("pick"))


@BOTH
def test_an_answer_that_is_no_action_is_counted_and_said_and_another_may_be_asked(lockstep):
    bench = Bench(lockstep=lockstep, chunk=4).ready()
    frame = bench.frame()
    bench.answer(frame, np.zeros((0, 7)))
    line = "the policy returned no action"
    assert bench.loop.counters.last_block == line
    assert warned(bench, "invalid") == [f"invalid action dropped: {line}"]
    bench.clock.advance(0.05)
    asked = len(bench.out.submitted)
    bench.frame()
    assert len(bench.out.submitted) == asked + 1, "the answer is not awaited any more"
    bench.control.invalid(bench.loop.instruction.epoch - 1, "of an old epoch")
    assert bench.loop.counters.actions_blocked == 1


@BOTH
def test_dropped_frames_are_counted_with_the_last_reason(lockstep):
    bench = Bench(lockstep=lockstep)
    bench.running_either()
    begun = bench.loop.counters.frames_received
    assert begun == 1
    bench.frame(0)
    bench.frame(bench.clock.now - 20 * MS)
    counters = bench.loop.counters
    assert (counters.frames_received, counters.frames_dropped) == (3, 2)
    assert counters.last_drop == "out of order by 20.0 ms"
    assert warned(bench, "frame") == [
        "frame dropped: stamp is zero: the camera driver must fill header.stamp",
        "frame dropped: out of order by 20.0 ms",
    ]


@pytest.mark.parametrize(
    ("ahead_ms", "sim_time", "says"),
    [
        (6, False, "stamp lies 6.0 ms in the future: synchronize the clocks"),
        (51, True, "stamp lies 51.0 ms in the future: synchronize the clocks"),
        (-501, False, "older than max_age: 501 ms"),
        (5, False, ""), (50, True, ""), (-500, False, ""),
    ],
)  # fmt: skip
def test_a_frame_may_be_as_old_or_as_early_as_is_said(ahead_ms, sim_time, says):
    bench = Bench(sim_time=sim_time).ready()
    bench.frame(bench.clock.now + ahead_ms * MS)
    assert bench.loop.counters.last_drop == says
    assert len(bench.out.submitted) == (not says)


@pytest.mark.parametrize(
    ("now_s", "stamp_s", "sim_time", "says"),
    [
        (0, 1005.56, True, "no /clock has come yet: start what publishes it, or set use_sim_time"),
        (1.7e9, 5000, False, "the stamp counts 5000 s, as of simulated time or since a machine's"),
        (
            1.7e9,
            1.6e9,
            False,
            "machine's clock 1700000000 s: an old bag's, which needs use_sim_time",
        ),
        (5000, 1.7e9, False, "this machine's clock 5000 s: an old bag's"),
        (5000, 1.7e9, True, "/clock 5000 s: the stamps must be of /clock's time"),
    ],
)
def test_a_stamp_of_another_clock_is_named_with_the_remedy(now_s, stamp_s, sim_time, says):
    bench = Bench(sim_time=sim_time)
    bench.clock.now = round(now_s * SECOND)
    bench.control.activate()
    bench.frame(round(stamp_s * SECOND))
    assert says in bench.loop.counters.last_drop, bench.loop.counters.last_drop


def test_a_clock_that_comes_moments_after_the_first_frames_is_no_warning():
    bench = Bench(sim_time=True)
    bench.clock.now = 0
    bench.control.activate()
    for warnings in (0, 0, 1):
        bench.frame(SECOND)
        assert len(warned(bench, "frame")) == warnings
        bench.clock.steady += 2 * SECOND
    assert bench.loop.counters.frames_dropped == 3


def test_the_first_stamps_of_a_clock_that_begins_at_zero_are_taken():
    bench = Bench(sim_time=True)
    bench.clock.now = 0
    bench.control.activate()
    bench.frame(1)
    assert bench.loop.counters.last_drop == ""
    bench.frame(1)
    assert bench.loop.counters.last_drop == "stamp repeated"


@BOTH
@pytest.mark.parametrize("detect", [False, True])
def test_frozen_pixels_are_said_and_end_the_motion_where_that_is_asked_for(lockstep, detect):
    bench = Bench(lockstep=lockstep, **({"detect_frozen": True} if detect else {}))
    bench.running_either()
    for _ in range(25):
        bench.clock.advance(0.05)
        bench.answer(bench.frame())
        bench.control.tick()
    line = "frames of the main camera with new stamps show identical pixels"
    assert set(warned(bench, "frozen")) == ({line} if detect else set())
    reasons = [text for _, text in said(bench)]
    assert ("the main camera's pixels have not changed for 1 s" in reasons) is detect
    assert (bench.state is PolicyState.HOLD) is detect


@pytest.mark.parametrize(
    ("moved_s", "says"),
    [(-1.0, "the clock went back by 1000 ms"), (0.5, "the clock jumped by 500.0 ms")],
)
def test_a_jump_of_the_clock_is_said_and_everything_known_is_forgotten(moved_s, says):
    space = end_effectors(ActionKind.END_EFFECTOR_DELTA)
    bench = Bench(limits=Limits(space=space)).running()
    bench.control.measure(np.zeros(7), bench.clock.now, bench.moment())
    bench.tick()
    assert bench.loop.fresh_pose(bench.moment()) is not None
    epoch, under_way = bench.loop.instruction.epoch, bench.frame()
    bench.clock.now += round(moved_s * SECOND)
    bench.tick(0.0)
    assert said(bench)[-1] == ("HOLD", says)
    assert warned(bench, "clock") == [f"{says}: everything in flight is void"]
    assert bench.loop.latest is None and bench.out.commands[-1].latest_ns == 0
    assert bench.loop.fresh_pose(bench.moment()) is None
    assert bench.loop.instruction.epoch == epoch + 1
    bench.answer(under_way, epoch=epoch)
    assert [c.kind for c in bench.tick(0.0)] == [CommandKind.STOP]
    bench.frame(bench.clock.now)
    assert bench.loop.counters.last_drop == "", "a stamp before the jump is no measure"


def test_a_clock_may_differ_by_its_tolerance_and_no_more():
    bench = Bench().running()
    for moved_ms, state in ((10, PolicyState.RUNNING), (-10, PolicyState.RUNNING), (11, "HOLD")):
        bench.clock.now += moved_ms * MS
        bench.cycle()
        assert bench.state.name == getattr(state, "name", state)


def test_in_lock_step_a_simulation_that_went_back_holds_too():
    bench = Bench(lockstep=True).running_either()
    bench.clock.now -= 2 * SECOND
    bench.control.tick()
    assert said(bench)[-1] == ("HOLD", "the clock went back by 2000 ms")


def test_a_simulated_clock_that_stands_still_is_said_once_it_is_too_long():
    bench = Bench(sim_time=True).running()
    bench.tick()
    bench.clock.steady += 500 * MS
    bench.control.tick()
    assert bench.state is PolicyState.RUNNING
    bench.clock.steady += 100 * MS
    bench.control.tick()
    assert said(bench)[-1] == ("HOLD", "/clock has stood still for 0.6 s")


@pytest.mark.parametrize(
    ("depth", "inference_s", "after_s"), [(1, 0.0, 1.0), (3, 0.3, 1.35), (9, 0.0, 1.35)]
)
def test_a_pipeline_that_gives_nothing_is_said_after_three_of_its_times(
    depth, inference_s, after_s
):
    bench = Bench(pipeline_depth=depth, inference_s=inference_s)
    bench.control.activate()
    bench.clock.advance(5.0)
    bench.control.set_instruction("reach")
    line = "frames arrive but no action came out for three pipeline times"
    said_at = []
    for tick in range(1, 41):
        bench.frame()
        bench.tick()
        if bench.loop.safety.reason == line:
            said_at.append(tick * 0.05)
    assert said_at[0] == pytest.approx(after_s + 0.05), "the first tick after it"
    assert bench.state is PolicyState.WAITING


@pytest.mark.parametrize("why", ["no frames", "no task", "it runs"])
def test_a_pipeline_is_not_blamed_for_what_it_is_not_asked(why):
    bench = Bench()
    bench.control.activate()
    if why != "no task":
        bench.control.set_instruction("reach")
    bench.frame()
    for _ in range(40):
        if why != "no frames":
            frame = bench.frame()
        if why == "it runs":
            bench.answer(frame)
        bench.tick()
    assert not any("pipeline" in text for _, text in said(bench))


@pytest.mark.parametrize(("since_ms", "blamed"), [(499, True), (500, False)])
def test_a_pipeline_is_blamed_only_while_frames_arrive(since_ms, blamed):
    bench = Bench().ready()
    bench.tick(1.0)
    bench.frame()
    bench.tick(since_ms / 1000)
    assert ("pipeline" in bench.loop.safety.reason) is blamed


def test_of_joints_it_is_a_joint_state_that_is_too_old():
    space = joints(ActionKind.JOINT_DELTA, ("hip", "knee"))
    bench = Bench(limits=Limits(space=space, low=(-1.0,) * 2, high=(1.0,) * 2))
    received = Moment(bench.clock.now, bench.clock.steady)
    bench.control.measure(np.zeros(1), received.now_ns - SECOND, received, [1])
    line = "the measured joint state is 1000 ms old by its stamp"
    assert bench.loop.counters.last_drop == line


@pytest.mark.parametrize(
    ("age_ms", "sim_time", "taken"),
    [
        (-5, False, True), (-6, False, False), (-50, True, True), (-51, True, False),
        (500, False, True), (501, False, False),
    ],
)  # fmt: skip
def test_a_measurement_is_taken_within_the_ages_of_frames(age_ms, sim_time, taken):
    bench = Bench(sim_time=sim_time)
    received = Moment(bench.clock.now, bench.clock.steady)
    bench.control.measure(np.zeros(7), received.now_ns - age_ms * MS, received)
    drop = "" if taken else f"the measured pose is {age_ms} ms old by its stamp"
    assert bench.loop.counters.last_drop == drop
    assert (bench.loop.fresh_pose(received) is not None) is taken


@pytest.mark.parametrize("sim_time", [False, True])
def test_in_a_simulation_that_stands_still_a_measurement_grows_no_older(sim_time):
    bench = Bench(sim_time=sim_time)
    bench.control.measure(np.zeros(7), bench.clock.now, bench.moment())
    bench.clock.steady += SECOND
    assert (bench.loop.fresh_pose(bench.moment()) is not None) is sim_time


@BOTH
def test_a_stop_says_who_called_it(lockstep):
    bench = Bench(lockstep=lockstep)
    bench.control.activate()
    assert bench.control.stop() is False, "there is no task"
    ended = []
    bench.loop.goals.ended = ended.append
    for stop in (bench.control.stop, lambda: bench.control.set_instruction("")):
        bench.control.begin_goal(Goal("pick"))
        assert stop() is True
    bench.control.begin_goal(Goal("pick"))
    assert bench.control.end_goal(GoalOutcome.SUCCESS, "done") is True
    assert bench.control.end_goal(GoalOutcome.SUCCESS, "done") is False
    bench.control.begin_goal(Goal("pick"))
    bench.control.deactivate()
    bench.control.activate()
    bench.control.begin_goal(Goal("pick"))
    bench.control.shut_down()
    assert [(e.outcome, e.message) for e in ended] == [
        (GoalOutcome.CANCELED, "~/stop was called"),
        (GoalOutcome.CANCELED, "an empty instruction was said"),
        (GoalOutcome.SUCCESS, "done"),
        (GoalOutcome.FAILED, "the policy node was deactivated"),
        (GoalOutcome.FAILED, "the policy node is shutting down"),
    ]


@BOTH
def test_what_a_stop_withholds_is_said(lockstep):
    bench = Bench(lockstep=lockstep).running_either()
    bench.control.stop()
    assert bench.control.set_instruction("reach") is False
    says = "'reach' was stopped: resume, or give another instruction"
    assert warned(bench, "ignored") == [says] and says in bench.loop.safety.said


@BOTH
def test_in_fault_no_frame_is_shown_and_the_newest_is_after_it(lockstep):
    bench = Bench(lockstep=lockstep).running_either()
    bench.control.fault("broken")
    shown = len(bench.out.submitted)
    bench.clock.advance(0.05)
    bench.frame()
    assert len(bench.out.submitted) == shown
    bench.control.recover()
    assert len(bench.out.submitted) == shown + 1, "the newest is shown at once"
