"""The result of a demo: its verdict, its card, its line of JSON."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from vla_ros.cli.demo.result import DemoResult, Setup, Summary, json_line
from vla_ros.core.clock import Distribution
from vla_ros.core.console import WIDTH, console_of, text_of
from vla_ros.core.types import STAGES

SETUP = Setup(
    mode="realtime",
    policy="scripted",
    decoding="none",
    checkpoint="",
    device="cpu",
    dtype="none",
    machine="a processor; Linux",
    version="1.2.3",
)
SPREAD = Distribution(1.0, 2.0, 3.0, 4.0, 140)
SOLVED = DemoResult(
    setup=SETUP,
    task="pick_red_cube",
    instruction="put the red cube on the plate",
    ended="success",
    initial_state=0,
    steps=143,
    max_steps=300,
    episode_s=7.25,
    action_rate_hz=20.0,
    control_rate_hz=20.0,
    max_age_ms=500.0,
    achieved_rate_hz=19.98765,
    achieved_action_rate_hz=19.5,
    camera_rate_hz=20.0,
    observation_age=Distribution(52.1, 70.0, 88.8, 90.0, 140),
    staleness=Distribution(12.1, 30.0, 48.8, 49.5, 140),
    inference=SPREAD,
    stages=dict.fromkeys(STAGES, SPREAD),
    passes=3.789,
    actions=140,
    missed_deadlines=3,
    blocked=0,
    lost_commands=0,
    worker_restarts=0,
)
SAID = "its observation is 652 ms old, max_age is 500 ms"
BLOCKED = DemoResult(
    setup=replace(SETUP, policy="vla", checkpoint="/models/x", decoding="actionflow"),
    task="reach_red_cube",
    instruction="move the gripper above the red cube",
    ended="failure",
    reason="not solved within 120 steps",
    initial_state=0,
    steps=120,
    max_steps=120,
    episode_s=6.0,
    action_rate_hz=20.0,
    control_rate_hz=20.0,
    max_age_ms=500.0,
    achieved_action_rate_hz=0.0,
    camera_rate_hz=20.0,
    blocked=114,
    last_block=SAID,
    worker_restarts=0,
)
RANDOM = replace(SETUP, policy="vla", checkpoint="random:small", decoding="autoregressive")


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (SOLVED, 0),
        (replace(SOLVED, ended="failure"), 1),
        (replace(SOLVED, ended="timeout"), 1),
        (replace(SOLVED, stale_published=1), 1),
        (replace(SOLVED, setup=RANDOM, ended="failure"), 0),
        (replace(SOLVED, setup=RANDOM, ended="timeout"), 0),
        (replace(SOLVED, setup=RANDOM, ended="failure", stale_published=1), 1),
        (replace(SOLVED, setup=RANDOM, ended="failure", actions=0), 1),
        (replace(SOLVED, setup=replace(RANDOM, checkpoint="/models/x"), ended="failure"), 1),
        (replace(SOLVED, setup=replace(SETUP, policy="zero"), ended="failure"), 0),
    ],
)
def test_success_is_asked_only_of_those_who_can(result: DemoResult, status: int) -> None:
    assert result.exit_status == status


def test_json_is_one_line_with_the_promised_keys() -> None:
    line = json_line(SOLVED)
    assert "\n" not in line
    content = json.loads(line)
    assert content["success"] is True
    assert content["observation_age_ms"] == {"p50": 52.1, "p95": 70.0, "p99": 88.8, "max": 90.0}
    assert content["inference_ms"]["p99"] == 3.0
    assert content["staleness_ms"]["max"] == 49.5
    assert content["achieved_rate_hz"] == 19.988
    assert content["missed_deadlines"] == 3
    assert content["stale_published"] == 0
    assert content["judged_by"] == "task"
    promised = {"policy", "decoding", "control_rate_hz", "mode", "task", "steps", "checkpoint"}
    promised |= {"device", "dtype", "camera_rate_hz", "worker_restarts", "episode_s", "version"}
    assert promised <= set(content)


def test_what_was_not_measured_is_null_and_a_blocked_action_is_named() -> None:
    content = json.loads(json_line(BLOCKED))
    nothing = dict.fromkeys(("p50", "p95", "p99", "max"))
    assert content["observation_age_ms"] == content["inference_ms"] == nothing
    assert content["achieved_rate_hz"] is content["missed_deadlines"] is None
    assert content["passes_per_action"] is content["lost_commands"] is None
    assert (content["camera_rate_hz"], content["episode_s"]) == (20.0, 6.0)
    assert (content["actions_blocked"], content["last_block"]) == (114, SAID)


def rows(result: DemoResult) -> dict[str, str]:
    """What the card says behind every label; the figures of one line apart by one space."""
    found: dict[str, str] = {}
    for line in text_of(Summary(result)).splitlines():
        label, said = line[2:20], " ".join(line[20:-1].split())
        if label.strip() and not line.startswith("+"):
            found.setdefault(label.rstrip(), said)
        elif said and not line.startswith("+"):
            last = list(found)[-1]
            found[last] += f" {said}"
    return found


def test_the_card_says_what_counts() -> None:
    said = rows(SOLVED)
    assert said["result"] == "SOLVED, step 143 of 300, 7.2 s"
    assert said["observation age"] == "52.10 70.00 88.80 90.00"
    assert said["staleness"] == "12.10 30.00 48.80 49.50"
    assert said["passes an action"] == "3.79 of the model"
    assert said["stale published"] == "0 older than 500 ms; must be 0"
    assert said["commands"] == "19.99 Hz, achieved"


def test_the_stages_are_the_age_s_and_four_of_them_are_the_model_s() -> None:
    labels = list(rows(SOLVED))
    begin = labels.index("observation age")
    assert labels[begin + 1 : begin + 9] == [
        *("  transport", "  queue", "  inference", "    preprocess", "    vision"),
        *("    prefill", "    decode", "  gate"),
    ]


def test_the_first_run_shows_the_card_as_it_is() -> None:
    page = Path(__file__).resolve().parents[3] / "docs/tutorial/first-run.md"
    found = re.sub(r"^   ", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    shown = re.search(r"```text\n(\+-+\+\n\| vla-ros demo .*?)```", found, re.DOTALL)
    assert shown

    def labels(card: str) -> list[str]:
        found = [line[2:20].rstrip() for line in card.splitlines() if line.startswith("| ")]
        return [label for label in found if label not in ("", "note")]

    assert labels(shown[1]) == labels(text_of(Summary(SOLVED)))


def test_the_card_has_a_dash_where_nothing_was_measured() -> None:
    said = rows(BLOCKED)
    assert said["result"] == (
        "NOT SOLVED, step 120 of 120, 6.0 s not solved within 120 steps"
        f" 114 actions blocked; the last: {SAID}"
    )
    for label in (
        "observation age",
        "staleness",
        "  inference",
        "  transport",
        "    decode",
        "  gate",
    ):
        assert said[label] == "- - - -"
    assert said["commands"] == "- Hz, achieved"
    assert said["camera"] == "20.00 Hz"
    assert said["new actions"] == "0.00 Hz, achieved"
    assert said["missed deadlines"].split()[0] == said["lost commands"] == "-"
    assert said["blocked actions"] == "114 stopped by the gate"
    assert "0.0 s" not in text_of(Summary(replace(BLOCKED, episode_s=None)))


def test_a_dtype_that_was_picked_is_named_with_it() -> None:
    result = replace(SOLVED, setup=replace(RANDOM, dtype="bfloat16", dtype_asked="auto"))
    assert rows(result)["device"].endswith(", bfloat16 (auto)")
    assert json.loads(json_line(result))["dtype_asked"] == "auto"
    result = replace(SOLVED, setup=replace(RANDOM, dtype="float32", dtype_asked="float32"))
    assert rows(result)["device"].endswith(", float32")


@pytest.mark.parametrize(
    ("decoding", "asked", "said"),
    [
        ("speculative", "auto", "speculative (auto)"),
        ("speculative", "speculative", "speculative"),
        ("none", "", "none"),
        ("", "auto", "-"),
    ],
)
def test_a_decoding_that_was_picked_says_so(decoding: str, asked: str, said: str) -> None:
    setup = replace(RANDOM, decoding=decoding, asked=asked)
    result = replace(SOLVED, setup=setup)
    assert rows(result)["decoding"] == said
    assert json.loads(json_line(result))["decoding_asked"] == asked


@pytest.mark.parametrize(
    "result",
    [
        SOLVED,
        BLOCKED,
        replace(
            SOLVED,
            instruction="put " * 60,
            ended="timeout",
            reason="x" * 200,
            trouble=("y" * 150,),
            setup=replace(RANDOM, checkpoint="/very/long/" * 20, machine="m" * 300),
        ),
        DemoResult(SETUP, task="", instruction="", ended="timeout"),
    ],
    ids=["usual", "blocked", "long texts", "nothing measured"],
)
def test_every_line_of_the_card_has_the_same_width(result: DemoResult) -> None:
    text = text_of(Summary(result))
    assert {len(line) for line in text.splitlines()} == {WIDTH}
    assert set(text) <= set(map(chr, range(32, 127))) | {"\n"}


@pytest.mark.parametrize(("columns", "width"), [(60, 60), (80, 80), (120, 80)])
def test_on_a_terminal_it_has_lines_and_fits(columns: int, width: int) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    console = console_of(stream)
    console.width = columns
    console.print(Summary(SOLVED))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
    assert lines[0] == f"╭{'─' * (width - 2)}╮"
    assert {len(line) for line in lines} == {width}


def test_the_card_of_random_weights_says_that_no_success_is_expected() -> None:
    text = text_of(Summary(replace(SOLVED, setup=RANDOM, ended="failure", reason="step limit")))
    assert "NOT SOLVED" in text
    assert "no success is expected" in text
    assert "step limit" in text
