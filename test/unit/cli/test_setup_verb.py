"""`vla-ros setup`: usage that is refused before anything is looked at, needs, questions."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import vla_ros
from vla_ros.cli.main import main
from vla_ros.cli.setup import Terminal, needs_of

SHIPPED = Path(vla_ros.__file__).parent / "shipped"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--robot", "so100"], "no robot file 'so100'"),
        (["--out", "no/such/robot.yaml"], "--out no/such/robot.yaml: there is no folder no/such"),
        (["--for", "0"], "--for 0: give 0.5 to 60 seconds"),
        (["--domain-id", "300"], "--domain-id 300: must be 0 to 232"),
        (["/no/such/model"], "/no/such/model"),
    ],
)
def test_wrong_usage_is_one_line_and_2(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["setup", "--yes", *words]) == 2
    line = capsys.readouterr().err
    assert says in line
    assert len(line.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("robot.yaml").write_text("mine")
    assert main(["setup", "--yes", "--robot", "so101"]) == 2
    assert "robot.yaml is there: --force writes over it" in capsys.readouterr().err
    assert Path("robot.yaml").read_text() == "mine"


def test_without_a_terminal_it_says_that_nobody_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["setup"]) == 2
    assert "nobody can be asked here: --yes takes the safe answers" in capsys.readouterr().err


def test_a_checkpoints_needs_are_read_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, lacks = needs_of("shipped:tabletop-flow")
    assert (found.cameras, found.state, found.actions) == (("front",), 8, 7)
    assert (found.rate_hz, found.policy, lacks) == (20.0, "vla", [])
    monkeypatch.chdir(SHIPPED)
    here, _ = needs_of("tabletop")
    assert here.checkpoint == str(Path.cwd() / "tabletop"), "the nodes run elsewhere"
    assert needs_of("ws://host:8000")[0].policy == "remote"


def test_what_must_be_chosen_of_a_checkpoint_is_offered(tmp_path: Path) -> None:
    folder = tmp_path / "two_sets"
    folder.mkdir()
    for file in (SHIPPED / "tabletop").iterdir():
        (folder / file.name).symlink_to(file)
    config = folder / "config.json"
    raw = json.loads(config.read_text())
    (one,) = raw["norm_stats"].values()
    config.unlink()
    config.write_text(json.dumps({**raw, "norm_stats": {"left": one, "right": one}}))
    found, _ = needs_of(str(folder))
    assert found.choices == {"unnorm_key": ("left", "right")}


@pytest.mark.parametrize(
    ("typed", "index", "chosen"),
    [("2\n", 1, True), ("\n", 0, True), ("9\nx\n2\n", 1, True), ("", 0, False)],
)
def test_a_choice_is_a_number_of_the_list(
    typed: str, index: int, chosen: bool, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert Terminal().choose("Which?", ["a", "b"], 0) == (index, chosen)
    assert "  2  b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "numbers"),
    [("1, -2\n", [1.0, -2.0]), ("\n", []), ("", []), ("1\nnan 2\na b\n3 4\n", [3.0, 4.0])],
)
def test_numbers_are_as_many_as_were_asked_for(
    typed: str, numbers: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert Terminal().numbers("ends", 2) == numbers
