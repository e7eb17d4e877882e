"""`--engine-option` and `--adapt` of eval: what they say reaches the policy, on both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from support.hub_folders import both, by_data_set, lerobots
from unit.cli.test_embodiment import settings
from vla_ros.cli.main import main
from vla_ros.data.episodes.play import policy_spec
from vla_ros.data.episodes.records import Job, Variant, setup_from_json, to_json
from vla_ros.ros.listeners.graph_runner import overrides

IDENTITY = ("--engine-option", "state_normalization=identity")


def test_a_folder_without_statistics_of_its_state_is_evaluated(tmp_path: Path) -> None:
    """lerobot/smolvla_base: by data set, none of the state."""
    both(lerobots("smolvla"), by_data_set(without_state=True))(tmp_path / "it")
    words = ("--checkpoint", str(tmp_path / "it"), "--unnorm-key", "so100", *IDENTITY)
    words += ("--gripper", "0..1")
    setup = settings(*words, "--engine-option", "flow_steps=4")
    engine = policy_spec(setup, Variant("auto")).engine
    assert (engine.state_normalization, engine.flow_steps) == ("identity", 4)
    assert engine.unnorm_key == "so100"
    assert policy_spec(setup, Variant("auto")).gripper == setup.gripper == "0..1"
    policy = overrides(setup, Variant("auto"), Job("auto", "reach_red_cube", 0, 0))["policy"]
    assert policy["gripper"] == "0..1"
    assert policy["engine_options"] == ["state_normalization=identity", "flow_steps=4"]
    assert setup_from_json(to_json(setup)) == setup


def test_an_adaptation_reaches_the_policy_on_both_ways_and_is_kept() -> None:
    words = ("--adapt", "cameras.main.rotate=180", "--adapt", "action_factor=1,-1,1,1,1,1,1")
    setup = settings("--checkpoint", "shipped:tabletop", *words)
    adaptation = policy_spec(setup, Variant("auto")).adaptation
    assert adaptation.images["main"].rotate == 180
    policy = overrides(setup, Variant("auto"), Job("auto", "reach_red_cube", 0, 0))["policy"]
    assert policy["cameras.main.rotate"] == 180
    assert policy["action_factor"] == [1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert setup_from_json(to_json(setup)) == setup != settings("--checkpoint", "shipped:tabletop")


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("gammma=3", "no engine option 'gammma': did you mean 'gamma'?"),
        ("state_normalization=maybe", "state_normalization is 'maybe': give one of auto, identity"),
        ("dtype=bfloat16", "--engine-option dtype: another flag, or the checkpoint, sets it"),
        ("drafter=head", "--engine-option drafter: another flag"),
        ("state_normalization", "--engine-option 'state_normalization': give name=value"),
    ],
)
def test_what_cannot_be_said_ends_before_anything_starts(
    word: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = ("--checkpoint", "random:smolvla-small")
    assert main(["eval", "--no-ros", *checkpoint, "--engine-option", word]) == 2
    error = capsys.readouterr().err
    assert says in error and error.strip().count("\n") == 0, error


def test_it_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--policy", "scripted", *IDENTITY]) == 2
    assert "--engine-option needs --policy vla" in capsys.readouterr().err
    assert main(["eval", "--policy", "scripted", "--adapt", "action_turn=z90"]) == 2
    assert "--adapt needs --policy vla" in capsys.readouterr().err
