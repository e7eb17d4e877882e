"""benchmarks/run.sh: stages in processes of their own, limited, resumed, and one report of all."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


class Visit:
    """The program in this process, with stages of the test's own, and the folder that it fills."""

    def __init__(
        self, program: ModuleType, out: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        self.program, self.out, self.stage = program, out, program.Stage
        self.monkeypatch, self._capsys = monkeypatch, capsys

    def run(self, stages: list[object], *words: str) -> tuple[int, str]:
        """Exit status, and what was printed."""
        self.monkeypatch.setattr(self.program, "smoke", lambda: stages)
        command = ["run", "--smoke", "--output", str(self.out), *words]
        self.monkeypatch.setattr(sys, "argv", command)
        self._capsys.readouterr()
        return self.program.main(), self._capsys.readouterr().out

    @property
    def table(self) -> str:
        return (self.out / "table.md").read_text()


@pytest.fixture
def visit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Visit:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("visit_run", ROOT / "benchmarks" / "run.py")
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "visit_run", program)
    spec.loader.exec_module(program)
    return Visit(program, tmp_path / "out", monkeypatch, capsys)


#: what a stage's command gets after -c: the words, of which the last is its folder
ROW = {"median_ms": 2.0, "p95_ms": 3.0, "rate_hz": 500.0, "latency_ms": 2.0, "lossless": True}
PASS = {"tokens": 1, "median_ms": 2.0, "best_ms": 1.5, "operators": 9, "kernels": None,
        "roofline_ms": 1.0, "bound": "memory", "efficiency": 0.5}  # fmt: skip
HEAD = {"checkpoint": "random:x", "dtype": "float32", "attention": "two products",
        "machine": {"cpu": "a processor"}}  # fmt: skip
BENCH = {**HEAD, "decodings": {"autoregressive": ROW}, "captures": {"in_service": 0}}
CHOICE = {"rows": 1, "count": 4096, "width": 11008, "way": "GEMV 8x512", "us": 30.0,
          "torch_us": 36.0, "kind": "product"}  # fmt: skip
PASSES = {**HEAD, "passes": {"decode": PASS}, "prompt_tokens": 281, "reached_gb_s": 3000.0,
          "products": [CHOICE]}  # fmt: skip


def writes(name: str, content: object) -> str:
    text = json.dumps(content)
    return f"import pathlib, sys; pathlib.Path(sys.argv[-1], {name!r}).write_text({text!r})"


def test_stages_are_limited_resumed_and_reported(visit: Visit, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    once = f"open({str(begun)!r}, 'a').write('x')"
    wanting = "import sys; print('no such thing'); sys.exit(2)"
    stages = [
        visit.stage("passes", ("-c", f"{once}; {writes('passes.json', PASSES)}"), 60),
        visit.stage("bench", ("-c", writes("bench.json", BENCH)), 60),
        visit.stage("wanting", ("-c", wanting), 60),
        visit.stage("hangs", ("-c", "import time; print('first'); time.sleep(100)"), 1.0),
    ]
    status, printed = visit.run(stages)
    assert status == 1
    assert "wanting: status 2: no such thing" in printed
    assert "hangs: out of time" in printed
    assert begun.read_text() == "x"

    table = visit.table
    assert "| decode | 1 | 2.000 | 1.500 | 1.000 | memory | 50 | 9 | - |" in table
    assert "| product | 1 | 4096 x 11008 | GEMV 8x512 | 30.0 | 36.0 | 1.20 |" in table
    assert "| autoregressive | 2.00 | 3.00 | 500.00 |" in table
    assert "CUDA graphs captured in service: 0." in table
    assert "a processor" in table
    assert "| wanting | status 2 |" in table
    whole = json.loads((visit.out / "report.json").read_text())
    assert whole["stages"]["passes"]["passes"]["passes"]["decode"]["efficiency"] == 0.5
    assert whole["machine"] == {"cpu": "a processor"}
    assert "estimate" not in table  # of a GPU

    stages[2] = visit.stage("wanting", ("-c", "print('now')"), 60)  # it was mended
    status, printed = visit.run(stages, "--only", "passes,wanting")
    assert status == 0
    assert "passes: is done" in printed
    assert begun.read_text() == "x"  # not measured again
    assert "| wanting | done |" in visit.table
    assert visit.run(stages, "--only", "passes", "--again")[0] == 0
    assert begun.read_text() == "xx"


def test_what_was_expected_is_beside_what_was_measured(visit: Visit) -> None:
    """Passes of a GPU added up, with their kernels, and rows."""
    from summary import ESTIMATES

    gpu = {**HEAD, "machine": {"gpu": "a GPU"}}
    chunk = {name: {**PASS, "kernels": 400} for name in ("vision", "prefill", "all steps")}
    passes = {**PASSES, **gpu, "passes": chunk}
    row = {**gpu, "decodings": {"autoregressive": {**ROW, "median_ms": 71.0}}}
    stages = [
        visit.stage("passes-pi0-auto", ("-c", writes("passes.json", passes)), 60),
        visit.stage("engine-autoregressive", ("-c", writes("bench.json", row)), 60),
    ]
    assert visit.run(stages)[0] == 0
    table = visit.table
    assert "| pi0's chunk, two views, 10 steps | 12 to 15 | 6.00 | 0.44 | 1200 |" in table
    assert "| action, autoregressive | 35 to 36 | 71.00 | 2.00 | - |" in table
    assert "| decode, 1 row | 3.9 to 4.2 | - | - | - |" in table
    found = json.loads((visit.out / "report.json").read_text())["estimates"]
    assert [one["what"] for one in found] == list(ESTIMATES)
    known = {stage.name for stage in visit.program.on_gpu()}
    assert {stage for stage, *_ in ESTIMATES.values()} <= known


def test_what_others_have_published_is_beside_ours(visit: Visit) -> None:
    """Of a GPU's families; every stage that is named is one of a visit's."""
    from peers import PUBLISHED

    head = {**HEAD, "machine": {"gpu": "a GPU"}}
    row = {**head, "decodings": {"flow": {**ROW, "latency_ms": 31.26}}}
    stage = visit.stage("family-pi05", ("-c", writes("bench.json", row)), 60, group="families")
    assert visit.run([stage])[0] == 0
    table = visit.table
    assert "| pi05 | vla-edge | Thor, BF16, chunk 16 | 62.2 | 31.3 | its README |" in table
    assert "| pi0 | realtime-vla | RTX 4090 | 27.3 | - | arXiv 2603.26360 |" in table
    assert {row[1] for row in PUBLISHED} <= {stage.name for stage in visit.program.on_gpu()}


def test_without_time_left_no_stage_is_begun(visit: Visit) -> None:
    status, printed = visit.run([visit.stage("one", ("-c", "1 / 0"), 60)], "--seconds", "5")
    assert status == 0
    assert "no time left: run this again to go on" in printed
    assert "not done for want of time: one" in printed
    assert "| one | not run |" in visit.table


def engine(visit: Visit, name: str, median: float, said: str, then: str = "") -> object:
    """A stage of the group of engines that writes one row, and then does something more."""
    row = {**ROW, "median_ms": median, "said": said, "peak_memory_mb": 16000.0}
    code = writes("bench.json", {**BENCH, "decodings": {name: row}}) + then
    return visit.stage(f"engine-{name}", ("-c", code), 60, group="engines")


def test_an_engine_that_crashes_loses_itself_alone(visit: Visit) -> None:
    abort = "import faulthandler, os; faulthandler.enable(); os.abort()"
    refuses = "import sys; print('vla-ros bench: no fp8 here'); sys.exit(2)"
    stages = [
        engine(visit, "generate", 30.0, "aa bb cc dd"),
        visit.stage("engine-broken", ("-c", abort), 60, group="engines"),
        engine(visit, "actionflow", 10.0, "aa bb cx -"),
        visit.stage("weights-fp8", ("-c", refuses), 60, group="weights", may_refuse=True),
        visit.stage("family-huge", ("-c", abort), 60, group="families", memory_gb=900.0),
    ]
    visit.monkeypatch.setattr(visit.program, "Gpu", lambda *found: Named())
    status, said = visit.run(stages)
    assert status == 1
    assert "engine-broken: status -6" in said
    assert "weights-fp8: refused: vla-ros bench: no fp8 here" in said
    assert "family-huge: skipped: needs 900 GB, the GPU has 80 free" in said
    table = visit.table
    assert "| generate | 30.00 | 3.00 | 500.00 | 2.00 | - | 1.00 | 100 | 0 | 16000 | done" in table
    assert "| actionflow | 10.00 | 3.00 | 500.00 | 2.00 | - | 3.00 | 67 | 0 | 16000 | done" in table
    assert "| broken | - | - | - | - | - | - | - | - | - | status -6 |" in table
    assert "| refused: vla-ros bench: no fp8 here |" in table
    assert "| skipped: needs 900 GB, the GPU has 80 free |" in table
    status, said = visit.run(stages, "--only", "weights,engine-generate")
    assert status == 0
    assert "weights-fp8: is done" in said  # what is refused is refused again
    assert "engine-broken" not in said


class Named:
    """A GPU of 80 GB."""

    name, free_gb = "a GPU", 80.0


def test_a_visit_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """By SIGTERM, by SIGKILL: what was done is done, nothing is left running, and there is a
    report of it."""
    first, begun = tmp_path / "first", tmp_path / "begun"
    sleeps = (
        f"import os, time; open({str(begun)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(60)"
    )
    counts = f"open({str(first)!r}, 'a').write('x')"
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); import run;"
        f"run.smoke = lambda: [run.Stage('one', ('-c', {counts!r}), 60),"
        f" run.Stage('two', ('-c', {sleeps!r}), 60)]; sys.exit(run.main())"
    )
    command = [sys.executable, "-c", program, "--smoke", "--output", str(tmp_path / "out")]
    for number, ending in enumerate((signal.SIGTERM, signal.SIGKILL), 1):
        visiting = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        left = started(begun, number)
        visiting.send_signal(ending)
        said, _ = visiting.communicate(timeout=20)
        assert ("written:" in said) is (ending == signal.SIGTERM)
        until(gone, left)
        assert "| one | done |" in (tmp_path / "out" / "table.md").read_text()
        assert ("one: is done: skipped" in said) is (number == 2)
    assert first.read_text() == "x"


def started(file: Path, number: int) -> int:
    """The process that is the file's word of that number, from 1 on."""
    until(lambda: file.exists() and len(file.read_text().split()) == number)
    return int(file.read_text().split()[-1])


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def until(true: Callable[..., bool], *words: int) -> None:
    for _ in range(400):
        if true(*words):
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to that in 20 s")


def test_what_ran_out_of_time_comes_last_and_only_with_more_of_it(visit: Visit) -> None:
    slow = visit.stage("slow", ("-c", "import time; time.sleep(60)"), 60, least=0.1)
    quick = visit.stage("quick", ("-c", "print('here')"), 60, least=0.1)
    visit.monkeypatch.setattr(visit.program, "LAST", 0.0)
    began = time.monotonic()
    status, said = visit.run([slow, quick], "--seconds", "1.5")
    assert status == 1
    assert time.monotonic() - began < 8.0  # the budget, and what this machine does besides
    assert "slow: out of time" in said and "quick: no time left" in said
    status, said = visit.run([slow, quick], "--seconds", "2.4")
    assert status == 0
    assert said.index("quick: done") < said.index("slow: no time left")
    assert visit.program.needed(slow, visit.out / "slow") > 2.0


def test_a_stage_whose_command_is_another_is_run_anew(visit: Visit, tmp_path: Path) -> None:
    program = visit.program
    stage = visit.stage("one", ("-c", "print(1)"), 60)
    assert program.run(stage, tmp_path / "one", 60.0)
    assert program.done(stage, tmp_path / "one")
    (tmp_path / "one" / "bench.json").write_text("{}")
    other = visit.stage("one", ("-c", "1 / 0"), 60)
    assert not program.done(other, tmp_path / "one")
    assert not program.run(other, tmp_path / "one", 60.0)
    assert not (tmp_path / "one" / "bench.json").exists()  # a figure of what failed is none


def test_an_unknown_stage_is_refused(visit: Visit, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        visit.run([], "--only", "magic")
    assert ended.value.code == 2
    assert "no stage magic: there are" in capsys.readouterr().err


def test_the_stages_of_a_gpu_are_commands_that_exist(visit: Visit) -> None:
    """Every word is parsed by the verb's own parser; limits are those of a visit."""
    import argparse

    from stages import CALIBRATION, FAMILIES

    from vla_ros.engine.families.registry import group_of
    from vla_ros.engine.options import TOKENS
    from vla_ros_lab.bench.suite import CALIBRATED, ROWS
    from vla_ros_lab.cli.bench import add_parser

    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    program = visit.program
    gpu = [*program.on_gpu(), *program.on_gpu(small=True)]
    stages = [*gpu, *program.on_cpu(), *program.smoke()]
    for stage in stages:
        if stage.command[0].endswith(".py"):  # a program of its own, with its own parser
            help = subprocess.run(
                [sys.executable, ROOT / stage.command[0], "--help"], capture_output=True, text=True
            )
            assert all(word in help.stdout for word in stage.command if word.startswith("--"))
        elif stage.name not in ("kernels", "tests"):
            assert stage.command[:2] == ("-m", "vla_ros")
            parser.parse_args([*stage.command[2:], "--output", "x"])
            if "--rows" in stage.command and "--checkpoint" not in stage.command:
                rows = stage.command[stage.command.index("--rows") + 1].split(",")
                assert set(rows) <= {*ROWS, *CALIBRATED}
    assert [stage.name for stage in program.on_gpu()[:3]] == ["kernels", "tests", "passes"]
    short = [stage.seconds for stage in program.on_gpu()[:3]]
    assert sum(short) < program.SECONDS
    alone = [stage for stage in program.on_gpu() if stage.group == "engines"]
    assert len(alone) >= 12
    assert all("," not in stage.command[stage.command.index("--rows") + 1] for stage in alone)
    assert (ROOT / CALIBRATION).is_file()
    for family in FAMILIES:
        assert family == "bitvla" or group_of(f"random:{family}") != TOKENS


@pytest.mark.slow
@pytest.mark.timeout(900)
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
    assert re.search(r"\| speculative_head \| [\d.]+ .* \| done \|", table)
    assert re.search(r"\| none \|.* refused: .*int9", table)
    assert re.search(r"\| smolvla-small \| .* \| done \|", table)
    assert (tmp_path / "plot.png").stat().st_size > 10_000
