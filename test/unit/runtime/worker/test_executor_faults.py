"""Real workers that crash, hang, stop or talk nonsense: the parent goes on and replaces them."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from support.processes import alive
from support.timing import judge
from unit.runtime.worker import faulty_policies as faulty
from unit.runtime.worker.bench import MakeBench
from vla_ros.policies import PolicyRefused, PolicySpec
from vla_ros.runtime.worker.wire import (
    ErrorKind,
    WorkerGaveUp,
    WorkerLimits,
    WorkerLost,
    WorkerReady,
)


@pytest.mark.timing
def test_killed_worker_is_replaced_and_answers_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    first = bench.executor.start(10)
    bench.result(bench.ask())
    began = time.monotonic()
    os.kill(first.pid, signal.SIGKILL)
    assert "SIGKILL" in bench.event(WorkerLost).reason
    judge("a SIGKILL noticed", time.monotonic() - began, quiet=0.3, loaded=3.0)
    ready = bench.event(WorkerReady).ready
    assert ready.pid != first.pid
    assert ready.info == first.info
    assert bench.result(bench.ask()).inference is not None


@pytest.mark.timing
def test_stopped_worker_counts_as_hung(make_bench: MakeBench) -> None:
    bench = make_bench(limits=WorkerLimits(hang_timeout_s=0.3))
    pid = bench.executor.start(10).pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)  # nothing was asked, so nothing is missing
    assert bench.events.empty()
    bench.ask()
    began = time.monotonic()
    assert "not answered" in bench.event(WorkerLost).reason
    assert time.monotonic() - began > 0.25
    judge("a worker that is stopped noticed", time.monotonic() - began, quiet=0.8, loaded=4.0)
    bench.event(WorkerReady)
    assert not alive(pid)
    assert bench.result(bench.ask()).inference is not None


@pytest.mark.timing
def test_hanging_step_is_found_under_a_stream_of_frames(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_obedient, limits=WorkerLimits(hang_timeout_s=0.3))
    bench.executor.start(10)
    bench.result(bench.ask())
    began = time.monotonic()
    while bench.events.empty() and time.monotonic() - began < 6:
        bench.ask("hang", epoch=1)
        time.sleep(0.01)
    judge("a step that hangs noticed", time.monotonic() - began, quiet=0.9, loaded=5.0)
    bench.event(WorkerLost)
    bench.event(WorkerReady)
    assert bench.result(bench.ask("go", epoch=2)).inference is not None


def test_request_that_killed_a_worker_is_not_given_to_the_next(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_obedient)
    bench.executor.start(10)
    bench.ask("exit")
    assert "exit code 3" in bench.event(WorkerLost).reason
    bench.event(WorkerReady)
    time.sleep(0.2)
    assert bench.events.empty()
    assert bench.results.empty()


def test_gives_up_after_the_last_replacement_and_restarts_on_request(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(faulty.load_obedient, limits=WorkerLimits(max_respawns=2))
    bench.executor.start(10)
    for _ in range(2):
        bench.ask("raise")
        assert bench.event(WorkerLost).reason == "RuntimeError: kernel launch failed"
        bench.event(WorkerReady)
    bench.ask("raise")
    bench.event(WorkerLost)
    assert "kernel launch failed" in bench.event(WorkerGaveUp).reason
    bench.ask()  # submitting goes on without a worker
    time.sleep(0.3)
    assert bench.events.empty()
    bench.executor.restart()
    bench.event(WorkerReady)
    assert bench.result(bench.ask()).inference is not None
    bench.ask("raise")  # the count begins anew
    bench.event(WorkerLost)
    bench.event(WorkerReady)


def test_failed_request_is_answered_before_the_worker_ends(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_obedient)
    bench.executor.start(10)
    result = bench.result(bench.ask("raise", epoch=4))
    assert (result.error, result.epoch) == (ErrorKind.FAILED, 4)
    assert result.error_text == "RuntimeError: kernel launch failed"
    assert result.inference is None


def test_garbage_on_the_channel_costs_the_worker_its_life(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_obedient)
    pid = bench.executor.start(10).pid
    bench.ask("garbage")
    assert "unreadable" in bench.event(WorkerLost).reason
    bench.event(WorkerReady)
    assert not alive(pid)
    assert bench.result(bench.ask()).inference is not None


def test_restart_replaces_a_healthy_worker(make_bench: MakeBench) -> None:
    bench = make_bench()
    pid = bench.executor.start(10).pid
    bench.executor.restart()
    assert bench.event(WorkerReady).ready.pid != pid
    assert not alive(pid)


def test_failing_callbacks_do_not_end_the_executor(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.executor.start(10)
    bench.executor._on_result = lambda result: 1 / 0  # type: ignore[assignment]
    bench.ask()
    time.sleep(0.1)
    bench.executor._on_result = bench.results.put
    assert bench.result(bench.ask()).inference is not None


def test_refused_policy_says_why_and_leaves_no_worker(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_refused)
    with pytest.raises(PolicyRefused, match=r"^no such unnorm_key: give one of bridge, libero$"):
        bench.executor.start(10)
    assert not bench.executor._thread.is_alive()


def test_worker_that_dies_while_loading_is_a_refusal(make_bench: MakeBench) -> None:
    with pytest.raises(PolicyRefused, match="exit code 7"):
        make_bench(faulty.load_crashing).executor.start(10)


@pytest.mark.timing
def test_worker_that_never_loads_is_a_refusal_in_time(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_never)
    began = time.monotonic()
    with pytest.raises(PolicyRefused, match="not ready within"):
        bench.executor.start(0.7)
    judge("refused", time.monotonic() - began, quiet=1.7, loaded=5.0)


def test_loader_that_cannot_travel_is_a_refusal(make_bench: MakeBench) -> None:
    with pytest.raises(PolicyRefused, match="cannot be started"):
        make_bench(lambda spec: None).executor.start(5)  # type: ignore[arg-type, return-value]


def test_replacement_that_is_refused_gives_up_at_once(make_bench: MakeBench, tmp_path) -> None:
    spec = PolicySpec("replay", replay_file=str(tmp_path / "flag"))
    bench = make_bench(faulty.load_once, spec)
    os.kill(bench.executor.start(10).pid, signal.SIGKILL)
    bench.event(WorkerLost)
    assert bench.event(WorkerGaveUp).reason == "the checkpoint is gone"


def test_replacement_that_never_loads_is_given_up(make_bench: MakeBench, tmp_path) -> None:
    spec = PolicySpec("replay", replay_file=str(tmp_path / "flag"))
    limits = WorkerLimits(load_timeout_s=0.5, max_respawns=1)
    bench = make_bench(faulty.load_once_then_never, spec, limits)
    os.kill(bench.executor.start(10).pid, signal.SIGKILL)
    bench.event(WorkerLost)
    assert "not ready in 0.5 s" in bench.event(WorkerLost).reason
    bench.event(WorkerGaveUp)


@pytest.mark.timing
def test_close_ends_a_start_that_is_still_loading(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_never)
    threading.Timer(0.3, bench.executor.close).start()
    began = time.monotonic()
    with pytest.raises(PolicyRefused, match="closed while the policy was loading"):
        bench.executor.start(10)
    judge("closed", time.monotonic() - began, quiet=2.0, loaded=5.0)
