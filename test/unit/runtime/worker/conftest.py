"""Executors for tests: closed at the end, and nothing of theirs may stay in /dev/shm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from unit.runtime.worker.bench import Bench
from vla_ros.policies import PolicySpec, load_policy
from vla_ros.runtime.worker.wire import WorkerLimits
from vla_ros.runtime.worker.worker import Loader


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(
        loader: Loader = load_policy,
        spec: PolicySpec | None = None,
        limits: WorkerLimits | None = None,
    ) -> Bench:
        bench = Bench(spec or PolicySpec(), limits or WorkerLimits(), loader)
        made.append(bench)
        return bench

    before = set(os.listdir("/dev/shm"))
    yield make
    for bench in made:
        bench.executor.close()
    left = {n for n in set(os.listdir("/dev/shm")) - before if "vla" in n or "psm" in n}
    assert not left
