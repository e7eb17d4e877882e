"""`--embodiment` of demo and eval: whichever robot is named is the one that is run."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from unit.cli.test_demo_options import parsed
from vla_ros.cli.demo.verb import parameters
from vla_ros.cli.eval import check, completed, setup_of
from vla_ros.cli.main import main, make_parser
from vla_ros.data.episodes.play import policy_spec
from vla_ros.data.episodes.records import Job, Setup, Variant
from vla_ros.engine.families.registry import config_of, write_folder
from vla_ros.ros.listeners.graph_runner import overrides

GROOT = "random:groot-n1.7-small"
TAG = config_of(GROOT).embodiment


def settings(*words: str) -> Setup:
    parser, _ = make_parser("eval")
    args: argparse.Namespace = parser.parse_args(["eval", *words])
    check(args)
    return completed(setup_of(args))


def test_demo_gives_it_to_the_node() -> None:
    policy = parameters(parsed("--checkpoint", GROOT, "--embodiment", TAG))["policy"]
    assert policy["embodiment"] == TAG
    assert "embodiment" not in parameters(parsed("--checkpoint", GROOT))["policy"]


def test_eval_gives_it_to_the_policy_with_ros_and_without() -> None:
    setup = settings("--checkpoint", GROOT, "--embodiment", TAG)
    assert policy_spec(setup, Variant("auto")).engine.embodiment == TAG
    policy = overrides(setup, Variant("auto"), Job("auto", "reach_red_cube", 0, 0))["policy"]
    assert policy["embodiment"] == TAG
    plain = settings("--checkpoint", GROOT)
    assert policy_spec(plain, Variant("auto")).engine.embodiment == ""


@pytest.mark.parametrize("verb", [["demo"], ["eval", "--no-ros"]])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--checkpoint", GROOT, "--embodiment", "toaster"], f"'toaster' is unknown: .*{TAG}"),
        (["--checkpoint", "random:small", "--embodiment", "x"], "embodiment"),
        (["--policy", "scripted", "--embodiment", "x"], "--embodiment needs --policy vla"),
    ],
)
def test_one_that_is_not_there_ends_before_anything_starts(
    verb: list[str],
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import re

    monkeypatch.chdir(tmp_path)
    assert main([*verb, *words]) == 2
    error = capsys.readouterr().err
    assert re.search(says, error) and error.strip().count("\n") == 0, error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("version", "executed"), [("n1.7", 8), ("n1.6", 8), ("n1.5", 1)])
def test_in_libero_as_much_of_a_chunk_is_executed_as_nvidias_own_evaluation_does(
    version: str, executed: int, tmp_path: Path
) -> None:
    write_folder(tmp_path / "groot", config_of(f"random:groot-{version}-small"), seed=1)
    words = ["--checkpoint", str(tmp_path / "groot")]
    assert settings(*words, "--suite", "libero_object").executed == executed
    assert settings(*words).executed == 0
