"""Fast paths are tried once; what failed is said in one line, and once."""

from __future__ import annotations

import logging

import pytest

from vla_ros.engine.layers.devices import first_that_runs, reason, warn_once


@pytest.fixture(autouse=True)
def _nothing_was_said() -> None:
    warn_once.cache_clear()


def fails(text: str, kind: type[Exception] = RuntimeError):  # type: ignore[no-untyped-def]
    def make() -> object:
        raise kind(text)

    return make


def test_the_first_way_that_runs_is_taken_and_no_other_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ways = {"one": lambda: 1, "two": fails("never asked")}
    assert first_that_runs("attention", ways, "torch") == ("one", 1)
    assert not caplog.records


def test_ways_that_fail_are_named_with_their_reasons_and_what_runs_instead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ways = {"one": fails("no compiler"), "two": fails("", KeyError), "three": lambda: 3}
    assert first_that_runs("attention", ways, "torch") == ("three", 3)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("vla_ros.engine", logging.WARNING)
    assert record.getMessage() == (
        "attention: one fails (RuntimeError: no compiler), two fails (KeyError: ''):"
        " three runs instead"
    )


def test_where_none_runs_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    ways = {"one": fails("no compiler"), "two": fails("no GPU")}
    assert first_that_runs("attention", ways, "torch") == ("torch", None)
    assert caplog.messages == [
        "attention: one fails (RuntimeError: no compiler), two fails (RuntimeError: no GPU):"
        " torch runs instead"
    ]
    assert first_that_runs("attention", {}, "torch") == ("torch", None)
    assert len(caplog.messages) == 1


def test_the_same_line_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for line in ("one", "two", "one", "one"):
        warn_once(line)
    assert caplog.messages == ["one", "two"]


def test_a_way_that_is_interrupted_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        first_that_runs("attention", {"one": fails("", KeyboardInterrupt)}, "torch")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("  too long \n and more"), "ValueError: too long"),
        (ValueError(""), "ValueError"),
        (ValueError(" \n "), "ValueError"),
        (RuntimeError("\n\nthe second\nthe third"), "RuntimeError: the second"),
        (OSError("x" * 151), f"OSError: {'x' * 151}"),  # 160 characters
        (OSError("x" * 152), f"OSError: {'x' * 148}..."),
    ],
)
def test_a_reason_is_one_line_of_160_characters_at_most(error: Exception, said: str) -> None:
    assert reason(error) == said
    assert len(said) <= 160
