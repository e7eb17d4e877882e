"""A halted executor has no worker and gets none before a restart."""

from __future__ import annotations

import time

import pytest

from support.processes import alive
from support.wait import wait_until
from unit.runtime.worker import faulty_policies as faulty
from unit.runtime.worker.bench import MakeBench
from vla_ros.runtime.worker.process import WorkerProcess
from vla_ros.runtime.worker.wire import WorkerGone, WorkerReady


def test_halt_kills_the_worker_without_an_event_until_restart(make_bench: MakeBench) -> None:
    bench = make_bench()
    pid = bench.executor.start(10).pid
    bench.executor.halt()
    wait_until(lambda: not alive(pid), 2.0, "the end of the worker")
    bench.ask()  # submitting goes on without a worker
    time.sleep(0.3)
    assert bench.events.empty()
    assert bench.results.empty()
    bench.executor.restart()
    assert bench.event(WorkerReady).ready.pid != pid
    assert bench.result(bench.ask()).inference is not None


def test_halt_ends_a_worker_that_hangs_and_one_that_is_still_loading(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(faulty.load_obedient)
    pid = bench.executor.start(10).pid
    bench.ask("hang")
    bench.executor.halt()
    wait_until(lambda: not alive(pid), 2.0, "the end of the worker")
    bench.executor.restart()
    bench.executor.halt()  # the newer wish counts
    time.sleep(0.5)
    assert bench.events.empty()
    bench.executor.restart()
    assert bench.event(WorkerReady).ready.pid != pid


def test_an_executor_without_a_supervisor_says_so(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.executor.start(10)
    bench.executor.close()
    with pytest.raises(WorkerGone, match="configure again"):
        bench.executor.restart()


def test_a_worker_that_takes_its_time_to_end_is_not_called_stuck(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A busy machine, or gigabytes to give back, take longer than a node may wait."""
    bench = make_bench()
    pid = bench.executor.start(10).pid
    monkeypatch.setattr(WorkerProcess, "ended", lambda self: False)  # as slow as it gets
    bench.executor.close(0.4)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "WARNING",
        f"worker {pid} was killed and is not gone after 0.2 s: a busy machine or a large model"
        " takes longer; if it stays, its driver is stuck",
    )
