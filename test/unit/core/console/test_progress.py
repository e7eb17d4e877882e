"""Progress: rewritten on a terminal, plain lines elsewhere, and always within the width."""

from __future__ import annotations

import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from vla_ros.core import console as module
from vla_ros.core.console import Progress, duration

ROOT = Path(__file__).parents[4]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
SCRIPT = """
from vla_ros.core.console import Progress
with Progress() as progress:
    progress.say("begun [bold]as it is[/bold] " + "x" * 100)
    for done in range(101):
        progress.update("a", "12.5 % solved " + "y" * 200, done, 100)
    progress.update("b", "the end")
"""


def on_a_terminal(columns: int, **variables: str) -> str:
    """What SCRIPT writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **variables}
    for name in {"NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"} - set(variables):
        env.pop(name, None)
    done = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=theirs, env=env)
    os.close(theirs)
    text = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # a terminal without a writer
            break
        if not more:
            break
        text += more
    os.close(ours)
    assert done.wait(10) == 0
    return text.decode()


def lines_of(text: str) -> list[str]:
    """Every state of every line, without what moves and colors it."""
    return [line for line in ESCAPES.sub("", text).replace("\r", "\n").split("\n") if line]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_on_a_terminal_one_line_is_rewritten_and_never_wider_than_it(columns: int) -> None:
    text = on_a_terminal(columns)
    assert "\x1b[" in text
    first, *states = lines_of(text)
    assert first.startswith("begun [bold]as it is[/bold] xxx")
    assert len(states) > 1
    assert max(map(len, states)) <= columns
    counted = [state for state in states if "100/100" in state]
    assert counted and all("12.5 % solved y" in state for state in counted)
    assert states[-1].rstrip() == "the end"
    assert text.count("\n") <= 4  # one for each line that stays


def test_no_color_is_honoured() -> None:
    colored = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m|\x1b\[9[0-9]m")
    assert colored.search(on_a_terminal(80))
    assert not colored.search(on_a_terminal(80, NO_COLOR="1"))


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"])
def test_elsewhere_there_are_plain_lines_only(variable: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), variable: "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True
    )
    lines = done.stderr.splitlines()
    assert "\x1b" not in done.stderr and "\r" not in done.stderr
    assert [line[:9] for line in lines] == ["begun [bo", "0/100  12", "100/100  ", "the end"]
    assert all(len(line) <= 80 for line in lines[1:])
    assert len(lines[0]) > 100  # an event is not cut


def test_a_terminal_that_cannot_rewrite_gets_plain_lines() -> None:
    assert "\x1b" not in on_a_terminal(80, TERM="dumb")


def test_a_line_comes_where_the_state_changes_every_few_seconds_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with Progress(stream) as progress:
        for state in ("WAITING", "WAITING", "RUNNING", "RUNNING"):
            progress.update(state, f"{state} {now[0]:.0f}")
            now[0] += 1.0
        now[0] = 2.0 + module.PLAIN_EVERY_S
        progress.update("RUNNING", "RUNNING late")
        progress.update("RUNNING", "RUNNING last")
    assert stream.getvalue() == "WAITING 0\nRUNNING 2\nRUNNING late\nRUNNING last\n"


def test_the_time_left_is_that_of_this_sitting(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = Progress(stream)
    progress.update("a", "", 900, 1000)
    now[0] = 10.0
    progress.update("a", "", 910, 1000)
    progress.update("b", "", 0, 1000)  # another part, another pace
    now[0] = 20.0
    progress.update("b", "", 100, 1000)
    now[0] = 1020.0
    progress.update("b", "", 0, 700)  # a count that begins anew, such as the next round's
    now[0] = 1030.0
    progress.update("b", "", 100, 700)
    assert stream.getvalue().split("  \n") == [
        *("900/1000", "910/1000, 90 s left", "0/1000", "100/1000, 90 s left"),
        *("0/700", "100/700, 60 s left", ""),
    ]


def test_durations_as_a_person_says_them() -> None:
    assert [duration(s) for s in (42.4, 725, 11100)] == ["42 s", "12 min", "3 h 05 min"]
