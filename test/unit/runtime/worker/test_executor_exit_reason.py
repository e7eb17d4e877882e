"""How a worker ended is said when it is known; nothing that brings the robot back waits for it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from unit.runtime.worker import faulty_policies as faulty
from unit.runtime.worker.bench import MakeBench
from vla_ros.runtime.worker.process import WorkerProcess
from vla_ros.runtime.worker.wire import (
    SpareReady,
    WorkerDied,
    WorkerLimits,
    WorkerLost,
    WorkerReady,
    WorkerSwitched,
)

LATE_S = 0.6  # the news of the end, behind the end of the channel


@pytest.fixture
def late_news(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Of a worker whose id is a key here, its end is not seen before that steady time, s."""
    until: dict[int, float] = {}
    ended = WorkerProcess.ended

    def late(self: WorkerProcess) -> bool:
        return time.monotonic() >= until.get(self.pid, 0.0) and ended(self)

    monkeypatch.setattr(WorkerProcess, "ended", late)
    return until


def test_news_that_come_late_are_told_late(
    make_bench: MakeBench, late_news: dict[int, float]
) -> None:
    bench = make_bench()
    pid = bench.executor.start(10).pid
    late_news[pid] = time.monotonic() + LATE_S
    os.kill(pid, signal.SIGSEGV)
    assert bench.event(WorkerLost).reason == "the worker closed its channel"
    assert bench.event(WorkerDied) == WorkerDied(pid, "was killed by SIGSEGV")
    assert bench.event(WorkerReady).ready.pid != pid


def test_a_spare_takes_over_before_them(make_bench: MakeBench, late_news: dict[int, float]) -> None:
    bench = make_bench(limits=WorkerLimits(spare=True))
    pid = bench.executor.start(10).pid
    spare = bench.event(SpareReady, 10).pid
    begun: list[float] = []
    begin = WorkerProcess.begin

    def noted(self: WorkerProcess, after: int) -> None:
        begun.append(time.monotonic())
        begin(self, after)

    late_news[pid] = time.monotonic() + LATE_S
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerProcess, "begin", noted)
        patch.setattr(WorkerProcess, "exit_reason", lambda *_: str(time.monotonic()))
        os.kill(pid, signal.SIGSEGV)
        switched = bench.event(WorkerSwitched)
    assert switched.ready.pid == spare
    assert begun[0] < float(switched.reason), "it had begun when the end was asked for"
    assert bench.result(bench.ask()).inference is not None
    assert bench.event(WorkerDied, LATE_S + 3).how == "was killed by SIGSEGV"


def test_a_worker_that_we_killed_has_nothing_more_to_say(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_obedient, limits=WorkerLimits(hang_timeout_s=0.3))
    bench.executor.start(10)
    bench.ask("hang")
    assert "not answered" in bench.event(WorkerLost).reason
    bench.event(WorkerReady)
    assert bench.events.empty()


def test_one_that_writes_its_core_file_is_lost_already(
    make_bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its channel is open for as long as that takes; the watchdog's time was lost before."""
    if Path("/proc/sys/kernel/core_pattern").read_text().startswith(("|", "/")):
        pytest.skip("core files are not written into the working directory here")
    monkeypatch.chdir(tmp_path)
    bench = make_bench(faulty.load_heavy, limits=WorkerLimits(hang_timeout_s=60.0))
    pid = bench.executor.start(30).pid
    try:
        for _ in range(5):  # a busy machine may write the file before the executor gets to look
            try:
                resource.prlimit(pid, resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
            except PermissionError:
                pytest.skip("this user may not raise the limit of core files")
            bench.ask()
            os.kill(pid, signal.SIGSEGV)
            reason = bench.event(WorkerLost).reason
            news = bench.events.get(timeout=30)
            if isinstance(news, WorkerDied):  # the file was written: how it ended came late
                news = bench.events.get(timeout=30)
            assert isinstance(news, WorkerReady), news
            lost, pid = pid, news.ready.pid
            assert pid != lost
            written = sum(path.stat().st_size for path in tmp_path.glob("core*"))
            if written < faulty.HEAVY:
                break
            _remove_core_files(tmp_path)
        assert reason == "the worker was killed by SIGSEGV; its core file was not waited for"
        assert written < faulty.HEAVY, "it was waited for"
    finally:
        _remove_core_files(tmp_path)


def _remove_core_files(folder: Path) -> None:
    for path in folder.glob("core*"):
        with contextlib.suppress(OSError):
            path.unlink()
