"""What the watch counts: the device's time, the best of some, and nothing of the host's."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from support.engine import CPU
from vla_ros.engine.layers import tuner as watches
from vla_ros.engine.layers.tuner import stopwatch


def test_on_a_cpu_the_first_call_and_the_slow_ones_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first compiles; after it five, of which the fastest is what it takes."""
    now, calls = [0.0], [0]
    spent = (90.0, 3.0, 2.0, 7.0, 2.5, 4.0)
    monkeypatch.setattr(watches.time, "perf_counter", lambda: now[0])

    def run() -> None:
        now[0] += spent[calls[0]]
        calls[0] += 1

    assert stopwatch(CPU)(run) == pytest.approx(2.0)
    assert calls == [6]


def test_on_a_gpu_it_is_asked_while_the_device_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough to ask for everything at the fastest clock there is, and between two events."""
    log: list[Any] = []
    now, lasts = [0.0], iter((5.0, 3.0, 4.0, 6.0, 7.0))

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, other: Event) -> float:
            return next(lasts)

    def run() -> None:
        log.append("run")
        now[0] += 0.002

    monkeypatch.setattr(watches.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append(("sleep", cycles)))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    assert stopwatch(torch.device("cuda:1"))(run) == pytest.approx(0.003)
    before = ["run", "synchronize"] * 2
    (sleep,) = {word for word in log if isinstance(word, tuple)}
    assert sleep == ("sleep", pytest.approx(0.004 * 2.5e9, rel=1e-6))
    assert log == before + [sleep, "event", "run", "event", "wait"] * 5
