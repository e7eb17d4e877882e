"""Frames through a real worker: newest wins, epochs, pipelines, sizes, and a clean end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import vla_ros
from support.processes import alive
from support.timing import judge
from unit.runtime.worker import faulty_policies as faulty
from unit.runtime.worker.bench import CLOCK, MakeBench, frame
from vla_ros.core.types import STAGES, Instruction, Observation, Pose
from vla_ros.policies import PolicySpec
from vla_ros.runtime.worker.wire import ErrorKind, FrameRefused


def test_newest_frame_wins_under_500_hz(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_obedient)
    bench.executor.start(10)
    slowest, count = 0.0, 250
    image = np.zeros((480, 640, 3), np.uint8)
    due = time.monotonic()
    for stamp in range(1, count + 1):
        image[0, 0, 0] = stamp % 256
        began = time.perf_counter()
        observation = Observation(stamp, stamp, CLOCK.steady_ns(), image)
        bench.executor.submit(observation, Instruction("slow", 0))
        slowest = max(slowest, time.perf_counter() - began)
        due += 0.002
        time.sleep(max(0.0, due - time.monotonic()))
    stamps, results = [], []
    while not stamps or stamps[-1] != count:
        results.append(bench.result())
        stamps.append(results[-1].request_stamp_ns)
    assert stamps == sorted(set(stamps))
    assert len(stamps) < count / 4  # a step takes ten periods: old frames were skipped
    for result in results:
        assert result.inference is not None
        assert result.inference.actions[0, 0] == result.request_stamp_ns % 256
    assert bench.results.empty()
    assert slowest < 0.1


def test_result_says_which_observation_and_stages_sum(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.executor.start(10)
    observation = frame(17)
    bench.executor.submit(observation, Instruction("go", 3))
    result = bench.result()
    assert result.request_stamp_ns == 17
    assert (result.epoch, result.instruction_digest) == (3, Instruction("go", 3).digest)
    assert result.received_ns == observation.received_ns
    assert result.received_steady_ns == observation.received_steady_ns
    assert result.error is ErrorKind.NONE
    assert result.inference is not None
    timeline = result.inference.timeline
    assert timeline.start_ns == observation.received_steady_ns
    assert [stage for stage, _ in timeline.marks] == list(STAGES[1:-1])
    total_ms = (timeline.end_ns - timeline.start_ns) / 1e6
    assert sum(timeline.durations_ms().values()) == pytest.approx(total_ms, abs=1e-6)
    assert timeline.end_ns <= result.returned_steady_ns


def test_policy_is_reset_when_task_or_epoch_changes(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_obedient)
    bench.executor.start(10)
    seen = []
    for text, epoch in (("a", 0), ("a", 0), ("b", 0), ("b", 1), ("b", 1)):
        inference = bench.result(bench.ask(text, epoch)).inference
        assert inference is not None
        seen.append(inference.actions[0, 1])
    assert seen == [1, 1, 2, 3, 3]


def test_pipeline_names_the_older_observation_and_its_receipt(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_pipelined)
    assert bench.executor.start(10).info.pipeline_depth == 3
    frames = [frame(stamp) for stamp in (10, 20, 30)]
    results = []
    for observation in frames:
        bench.executor.submit(observation, Instruction("go", 0))
        results.append(bench.result())
    assert [r.inference is None for r in results] == [True, True, False]
    assert {r.error for r in results} == {ErrorKind.NONE}
    last = results[2]
    assert last.inference is not None
    assert (last.request_stamp_ns, last.inference.stamp_ns) == (30, 10)
    assert last.received_steady_ns == frames[0].received_steady_ns
    assert last.received_ns == frames[0].received_ns


def test_invalid_and_memory_results_leave_the_worker_alive(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_obedient)
    bench.executor.start(10)
    invalid = bench.result(bench.ask("invalid"))
    assert (invalid.error, invalid.error_text) == (ErrorKind.INVALID, "token 5 is no action token")
    memory = bench.result(bench.ask("memory"))
    assert (memory.error, memory.error_text) == (ErrorKind.MEMORY, "MemoryError: no room")
    assert bench.result(bench.ask("nothing")).inference is None
    assert bench.result(bench.ask()).inference is not None
    assert bench.events.empty()


def test_out_of_memory_is_tried_once_more_after_a_flush(make_bench: MakeBench) -> None:
    bench = make_bench(faulty.load_obedient)
    bench.executor.start(10)
    result = bench.result(bench.ask("memory-once"))
    assert result.error is ErrorKind.NONE
    assert result.inference is not None
    assert result.inference.actions[0, 1] == 2  # reset for the task, and to flush


def test_replayed_nan_is_an_invalid_result(make_bench: MakeBench, tmp_path) -> None:
    rows = np.zeros((3, 7))
    rows[1, 2] = np.nan
    np.save(tmp_path / "rows.npy", rows)
    bench = make_bench(spec=PolicySpec("replay", replay_file=str(tmp_path / "rows.npy")))
    bench.executor.start(10)
    kinds = [bench.result(bench.ask()).error for _ in range(4)]
    assert kinds == [ErrorKind.NONE, ErrorKind.INVALID, ErrorKind.NONE, ErrorKind.NONE]


def test_worker_gets_all_of_the_observation(make_bench: MakeBench) -> None:
    bench = make_bench(spec=PolicySpec("scripted"))
    bench.executor.start(10)
    bare = bench.result(bench.ask("pick up the red cube and place it on the plate"))
    assert bare.error is ErrorKind.INVALID
    assert "ground truth" in bare.error_text
    pose = Pose((0.0, 0.0, 0.3), (1.0, 0.0, 0.0, 0.0))
    below = Pose((0.1, 0.05, 0.02), (0.0, 0.0, 0.0, 1.0))
    image = np.zeros((8, 8, 3), np.uint8)
    fingers = {"finger_left": pose, "finger_right": below}
    poses = {"gripper": pose, "red_cube": below, "plate": below, **fingers}
    seen = Observation(99, 1, CLOCK.steady_ns(), image, image, np.arange(7.0), poses)
    bench.executor.submit(seen, Instruction("pick up the red cube and place it on the plate", 0))
    result = bench.result(99)
    assert result.inference is not None, result.error_text
    assert np.abs(result.inference.actions[0, :6]).max() > 0


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2000, 4000, 3), np.uint8), ((8, 8, 4), np.uint8), ((8, 8, 3), np.int8)]
)
def test_frames_that_cannot_travel_are_refused(make_bench: MakeBench, shape, dtype) -> None:
    bench = make_bench()
    with pytest.raises(FrameRefused):
        image = np.zeros(shape, dtype)
        bench.executor.submit(Observation(1, 1, 1, image), Instruction("go", 0))


def test_endless_instruction_is_refused(make_bench: MakeBench) -> None:
    with pytest.raises(FrameRefused, match="too large"):
        make_bench().executor.submit(frame(1), Instruction("x" * 300_000, 0))


@pytest.mark.timing
def test_close_is_quick_though_the_worker_is_stopped(make_bench: MakeBench) -> None:
    bench = make_bench()
    pid = bench.executor.start(10).pid
    os.kill(pid, signal.SIGSTOP)
    bench.ask()
    began = time.monotonic()
    assert bench.executor.close()
    judge("closed", time.monotonic() - began, quiet=1.0, loaded=4.0)
    assert not alive(pid)
    bench.ask()  # harmless
    assert bench.events.empty()


@pytest.mark.timing
def test_close_while_a_callback_is_stuck_still_kills_the_worker(make_bench: MakeBench) -> None:
    bench = make_bench()
    pid = bench.executor.start(10).pid
    free = threading.Event()
    bench.executor._on_result = lambda result: free.wait(5) and None
    bench.ask()
    time.sleep(0.1)
    began = time.monotonic()
    assert not bench.executor.close(0.4)
    judge("closed", time.monotonic() - began, quiet=1.0, loaded=4.0)
    deadline = time.monotonic() + 1
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)
    free.set()


def test_worker_ignores_signals_meant_for_the_parent(make_bench: MakeBench) -> None:
    bench = make_bench()
    pid = bench.executor.start(10).pid
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    assert bench.result(bench.ask()).inference is not None
    assert bench.events.empty()


PARENT = """
import sys, time
import numpy as np
from vla_ros.core import Instruction, Observation
from vla_ros.runtime.worker.executor import Executor
from vla_ros.runtime.worker.wire import WorkerLimits
from vla_ros.policies import PolicySpec
from vla_ros.core.clock import SystemClock
from unit.runtime.worker import faulty_policies
executor = Executor(PolicySpec(), SystemClock(), WorkerLimits(), lambda r: None, lambda e: None,
                    loader=faulty_policies.load_obedient)
print(executor.start(10).pid, flush=True)
assert not [m for m in sys.modules if m.startswith("torch")]
image = np.zeros((8, 8, 3), np.uint8)
executor.submit(Observation(1, 1, 1, image), Instruction(sys.argv[1], 0))
time.sleep(60)
"""


@pytest.mark.parametrize("word", ["go", "hang"])
def test_worker_ends_with_its_parent_and_leaves_nothing(word: str) -> None:
    before = set(os.listdir("/dev/shm"))
    root = os.path.dirname(os.path.dirname(vla_ros.__file__))
    path = os.pathsep.join([root, str(Path(__file__).parents[3])])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, word],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.1)
        assert alive(pid)
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 2
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)
    assert not [n for n in set(os.listdir("/dev/shm")) - before if "vla" in n or "psm" in n]


def test_a_closed_executor_holds_nothing_of_the_kernel_s(make_bench: MakeBench) -> None:
    """However long Python's collector takes: a node may be configured a thousand times."""
    before = set(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        bench = make_bench(faulty.load_obedient)
        bench.executor.start(10)
        bench.result(bench.ask())
        assert bench.executor.close(5.0)
        bench.executor.cycle = bench.executor  # as a node's is part of one
        bench.ask()  # nobody is there to take it
        assert bench.executor.close()
        left = set(os.listdir("/proc/self/fd")) - before
        names = [os.readlink(f"/proc/self/fd/{one}") for one in left if _exists(one)]
        assert not [name for name in names if "mailbox" in name or "eventfd" in name], names
    finally:
        gc.enable()


def _exists(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")
