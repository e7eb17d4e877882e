"""What survives deactivation, a stop and a cleanup: nothing that moves a robot by itself."""

import numpy as np
import pytest

from unit.runtime.control.bench import Bench
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import GRIPPER, CommandKind, PolicyState
from vla_ros.runtime.safety import Limits

CLOSED = np.array([0.01] * 6 + [0.0])


def test_activation_forgets_gripper_and_motion():
    """A gripper opened by hand between two activations must not be closed by the second."""
    bench = Bench().running()
    bench.cycle(CLOSED)
    bench.control.deactivate()
    begin = len(bench.out.commands)
    bench.control.activate()
    for _ in range(30):
        bench.tick()
    bench.control.shut_down()
    assert bench.out.commands[begin:] == [], "nothing before the first action"


def test_the_first_gripper_of_an_activation_is_the_one_its_action_asked_for():
    bench = Bench().ready()
    (command,) = bench.cycle(np.array([0.0] * 6 + [0.97]))
    assert command.action[GRIPPER] == 0.97, "no hysteresis around a value nobody commanded"


def test_a_gripper_dwells_on_the_steady_clock():
    bench = Bench(limits=Limits(gripper_dwell_s=0.15)).running()  # gripper at 0.01: closed
    bench.cycle(np.array([0.0] * 6 + [1.0]))
    for _ in range(4):
        bench.cycle(np.array([0.0] * 6 + [1.0]))
    assert bench.out.commands[-1].action[GRIPPER] == 1.0
    bench.clock.now -= 30 * SECOND  # the wall clock is set back
    for _ in range(6):
        bench.cycle(CLOSED)
    assert bench.state is PolicyState.RUNNING
    assert bench.out.commands[-1].action[GRIPPER] == 0.0


@pytest.mark.parametrize(
    ("sim_time", "now_ms", "ticks"), [(False, 46, 3), (True, 100, 2), (True, 30, 5)]
)
def test_a_gripper_dwells_by_the_clock_of_its_world(sim_time, now_ms, ticks):
    """150 ms: of steady time, and of simulated time where the world has its own."""
    bench = Bench(sim_time=sim_time).running()
    sides = []
    for _ in range(6):
        bench.clock.now += now_ms * MS
        bench.clock.steady += 50 * MS
        bench.answer(bench.frame(), np.array([0.01] * 6 + [1.0]))
        bench.tick(0.0)
        sides.append(bench.out.commands[-1].action[6])
    assert sides.index(1.0) == ticks - 1, "it was set at the first action"


def test_a_simulation_that_starts_over_leaves_the_gripper_free():
    bench = Bench(sim_time=True).running()
    for _ in range(4):
        bench.cycle(np.array([0.0] * 6 + [1.0]))
    bench.clock.now -= 300 * SECOND
    for _ in range(8):
        bench.cycle(CLOSED)
    assert bench.state is PolicyState.RUNNING
    assert bench.out.commands[-1].action[GRIPPER] == 0.0


@pytest.mark.parametrize("lockstep", [False, True], ids=["realtime", "lockstep"])
def test_observation_from_the_future_moves_nothing(lockstep):
    """The clock went back between the frame and its answer, and no tick has seen it yet."""
    bench = Bench(lockstep=lockstep, sim_time=True).running_either()
    bench.clock.advance(0.05)
    observation = bench.frame()
    bench.loop.latest = None
    bench.clock.now -= 50 * SECOND
    bench.answer(observation)
    begin = len(bench.out.commands)
    if not lockstep:
        bench.control.act(bench.moment())
    kinds = [c.kind for c in bench.out.commands[begin - 1 if lockstep else begin :]]
    assert CommandKind.POLICY not in kinds
    assert "future" in bench.loop.counters.last_block


# A stop lasts


def moves(bench):
    """True if frames and their answers lead to an action."""
    return CommandKind.POLICY in bench.play(4)


@pytest.fixture(params=[False, True], ids=["realtime", "lockstep"])
def bench(request):
    bench = Bench(lockstep=request.param).ready()
    assert moves(bench)
    return bench


@pytest.mark.parametrize("how", ["service", "empty instruction"])
def test_a_stop_lasts_while_its_instruction_is_repeated(bench, how):
    if how == "service":
        bench.control.stop()
    else:
        bench.control.set_instruction("")
    for _ in range(3):
        assert not bench.control.set_instruction("reach")
        assert not moves(bench)
    assert bench.state is PolicyState.WAITING
    assert "stopped" in bench.loop.safety.reason
    bench.control.stop()  # again: what it interrupted is not forgotten
    assert bench.control.resume()
    assert bench.loop.instruction.text == "reach" and moves(bench)


def test_another_instruction_ends_a_stop_and_after_it_the_old_one_is_another(bench):
    bench.control.stop()
    assert bench.control.set_instruction("push") and moves(bench)
    assert bench.control.set_instruction("reach") and moves(bench)


def test_there_is_nothing_to_resume_where_nothing_was_stopped(bench):
    assert not bench.control.resume()
    bench.control.stop()
    assert bench.control.resume() and not bench.control.resume()


def test_reset_and_recover_do_not_end_a_stop_but_a_new_episode_takes_its_instruction(bench):
    bench.control.stop()
    bench.control.recover()
    assert not bench.control.set_instruction("reach") and not moves(bench)
    bench.control.reset()
    assert not moves(bench), "a reset alone moves nothing"
    assert bench.control.set_instruction("reach") and moves(bench)


def test_activation_resumes_nothing_unasked(bench):
    bench.control.deactivate()
    bench.control.set_instruction("reach")  # an upstream node goes on repeating
    bench.control.activate()
    bench.control.set_instruction("reach")
    assert not moves(bench) and "stopped" in bench.loop.safety.reason
    assert bench.control.resume() and moves(bench)


def test_an_instruction_given_before_the_first_activation_is_obeyed():
    bench = Bench()
    bench.control.set_instruction("reach")
    bench.control.activate()
    assert moves(bench)


def test_an_instruction_given_while_inactive_is_obeyed_if_it_is_another(bench):
    bench.control.deactivate()
    assert bench.control.set_instruction("push")
    bench.control.activate()
    assert moves(bench)


def test_a_stop_while_nothing_is_known_yet_holds_back_whatever_comes():
    bench = Bench()
    bench.persistent.latch.close()  # stop was called while the weights loaded
    assert not bench.control.set_instruction("reach")
    bench.control.activate()
    assert not bench.control.set_instruction("push") and not moves(bench)
    assert bench.control.resume() and bench.loop.instruction.text == "push" and moves(bench)


def test_numbers_and_stops_outlive_a_cleanup(bench):
    last, epoch = bench.out.commands[-1], bench.loop.instruction.epoch
    bench.control.deactivate()
    again = Bench(lockstep=bench.lockstep, persistent=bench.persistent)
    assert again.control.loop.instruction.epoch > epoch
    again.control.activate()
    assert not again.control.set_instruction("reach"), "the latched topic says it again"
    assert again.control.resume()
    again.clock = again.control.clock
    assert moves(again)
    assert again.out.commands[0].sequence > last.sequence
    assert again.out.commands[0].epoch > epoch
