"""Assumptions: their way between processes and machines, and their table."""

from __future__ import annotations

from dataclasses import asdict

from vla_ros.core.assumption import Assumption, table
from vla_ros.core.plain import info_of
from vla_ros.core.types import PolicyInfo

UNITS = Assumption("units of actions", "m, rad, 1", "LIBERO's protocol")
RATE = Assumption.taken("action rate", "20 Hz")


def test_they_come_over_the_wire_as_they_went():
    info = PolicyInfo("vla", assumptions=(UNITS, RATE))
    assert info_of(asdict(info)) == info


def test_what_nothing_says_is_marked_in_the_table():
    first, second = table([UNITS, RATE]).splitlines()
    assert first == "  units of actions  m, rad, 1  (LIBERO's protocol)"
    assert second == "? action rate       20 Hz  (default)"


def test_no_assumptions_are_no_table():
    assert table([]) == ""
