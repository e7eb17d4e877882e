"""The simulation in a process of its own: it may hang, crash or raise, the caller goes on."""

import os
import signal
import time

import numpy as np
import pytest

from support.sim import CountingEnvironment, Troubled
from support.wait import wait_until
from vla_ros.sim.env import RefusedAction, SimError, UnknownTask
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.process import SimLost, SimProcess, SimTimeouts

STILL = [0, 0, 0, 0, 0, 0, -1]


@pytest.fixture
def start():
    started = []

    def make(factory, **timeouts):
        started.append(SimProcess(factory, SimTimeouts(**timeouts)))
        return started[-1]

    yield make
    for process in started:
        process.close()


def test_it_is_the_environment_it_holds(start):
    process = start(CountingEnvironment)
    assert process.spec == CountingEnvironment().spec
    assert process.reset("count", 1, seed=2).images["agentview"].max() == 0
    steps = [process.step(STILL) for _ in range(4)]
    assert [step.observation.images["agentview"].max() for step in steps] == [1, 2, 3, 4]
    assert [step.success for step in steps] == [False, False, False, True]
    assert process.step(STILL, render=False).observation.images == {}


def test_the_tabletop_sees_the_same_there_as_here(start):
    config = EnvConfig(image_size=32)
    here, there = config(), start(config)
    try:
        first, second = here.reset("pick_red_cube", 3), there.reset("pick_red_cube", 3)
        assert np.array_equal(first.images["wrist"], second.images["wrist"])
        first, second = here.step(STILL).observation, there.step(STILL).observation
        assert np.array_equal(first.images["agentview"], second.images["agentview"])
        assert first.poses == second.poses
    finally:
        here.close()


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_hang_is_killed_and_the_next_reset_starts_anew(start, tmp_path, where):
    process = start(Troubled("hang", where, str(tmp_path / "once")), reset_s=0.3, step_s=0.3)
    pid = process.pid
    with pytest.raises(SimLost, match=rf"{where} of the simulation took more than 0.3 s"):
        process.reset("count", 0)
        process.step(STILL)
    assert not process.alive
    assert not os.path.exists(f"/proc/{pid}")
    process.reset("count", 0)
    assert process.step(STILL).success is False
    assert process.starts == 2


def test_a_crash_is_reported_at_once(start, tmp_path):
    process = start(Troubled("crash", "step", str(tmp_path / "once")))
    process.reset("count", 0)
    began = time.monotonic()
    with pytest.raises(SimLost, match="ended with exit code 3 during step"):
        process.step(STILL)
    assert time.monotonic() - began < 3.0
    with pytest.raises(SimLost, match="reset before the next step"):
        process.step(STILL)


def test_a_kill_is_named(start):
    process = start(CountingEnvironment)
    process.reset("count", 0)
    os.kill(process.pid, signal.SIGSTOP)  # so that it cannot end before it is asked
    process.kill()
    with pytest.raises(SimLost, match=r"SIGKILL|reset before"):
        process.step(STILL)


def test_errors_of_the_environment_come_through(start, tmp_path):
    process = start(Troubled("raise", "step", str(tmp_path / "once")))
    process.reset("count", 0)
    with pytest.raises(SimError, match="ZeroDivisionError: a bug of the simulation"):
        process.step(STILL)
    assert process.step(STILL).done is False  # the process lives on
    with pytest.raises(RefusedAction, match="shape"):
        process.step([0.0] * 6)


def test_unknown_tasks_come_through(start):
    process = start(EnvConfig(image_size=32))
    with pytest.raises(UnknownTask, match=r"no task 'dance'; it has: pick_red_cube, "):
        process.reset("dance", 0)


def test_an_environment_that_cannot_be_built(start, tmp_path):
    with pytest.raises(SimError, match="ZeroDivisionError"):
        start(Troubled("raise", "start", str(tmp_path / "a")))
    with pytest.raises(SimLost, match=r"start of the simulation took more than 0\.5 s"):
        start(Troubled("hang", "start", str(tmp_path / "b")), start_s=0.5)


def test_it_ends_with_its_parent(start, tmp_path):
    """Also when it hangs and never reads its requests."""
    process = start(Troubled("hang", "reset", str(tmp_path / "once")), reset_s=0.2)
    pid = process.pid
    process._requests.send(("reset", ("count", 0, 0, True)))  # it hangs from now on
    wait_until((tmp_path / "once").exists, 5.0, "the hang")
    process._alive.close()  # what the kernel does when the parent dies
    wait_until(lambda: _ended(pid), 5.0, "the end of the process")


def _ended(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().split()[2] == "Z"
    except FileNotFoundError:
        return True
