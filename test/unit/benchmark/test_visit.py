"""benchmarks/run.sh: stages in processes of their own, limited, resumed, and one report of all."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def visit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, without running it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("visit_run", ROOT / "benchmarks" / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "visit_run", module)
    spec.loader.exec_module(module)
    return module


#: what a stage's command gets after -c: the words, of which the last is its folder
ROW = {"median_ms": 2.0, "p95_ms": 3.0, "rate_hz": 500.0, "latency_ms": 2.0, "lossless": True}
PASS = {"tokens": 1, "median_ms": 2.0, "best_ms": 1.5, "operators": 9, "kernels": None,
        "roofline_ms": 1.0, "bound": "memory", "efficiency": 0.5}  # fmt: skip
HEAD = {"checkpoint": "random:x", "dtype": "float32", "attention": "two products",
        "machine": {"cpu": "a processor"}}  # fmt: skip
BENCH = {**HEAD, "schedules": {"autoregressive": ROW}, "captures": {"in_service": 0}}
PASSES = {**HEAD, "passes": {"decode": PASS}, "prompt_tokens": 281, "reached_gb_s": 3000.0}


def writes(name: str, content: object) -> str:
    text = json.dumps(content)
    return f"import pathlib, sys; pathlib.Path(sys.argv[-1], {name!r}).write_text({text!r})"


def go(visit: ModuleType, out: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run", "--smoke", "--output", str(out), *words])
    status: int = visit.main()
    return status


def test_stages_are_limited_resumed_and_reported(
    visit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    begun = tmp_path / "begun"
    once = f"open({str(begun)!r}, 'a').write('x')"
    wanting = "import sys; print('no such thing'); sys.exit(2)"
    stages = [
        visit.Stage("passes", ("-c", f"{once}; {writes('passes.json', PASSES)}"), 60),
        visit.Stage("bench", ("-c", writes("bench.json", BENCH)), 60),
        visit.Stage("wanting", ("-c", wanting), 60),
        visit.Stage("hangs", ("-c", "import time; print('first'); time.sleep(100)"), 1.0),
    ]
    monkeypatch.setattr(visit, "smoke", lambda: stages)
    out = tmp_path / "out"
    assert go(visit, out, monkeypatch) == 1
    said = capsys.readouterr().out
    assert "wanting: status 2: no such thing" in said
    assert "hangs: out of time" in said
    assert begun.read_text() == "x"

    table = (out / "table.md").read_text()
    assert "| decode | 1 | 2.000 | 1.500 | 1.000 | memory | 50 | 9 | - |" in table
    assert "| autoregressive | 2.00 | 3.00 | 500.00 |" in table
    assert "CUDA graphs captured in service: 0." in table
    assert "a processor" in table
    assert "| wanting | status 2 |" in table
    whole = json.loads((out / "report.json").read_text())
    assert whole["stages"]["passes"]["passes"]["passes"]["decode"]["efficiency"] == 0.5
    assert whole["machine"] == {"cpu": "a processor"}

    stages[2] = visit.Stage("wanting", ("-c", "print('now')"), 60)  # it was mended
    assert go(visit, out, monkeypatch, "--only", "passes,wanting") == 0
    said = capsys.readouterr().out
    assert "passes: is done" in said
    assert begun.read_text() == "x"  # not measured again
    assert "| wanting | done |" in (out / "table.md").read_text()
    assert go(visit, out, monkeypatch, "--only", "passes", "--again") == 0
    assert begun.read_text() == "xx"


def test_without_time_left_no_stage_is_begun(
    visit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(visit, "smoke", lambda: [visit.Stage("one", ("-c", "1 / 0"), 60)])
    assert go(visit, tmp_path, monkeypatch, "--seconds", "5") == 0
    assert "no time left: run this again to go on" in capsys.readouterr().out
    assert "| one | not run |" in (tmp_path / "table.md").read_text()


def test_an_unknown_stage_is_refused(
    visit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        go(visit, tmp_path, monkeypatch, "--only", "magic")
    assert ended.value.code == 2
    assert "no stage magic: there are tests, passes" in capsys.readouterr().err


def test_the_stages_of_a_gpu_are_commands_that_exist(visit: ModuleType) -> None:
    """Every word is parsed by the verb's own parser; limits are those of a visit."""
    import argparse

    from vla_ros.cli.bench import add_parser

    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    stages = [*visit.on_gpu(), *visit.on_cpu(), *visit.smoke()]
    for stage in stages:
        if stage.name != "tests":
            assert stage.command[:2] == ("-m", "vla_ros")
            parser.parse_args([*stage.command[2:], "--output", "x"])
    assert visit.on_gpu()[0].name == "tests"
    short = [stage.seconds for stage in visit.on_gpu()[:3]]
    assert sum(short) < visit.SECONDS


@pytest.mark.slow
def test_a_whole_visit_in_small(tmp_path: Path) -> None:
    """The script itself; one of its stages is wrong on purpose."""
    command = ["sh", str(ROOT / "benchmarks" / "run.sh"), "--smoke", "--output", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**dict(__import__("os").environ),
        "PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no-such-row: status 2: bench: rows magic are unknown" in done.stdout.replace(
        "vla-ros ", ""
    )
    table = (tmp_path / "table.md").read_text()
    assert "| packed pass |" in table
    assert "| actionflow |" in table
    assert (tmp_path / "plot.png").stat().st_size > 10_000
