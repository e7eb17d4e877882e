"""One client of `vla-ros serve` floods it: a robot beside it keeps its times, log and memory stay.

Server, robot and attacker are processes, as in benchmarks/flood.py.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets", reason="websockets is not installed: pip install '.[serve]'")
pytest.importorskip("msgpack", reason="msgpack is not installed: pip install '.[serve]'")
pytest.importorskip("prometheus_client", reason="not installed: pip install '.[serve]'")

from vla_ros.serve.log import LINES

PROGRAM = Path(__file__).resolve().parents[3] / "benchmarks" / "flood.py"
SECONDS = 1.0
FACTOR, MORE_MS = 5.0, 50.0  # the figures of a quiet machine are in benchmarks/README.md
GREW_MB = 100.0
ATTEMPTS = 3  # other programs' load comes and goes; a flood that is let in costs seconds each time
AT_ONCE = ("pings", "empty fragments", "wide messages", "connects", "HTTP POST")  # others are slow


def _program() -> Any:
    spec = importlib.util.spec_from_file_location("flood", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["flood"] = module  # for its dataclass
    spec.loader.exec_module(module)
    return module


flood = _program()
ATTACKS = [
    pytest.param(name, marks=[] if name in AT_ONCE else [pytest.mark.slow])
    for name in flood.attacks()
]


@pytest.fixture(scope="module")
def served() -> Iterator[Any]:
    with flood.Served() as served:
        flood.row(served, "", SECONDS)  # warm
        yield served


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_robot_beside_a_flood_keeps_its_times(served, attack) -> None:
    for attempt in range(ATTEMPTS):
        alone, beside = flood.row(served, "", SECONDS), flood.row(served, attack, SECONDS)
        assert min(alone.trips, beside.trips) > 1, "the robot itself is never thrown out"
        assert beside.lines <= 2 * LINES, "of two minutes, where one ends meanwhile"
        assert "Traceback" not in "".join(served.lines)
        large = attack == "big messages"  # which are in memory while they are read
        assert beside.grew_mb < (3 if large else 1) * GREW_MB
        if beside.p99_ms <= FACTOR * alone.p99_ms + MORE_MS:
            return
        print(f"attempt {attempt}: {alone} {beside}")
    raise AssertionError(f"beside {attack} the robot's p99 is {beside.p99_ms:.0f} ms")
