"""`vla-ros eval`: its options, its output, and that it goes on where it was stopped."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mujoco")

from vla_ros.cli.eval import check, variants_of
from vla_ros.cli.main import main, make_parser
from vla_ros.data.episodes.store import read_records

ROOT = Path(__file__).parents[3]
FEW = ["--policy", "scripted", "--no-ros", "--tasks", "reach_red_cube", "reach_blue_cube"]
SMALL = ["--image-size", "64", "--max-steps", "12"]


def arguments(*words: str):
    parser, _ = make_parser("eval")
    return parser.parse_args(["eval", *words])


def labels(*words: str) -> list[str]:
    return [variant.label for variant in variants_of(arguments(*words))]


def test_every_combination_is_a_variant_with_a_name_of_its_own():
    pytest.importorskip("torch")
    c = ("--checkpoint", "random:small")
    assert labels(*c) == ["auto"]
    assert labels("--policy", "scripted", "--delay-frames", "0,2") == ["scripted", "scripted,d=2"]
    assert labels(*c, "--decoding", "speculative,actionflow", "--relaxed-distance", "1,15") == [
        "speculative",
        "speculative,relaxed,r=1",
        "speculative,relaxed,r=15",
        "actionflow",
    ]
    draft = ("--draft-checkpoint", "d")
    assert labels(*c, *draft, "--decoding", "speculative", "--drafter", "temporal,model") == [
        "speculative",
        "speculative,model",
    ]
    assert labels(*c, "--decoding", "parallel", "--replan-interval", "1,8") == [
        "parallel,S=1",
        "parallel,S=8",
    ]
    flow = ("--checkpoint", "random:pi0-small", "--execution", "sync,rtc,rtc_trained")
    assert labels(*flow, "--rtc-mode", "guided,guided_vjp") == [
        "auto,sync",
        "auto,rtc",
        "auto,rtc,guided_vjp",
        "auto,rtc_trained",
    ]
    late = ("--mode", "realtime", "--image-delay-ms", "0,50")
    assert labels(*c, *late) == ["auto", "auto,delay=50ms"]


def test_without_a_checkpoint_the_shipped_policies_are_played():
    pytest.importorskip("torch")
    drafted = arguments("--decoding", "vanilla_speculative", "--no-ros")
    check(drafted)
    (variant,) = variants_of(drafted)
    assert drafted.checkpoint == "shipped:tabletop"
    assert variant.draft_checkpoint == "shipped:tabletop-draft"
    chunks = arguments("--decoding", "parallel")
    check(chunks)
    assert chunks.checkpoint == "shipped:tabletop-oft"


def test_only_in_real_time_drafts_adapt():
    words = ("--checkpoint", "random:small", "--decoding", "speculative")
    (still,) = variants_of(arguments(*words))
    (moving,) = variants_of(arguments(*words, "--mode", "realtime"))
    assert (still.adaptive_draft, moving.adaptive_draft) == (False, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "libero_object"], "--env libero needs --checkpoint"),
        (["--policy", "zero", "--decoding", "actionflow"], "--decoding needs --policy vla"),
        (["--policy", "zero", "--mode", "realtime", "--no-ros"], "--no-ros is lock-step"),
        (["--policy", "zero", "--no-ros", "--view"], "with --no-ros there is none"),
        (["--policy", "zero", "--workers", "2", "--view"], "--view shows one graph"),
        (["--policy", "zero", "--no-ros", "--batched"], "--batched is for --policy vla"),
        (["--no-ros", "--batched"], "--batched answers the episodes of several --workers"),
        (["--policy", "zero", "--mode", "realtime", "--workers", "2"], "slow each other down"),
        (["--policy", "zero", "--mode", "realtime", "--delay-frames", "1"], "--image-delay-ms"),
        (["--policy", "zero", "--image-delay-ms", "50"], "--delay-frames"),
        (["--policy", "zero", "--tasks", "dance"], "no task or family 'dance'"),
        (["--policy", "zero", "--suite", "libero_moon"], "no suite 'libero_moon'"),
        (["--policy", "zero", "--suite", "libero_10", "--env", "tabletop"], "--env libero"),
        (["--policy", "zero", "--seed", "1000000"], "0 to 999999"),
        (["--policy", "zero", "--episodes", "0"], "at least 1"),
        (["--policy", "zero", "--promote", "x"], "give --against"),
        (["--margin", "0"], "--margin 0: a share of the episodes, above 0 and below 1"),
        (["--policy", "zero", "--against", "/nowhere"], "/nowhere/run.json"),
        (["--policy", "zero", "--instruction", "a\nb"], "control character"),
        (["--checkpoint", "random:small", "--decoding", "fast"], "--decoding fast: give"),
        (
            ["--checkpoint", "random:small", "--decoding", "vanilla_speculative", "--no-ros"],
            "draft-checkpoint",
        ),
        (
            ["--checkpoint", "random:small", "--decoding", "generate"],
            "is a reference: vla-ros bench",
        ),
        (["--checkpoint", "/nowhere/at/all"], "neither a directory nor a hub id"),
    ],
)
def test_wrong_usage_is_one_line_and_writes_nothing(words, said, tmp_path, capsys):
    pytest.importorskip("torch")
    out = tmp_path / "out"
    assert main(["eval", *words, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_it_ends_with_a_table_files_and_a_line_of_json(tmp_path, capsys):
    words = ["eval", *FEW, "--image-size", "64", "--episodes", "2", "--seed", "7"]
    assert main([*words, "--delay-frames", "0,3", "--out", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    figures = json.loads(lines[-1])
    assert figures == json.loads((tmp_path / "summary.json").read_text())
    assert (figures["success_rate"], figures["episodes"], figures["seed"]) == (1.0, 4, 7)
    assert figures["wilson95"] == [0.5101, 1.0]
    assert figures["mode"] == "lockstep"
    assert set(figures["by_task"]) == {"reach_red_cube", "reach_blue_cube"}
    assert figures["by_group"]["reach"]["successes"] == 4
    assert figures["observation_age_ms"]["p50"] == 0.0
    assert figures["variants"]["scripted,d=3"]["observation_age_ms"]["p50"] == 150.0
    assert figures["rate_hz"] > 1
    assert "decoding" in figures
    assert any(line.split()[:3] == ["scripted", "4/4", "100.0"] for line in lines)
    assert any(line.split()[:2] == ["reach_blue_cube", "2/2"] for line in lines)
    assert "8/8" in err
    report = (tmp_path / "report.html").read_text()
    assert "data:image/jpeg" in report
    jobs = [(r.job.task, r.job.initial_state, r.job.seed) for r in read_records(tmp_path)]
    assert jobs[:4] == jobs[4:]
    assert {seed for _, _, seed in jobs} == {7}


def test_while_it_runs_there_is_a_report_of_what_was_played(tmp_path, monkeypatch):
    from vla_ros.cli import eval as verb
    from vla_ros_lab.report import page

    said = []
    write = page.write_report

    def look(*words, **more):
        path = write(*words, **more)
        found = re.search(r"So far (\d+) episodes?.* of (\d+), and it still runs", path.read_text())
        said.append(found and (int(found[1]), int(found[2])))
        return path

    monkeypatch.setattr(page, "write_report", look)
    words = ["eval", *FEW, *SMALL, "--out", str(tmp_path)]
    assert main([*words, "--episodes", "1"]) == 0
    assert said == [None]  # a minute had not passed: only the report at the end, which is whole
    monkeypatch.setattr(verb, "PARTIAL_EVERY_S", 0.0)
    monkeypatch.setattr(verb, "PARTIAL_SHARE", 0.0)
    # More is already there than the new variant has to play.
    assert main([*words, "--episodes", "1", "--delay-frames", "3"]) == 0
    assert said == [None, (3, 4), None]


@pytest.mark.long
def test_a_checkpoint_that_solves_fewer_of_the_same_episodes_is_not_promoted(tmp_path, capsys):
    pytest.importorskip("torch")
    few = ["eval", "--no-ros", "--tasks", "reach_red_cube", "--episodes", "2"]
    few += ["--image-size", "128", "--max-steps", "40"]
    zero, expert = tmp_path / "zero", tmp_path / "expert"
    assert main([*few, "--policy", "zero", "--out", str(zero)]) == 0
    assert main([*few, "--policy", "scripted", "--out", str(expert)]) == 0
    link = tmp_path / "policies" / "current"
    words = [*few, "--checkpoint", "shipped:tabletop", "--decoding", "autoregressive"]
    words += ["--out", str(tmp_path / "first"), "--against", str(zero), "--promote", str(link)]
    assert main(words) == 3
    said = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"2 won and 0 lost of the same 2 episodes, McNemar p .*: better", said)
    assert said.endswith(
        "2 episodes leave room for 15.0 % fewer, and --margin allows 5 %:"
        " play at least 52 of the same episodes"
    )
    assert not link.is_symlink()
    assert main([*words, "--margin", "0.2"]) == 0  # nothing is played again
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.endswith(f"promoted: {link} is {link.resolve()}")
    assert (link / "config.json").is_file()
    words[words.index(str(zero))] = str(tmp_path / "first")
    assert main([*words, "--out", str(tmp_path / "again")]) == 3
    said = capsys.readouterr().out.splitlines()[-1]
    assert "0 won and 0 lost of the same 2 episodes, McNemar p 1: as good; not promoted" in said
    kept = link.resolve()
    words = [*few, "--checkpoint", "random:small", "--decoding", "autoregressive"]
    words += ["--out", str(tmp_path / "second"), "--against", str(expert), "--promote", str(link)]
    assert main(words) == 3
    said = capsys.readouterr().out.splitlines()[-1]
    assert "p 0.5: worse, which may be chance; not promoted" in said and link.resolve() == kept
    assert said.endswith("stays as it is: it solved fewer")
    figures = json.loads((tmp_path / "second" / "summary.json").read_text())["against"]
    assert (figures["won"], figures["lost"], figures["pairs"]) == (0, 2, 2)
    assert "before (scripted)" in (tmp_path / "second" / "report.html").read_text()
    other = [*few, "--policy", "zero", "--seed", "9", "--against", str(zero)]
    assert main([*other, "--out", str(tmp_path / "third")]) == 2
    assert "not one episode is the same" in capsys.readouterr().err


def test_the_same_command_plays_only_what_is_missing(tmp_path, capsys):
    words = ["eval", *FEW, *SMALL, "--episodes", "3", "--out", str(tmp_path)]
    assert main(words) == 0
    path = tmp_path / "episodes.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:4]) + whole[4][:30])
    assert main(words) == 0
    again = path.read_bytes().splitlines(keepends=True)
    assert again[:4] == whole[:4]
    digests = [json.loads(line)["action_digest"] for line in again]
    assert digests == [json.loads(line)["action_digest"] for line in whole]
    capsys.readouterr()
    assert main([*words, "--seed", "1"]) == 2
    assert "holds an evaluation with seed 0 (now 1)" in capsys.readouterr().err


def test_workers_play_the_same_episodes(tmp_path):
    words = ["eval", *FEW, *SMALL, "--episodes", "2"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    assert main([*words, "--workers", "2", "--out", str(tmp_path / "two")]) == 0
    one, two = (
        {r.job.key(): r.action_digest for r in read_records(tmp_path / name)}
        for name in ("one", "two")
    )
    assert one == two
    assert len(one) == 4
    assert len(list((tmp_path / "two" / "strips").iterdir())) == 2


@pytest.mark.long
@pytest.mark.parametrize("checkpoint", ["random:small", "random:small-oft", "random:pi0-small"])
def test_batched_episodes_are_the_same_as_one_by_one(tmp_path, capfd, checkpoint):
    pytest.importorskip("websockets")
    words = ["eval", "--checkpoint", checkpoint, "--no-ros", *SMALL, "--episodes", "2"]
    words += ["--tasks", "reach_red_cube", "reach_blue_cube", "--dtype", "float32"]
    words += ["--replan-interval", "0" if checkpoint == "random:small" else "2"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    capfd.readouterr()
    assert main([*words, "--batched", "--workers", "3", "--out", str(tmp_path / "all")]) == 0
    together = re.search(r"auto\S*: (\d\.\d) frames a pass", capfd.readouterr().err)
    assert together and float(together[1]) >= 1.0, "as many as pay"
    one, all_ = ({r.job.key(): r for r in read_records(tmp_path / name)} for name in ("one", "all"))
    assert len(one) == 4 and one.keys() == all_.keys()
    for key, record in one.items():
        assert (all_[key].steps, all_[key].reason) == (record.steps, record.reason)
        if checkpoint != "random:pi0-small":  # of equal tokens
            assert all_[key].action_digest == record.action_digest


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.long)],
)
def test_stopped_in_the_middle_it_goes_on(tmp_path, number, status):
    out = tmp_path / "out"
    words = [*FEW, *SMALL, "--episodes", "30", "--workers", "2", "--out", str(out)]
    command = [sys.executable, "-m", "vla_ros", "eval", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        episodes = out / "episodes.jsonl"
        until = time.monotonic() + 60
        while time.monotonic() < until and not (episodes.is_file() and episodes.read_bytes()):
            time.sleep(0.05)
        process.send_signal(number)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == status
    if number == signal.SIGINT:
        assert f"with --out {out} goes on" in error
        assert "Traceback" not in error
    before = read_records(out)
    assert 0 < len(before) < 60
    assert main(["eval", *words]) == 0
    after = read_records(out)
    assert after[: len(before)] == before
    assert len({record.job.key() for record in after}) == len(after) == 60


def test_another_evaluation_stands_beside(tmp_path, capsys):
    """At the end, in the report; and before anything is played it is said that it cannot."""
    base, own = str(tmp_path / "base"), tmp_path / "own"
    once = [*FEW, *SMALL, "--episodes", "1"]
    assert main(["eval", *once, "--out", str(own), "--beside", base]) == 2
    assert "there is no summary.json" in capsys.readouterr().err and not own.exists()
    assert main(["eval", *once, "--out", base]) == 0
    assert main(["eval", *once, "--out", str(own), "--beside", base]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows.count(["task", "tabletop", "tabletop"]) == 1
    assert sum(row[0] == "reach_red_cube" and len(row) == 3 for row in rows if row) == 1
    assert "Beside other evaluations" in (own / "report.html").read_text()
    assert "Beside other evaluations" not in (tmp_path / "base" / "report.html").read_text()
