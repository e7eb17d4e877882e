"""Tables, what goes to a file, and the one line of an error."""

from __future__ import annotations

import pytest

from vla_ros.core.console import Table, error, show, text_of

ROWS = [("speculative,model,relaxed,r=15", "25/28", "89.3 %"), ("a", "1/28", "3.6 %")]


def test_an_error_is_one_line_whatever_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    error("vla-ros up", ValueError("first\n  second [red]third[/red] " + "x" * 200))
    said = capsys.readouterr().err
    assert said == f"vla-ros up: first second [red]third[/red] {'x' * 200}\n"


def test_a_table_aligns_names_left_and_figures_right(capsys: pytest.CaptureFixture[str]) -> None:
    show(Table(("variant", "solved", "success"), ROWS))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "variant                         solved  success",
        "speculative,model,relaxed,r=15   25/28   89.3 %",
        "a                                 1/28    3.6 %",
    ]


def test_where_there_is_no_room_a_name_is_cut_in_two_and_no_figure() -> None:
    lines = text_of(Table(("variant", "solved", "success"), ROWS), width=32).splitlines()
    assert max(map(len, lines)) <= 32
    assert "25/28" in lines[1] and "89.3 %" in lines[1]
    assert "".join(line[:15].strip() for line in lines[1:3]) == ROWS[0][0]


def test_columns_that_can_be_spared_go_first() -> None:
    full = Table(("variant", "solved", "success"), ROWS, spare=("success", "solved"))
    assert text_of(full, width=80).count("success") == 1
    narrow = text_of(full, width=44).splitlines()
    assert narrow[0].split() == ["variant", "solved"]
    assert len(narrow) == 3
