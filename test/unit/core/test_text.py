"""Text of strangers: nothing is left in it that would be obeyed, and all of its letters are."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.shown import obeyed
from vla_ros.core.console import (
    LogFormatter,
    Progress,
    Table,
    error,
    log_line,
    plain_output,
    show,
    text_of,
)
from vla_ros.core.text import log_text, printable, printable_lines
from vla_ros.runtime.safety import Safety

CHECKOUT = Path(__file__).parents[3]
EVIL = "\x1b[2J\x1b]0;x\x07\u202egnp\u2066\u200f\x00\x9b2J\r\ud800\u2028[FATAL] fake"
LETTERS = "把红色方块放到碗里 Grüße, naïve ‌می‌خواهم 👩🏽‍🍳 ½ → ×"
ANY = st.text(
    st.characters() | st.sampled_from("\x1b\x00\n\t\r\x9b\u202e\u2066\u200e\u2028\ud800…")
)


@given(ANY)
def test_nothing_is_left_that_would_be_obeyed_and_twice_changes_nothing(text: str) -> None:
    for shown in (printable(text), printable_lines(text), log_text(text)):
        assert obeyed(shown) == []
        shown.encode()
    assert not set(printable(text)) & set("\n\t")
    assert printable(printable(text)) == printable(text)
    assert printable_lines(printable_lines(text)) == printable_lines(text)


@given(ANY, st.integers(1, 60))
def test_what_is_too_long_ends_with_an_ellipsis(text: str, most: int) -> None:
    shown = printable(text, most)
    assert len(shown) <= most
    if len(text) > most:
        assert shown.endswith("…")


def test_letters_of_all_languages_stay_as_they_are() -> None:
    assert printable(LETTERS) == printable_lines(LETTERS) == LETTERS
    assert printable("a\x1bb\u202ec\nd") == "a\\x1bb\\u202ec\\x0ad"


def test_a_log_s_further_lines_look_like_no_record() -> None:
    assert log_text("refused:\n[FATAL] fake") == "refused:\n  [FATAL] fake"


def test_a_reason_is_one_clean_line() -> None:
    said = Safety(reason=f"a{EVIL}\nb", keeps=EVIL * 1000).said
    assert obeyed(said) == [] and "\n" not in said and len(said) <= 1000


def test_whatever_is_shown_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_output():
        print(EVIL)
        print(LETTERS)
        show(Table((EVIL, "n"), [(f"{EVIL}\nrow", "1")]), EVIL)
        error(EVIL, f"{EVIL}\n{EVIL}")
        log_line(f"{EVIL}\n[FATAL] fake")
        with Progress() as progress:
            progress.say(f"{EVIL}\n[FATAL] fake")
            progress.update(EVIL, EVIL, 1, 1)
    out, err = capsys.readouterr()
    assert obeyed(out) == [] and obeyed(err) == []
    assert LETTERS in out
    assert "\n[FATAL]" not in out + err
    assert obeyed(text_of(Table((EVIL,), [(EVIL,)]))) == []


def test_a_record_of_a_log_passes() -> None:
    try:
        raise ValueError(f"{EVIL}\n[FATAL] fake")
    except ValueError as wrong:
        record = logging.LogRecord(
            "n", 30, "f", 1, "%s", (f"{EVIL}\n[FATAL] fake",), (ValueError, wrong, None)
        )
    text = LogFormatter("%(name)s: %(message)s").format(record)
    assert obeyed(text) == []
    assert text.startswith("n: ") and "\n  [FATAL] fake" in text


def writes_to_stderr(node: ast.AST) -> bool:
    """True of ``print(..., file=sys.stderr)``, ``sys.stderr.write(...)``, ``traceback.print_*``."""
    if not isinstance(node, ast.Call):
        return False
    where = [word.value for word in node.keywords if word.arg == "file"]
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("write", "writelines"):
        where.append(node.func.value)
    if ast.unparse(node.func).startswith("traceback.print_"):
        return True
    return any(ast.unparse(one) == "sys.stderr" for one in where)


def test_nobody_writes_to_stderr_but_the_console() -> None:
    """stdout is wrapped as a whole; stderr is not, so that it has one place that writes to it."""
    written = [
        str(path.relative_to(CHECKOUT))
        for package in ("vla_ros", "lab/vla_ros_lab")
        for path in sorted((CHECKOUT / package).rglob("*.py"))
        if any(map(writes_to_stderr, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    ]
    lerobot_s_python = "vla_ros/data/lerobot/served.py"  # which has nothing of this package
    assert written == ["vla_ros/core/console.py", lerobot_s_python]
