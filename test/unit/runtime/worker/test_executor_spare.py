"""Real workers, one of which stands by: it answers at once where the other one is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.processes import alive
from support.wait import wait_until
from unit.runtime.worker import faulty_policies as faulty
from unit.runtime.worker.bench import Bench, MakeBench
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicySpec
from vla_ros.runtime.worker import memory
from vla_ros.runtime.worker.wire import (
    SpareLost,
    SpareReady,
    WorkerGaveUp,
    WorkerLimits,
    WorkerLost,
    WorkerReady,
    WorkerSwitched,
)

LIMITS = WorkerLimits(spare=True)


def with_spare(make_bench: MakeBench, **options: object) -> tuple[Bench, int, int]:
    """An executor with both its workers: their process ids."""
    bench = make_bench(faulty.load_obedient, limits=LIMITS, **options)
    serving = bench.executor.start(10).pid
    return bench, serving, bench.event(SpareReady, 10).pid


def test_it_answers_after_the_loss_and_another_one_is_loaded(make_bench: MakeBench) -> None:
    bench, serving, spare = with_spare(make_bench)
    before = bench.result(bench.ask())
    began = time.monotonic()
    os.kill(serving, signal.SIGKILL)
    switched = bench.event(WorkerSwitched)
    assert switched.ready.pid == spare
    # How it ended is not waited for long.
    assert switched.reason in ("the worker was killed by SIGKILL", "the worker closed its channel")
    result = bench.result(bench.ask())
    print(f"the answer came {1e3 * (time.monotonic() - began):.1f} ms after the SIGKILL")
    assert result.inference is not None and before.inference is not None
    assert result.inference.actions[0, 1] == 1, "its first task"
    another = bench.event(SpareReady, 10).pid
    assert another not in (serving, spare)
    bench.executor.close()
    assert not any(map(alive, (serving, spare, another)))


def test_while_it_stands_by_it_takes_no_frames_and_no_rings(make_bench: MakeBench) -> None:
    bench, _, spare = with_spare(make_bench)
    stat = Path(f"/proc/{spare}/stat")
    busy = stat.read_text().split()[13:15]
    for _ in range(200):
        assert bench.result(bench.ask()).inference is not None
    assert bench.results.empty(), "each is answered once"
    assert sum(map(int, stat.read_text().split()[13:15])) - sum(map(int, busy)) <= 2  # of 10 ms


def test_what_was_asked_of_the_lost_one_is_not_asked_of_it(make_bench: MakeBench) -> None:
    bench, _, spare = with_spare(make_bench)
    bench.ask("exit")
    assert bench.event(WorkerSwitched).ready.pid == spare
    bench.event(SpareReady, 10)
    assert bench.events.empty() and bench.results.empty() and alive(spare)


def test_a_policy_that_kills_each_worker_is_given_up_as_without_a_spare(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(faulty.load_obedient, limits=WorkerLimits(spare=True, max_respawns=1))
    bench.executor.start(10)
    bench.event(SpareReady, 10)
    bench.ask("exit")
    bench.event(WorkerSwitched)
    spare = bench.event(SpareReady, 10).pid
    bench.ask("exit")
    bench.event(WorkerLost)
    assert "1 replacements" in bench.event(WorkerGaveUp).reason
    wait_until(lambda: not alive(spare), 2.0, "the end of the spare worker")
    bench.executor.restart()
    bench.event(WorkerReady)
    bench.event(SpareReady, 10)


def test_a_spare_that_is_killed_is_replaced_and_nobody_else_notices(make_bench: MakeBench) -> None:
    bench, serving, spare = with_spare(make_bench)
    os.kill(spare, signal.SIGKILL)
    lost = bench.event(SpareLost)
    assert not lost.final and "SIGKILL" in lost.reason
    assert bench.event(SpareReady, 10).pid not in (serving, spare)
    assert bench.result(bench.ask()).inference is not None and alive(serving)


def test_without_room_the_service_goes_on_without(make_bench: MakeBench, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 0)
    bench = make_bench(faulty.load_obedient, limits=LIMITS)
    pid = bench.executor.start(10).pid
    lost = bench.event(SpareLost)
    assert lost.final and "MiB are free" in lost.reason
    assert bench.result(bench.ask()).inference is not None
    os.kill(pid, signal.SIGKILL)
    bench.event(WorkerLost)
    bench.event(WorkerReady)
    assert bench.event(SpareLost).final, "said again beside another worker"
    assert bench.result(bench.ask()).inference is not None


def test_one_that_is_refused_while_it_loads_ends_nothing(make_bench: MakeBench, tmp_path) -> None:
    spec = PolicySpec("replay", replay_file=str(tmp_path / "flag"))
    bench = make_bench(faulty.load_once, spec, LIMITS)
    bench.executor.start(10)
    assert bench.event(SpareLost, 10) == SpareLost("the checkpoint is gone", final=True)
    assert bench.result(bench.ask()).inference is not None


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
def test_it_steps_back_until_it_serves(make_bench: MakeBench) -> None:
    def score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    ours = os.sched_getaffinity(0)
    bench, serving, spare = with_spare(
        make_bench, spec=PolicySpec(engine=EngineOptions(num_threads=1))
    )
    assert len(os.sched_getaffinity(spare)) == 1 and score(spare) == 1000
    assert os.sched_getaffinity(serving) == ours
    os.kill(serving, signal.SIGKILL)
    bench.event(WorkerSwitched)
    threads = map(int, os.listdir(f"/proc/{spare}/task"))
    assert all(os.sched_getaffinity(thread) == ours for thread in threads)
    assert score(spare) == score(os.getpid())


def test_halt_ends_it_too_and_restart_loads_both(make_bench: MakeBench) -> None:
    bench, serving, spare = with_spare(make_bench)
    bench.executor.halt()
    wait_until(lambda: not alive(serving) and not alive(spare), 2.0, "the end of both")
    bench.executor.restart()
    bench.event(WorkerReady)
    bench.event(SpareReady, 10)


PARENT = """
import time
from unit.runtime.worker import faulty_policies as faulty
from unit.runtime.worker.bench import Bench
from vla_ros.runtime.worker.wire import (SpareReady, WorkerLimits)
from vla_ros.policies import PolicySpec

bench = Bench(PolicySpec(), WorkerLimits(spare=True), faulty.load_obedient)
ready = bench.executor.start(20)
print(ready.pid, bench.event(SpareReady, 20).pid, flush=True)
time.sleep(600)
"""


def test_a_killed_parent_takes_both_with_it() -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(alive, pids))
        parent.kill()
    wait_until(lambda: not any(map(alive, pids)), 5.0, "the end of both")
