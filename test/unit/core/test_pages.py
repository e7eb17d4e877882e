"""Pages: what is put in is escaped, a name that is missing is an error, and they are packaged."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from vla_ros.viz.pages import Bar, Cell, Table, TableLine, render

CHECKOUT = Path(__file__).parents[3]
EVIL = "<script>alert(1)</script>&\"'"
TABLE = '{% from "table.html.j2" import table %}{{ table(content) }}'


def made(folder: Path, template: str, **values) -> str:
    (folder / "one.html.j2").write_text(template)
    return render(folder, "one.html.j2", **values)


def test_nothing_of_a_stranger_is_taken_for_html(tmp_path):
    cells = (Cell(EVIL, aside=EVIL), Cell(EVIL, "b", EVIL, Bar(0.5, 0.2, 0.8)))
    found = made(tmp_path, TABLE, content=Table(cells, (TableLine(cells),)))
    assert "<script" not in found
    assert found.count("&lt;script&gt;alert(1)&lt;/script&gt;&amp;&#34;&#39;") == 8


def test_what_a_reader_would_obey_is_shown(tmp_path):
    assert made(tmp_path, "{{ x }}", x="a\x1b[2J\u202e\n<b") == "a\\x1b[2J\\u202e\n&lt;b"


def test_pictures_of_our_own_are_html(tmp_path):
    assert made(tmp_path, "{{ x }}", x=Markup("<svg/>")) == "<svg/>"


def test_a_name_that_nobody_gave_is_an_error_and_not_nothing(tmp_path):
    with pytest.raises(UndefinedError, match="missing"):
        made(tmp_path, "{{ missing }}")


def test_a_head_has_lines_and_a_cell_has_none(tmp_path):
    content = Table((Cell("a\nb"),), (TableLine((Cell("c\nd"),), "t"),))
    found = made(tmp_path, TABLE, content=content)
    assert "<th>a<br>b</th>" in found
    assert '<tr class="t"><td>c\nd</td></tr>' in found


@pytest.mark.parametrize(("share", "color"), [(0.0, "255,255,255"), (1.0, "140,185,222")])
def test_a_shade_grows_bluer(tmp_path, share, color):
    found = made(tmp_path, TABLE, content=Table((), (TableLine((Cell("x", shade=share),)),)))
    assert f'style="background:rgb({color});color:' in found


def test_a_bar_stays_on_its_scale():
    bar = Bar(0.5, -1.0, 2.0, width=101)
    assert [bar.x(v) for v in (bar.low, bar.rate, bar.high)] == [0.5, 50.5, 100.5]


def test_every_file_beside_the_code_is_packaged():
    """A template that is not installed is a page that cannot be written."""
    setup = ast.parse((CHECKOUT / "setup.py").read_text())
    kinds = next(
        ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KINDS"
    )
    beside = [
        path
        for path in (CHECKOUT / "vla_ros").rglob("*.*")
        if path.is_file() and path.suffix not in (".py", ".so", ".typed")
        if path.parent.name != "__pycache__"  # Numba's files are there too
    ]
    assert {path.suffix for path in beside} >= {".j2", ".css"}
    assert not [path for path in beside if path.suffix.removeprefix(".") not in kinds]
