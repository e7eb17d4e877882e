"""The result of a demo: its verdict, its card, its line of JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from vla_ros.cli.demo.card import WIDTH, DemoResult, Setup, card, json_line, machine
from vla_ros.core import STAGES
from vla_ros.timing import Distribution

SETUP = Setup(
    mode="realtime",
    policy="scripted",
    schedule="none",
    checkpoint="",
    device="cpu",
    dtype="none",
    machine="a processor; Linux",
    version="1.2.3",
)
SOLVED = DemoResult(
    setup=SETUP,
    task="pick_red_cube",
    instruction="put the red cube on the plate",
    ended="success",
    steps=143,
    max_steps=300,
    episode_s=7.25,
    control_rate_hz=20.0,
    achieved_rate_hz=19.98765,
    action_rate_hz=19.5,
    camera_rate_hz=20.0,
    observation_age=Distribution(52.1, 70.0, 88.8, 90.0, 140),
    inference=Distribution(1.0, 2.0, 3.0, 4.0, 140),
    stages={name: Distribution(1.0, 2.0, 3.0, 4.0, 140) for name in STAGES},
    actions=140,
    missed_deadlines=3,
)
RANDOM = replace(SETUP, policy="vla", checkpoint="random:small", schedule="autoregressive")


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
    assert content["achieved_rate_hz"] == 19.988
    assert content["missed_deadlines"] == 3
    assert content["stale_published"] == 0
    assert content["judged_by"] == "task"
    promised = {"policy", "schedule", "control_rate_hz", "mode", "task", "steps", "checkpoint"}
    promised |= {"device", "dtype", "camera_rate_hz", "worker_restarts", "episode_s", "version"}
    assert promised <= set(content)


def test_the_card_says_what_counts() -> None:
    text = card(SOLVED)
    assert "SOLVED, step 143 of 300, 7.2 s" in text
    assert "observation age       52.10    70.00    88.80    90.00" in text
    for stage in STAGES:
        assert f"  {stage} " in text
    assert "must be 0" in text


@pytest.mark.parametrize(
    "result",
    [
        SOLVED,
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
    ids=["usual", "long texts", "nothing measured"],
)
def test_every_line_of_the_card_has_the_same_width(result: DemoResult) -> None:
    assert {len(line) for line in card(result).splitlines()} == {WIDTH}


def test_the_card_of_random_weights_says_that_no_success_is_expected() -> None:
    text = card(replace(SOLVED, setup=RANDOM, ended="failure", reason="step limit reached"))
    assert "NOT SOLVED" in text
    assert "no success is expected" in text
    assert "step limit reached" in text


def test_the_machine_is_named_in_one_line() -> None:
    assert "CPUs" in machine()
    assert "\n" not in machine()
