"""What a soak keeps: the same after a restart; troubles are the seed's; the page says all."""

from __future__ import annotations

import itertools
from collections import Counter

from endurance.growth import MemorySample
from endurance.judge import Hold, Violation
from endurance.page import page
from endurance.record import Done, Record
from endurance.troubles import KINDS, draw
from endurance.verdict import verdict
from vla_ros.core.types import CommandKind, PolicyState


def filled() -> Record:
    return Record(
        seed=4,
        policy="vla",
        sittings=2,
        ran_s=3600.0,
        calm_s=1800.0,
        troubles=[
            Done("reset", "reset", 3.0, 0.1, 0.4),
            Done("stopped", "stopped (1 s)", 9.0, 1.0, None),
        ],
        violations=[Violation("old", 7, "<script>alert(1)</script>")],
        holds=[
            *(Hold(n, PolicyState.HOLD, "age & more", False) for n in range(5)),
            Hold(6, PolicyState.FAULT, "x", True),
        ],
        kinds=Counter({CommandKind.POLICY: 900, CommandKind.STOP: 3}),
        states=Counter({PolicyState.RUNNING: 10**12, PolicyState.HOLD: 10**9}),
        ages=Counter({90: 800, 120: 100}),
        gaps=2,
        motion=Counter({"twist POLICY": 900}),
        samples={"policy": [MemorySample(5.0 * n, 77, 120.0, 30) for n in range(200)]},
    )


def test_a_record_is_read_back_as_it_was(tmp_path):
    record = filled()
    record.save(tmp_path)
    assert Record.load(tmp_path) == record
    assert Record.load(tmp_path / "nothing") is None


def test_the_same_seed_gives_the_same_troubles():
    first = list(itertools.islice(draw(3), 300))
    assert first == list(itertools.islice(draw(3), 300))
    assert first != list(itertools.islice(draw(4), 300))
    assert {trouble.kind for trouble in first} == set(KINDS)


def test_what_broke_fails_the_run_and_stands_on_the_page():
    record = filled()
    found = verdict(record)
    assert any("max_age_s" in reason for reason in found.broken)
    assert any("false HOLDs" in reason for reason in found.broken)
    text = page(record, found)
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "age &amp; more" in text


def test_a_clean_run_passes():
    record = filled()
    record.violations.clear()
    record.holds.clear()
    found = verdict(record)
    assert not found.broken
    assert found.ages["max"] == 120
    assert "Nothing was broken" in page(record, found)
