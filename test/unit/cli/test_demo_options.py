"""`vla-ros demo`: options become parameters, wrong ones end with one line and status 2."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from support.plugins import offer
from vla_ros.cli.demo.verb import GRAPH, add_parser, check_graph, parameters
from vla_ros.cli.main import main
from vla_ros.core.errors import UserError
from vla_ros.ros.bringup.graph_file import GraphSpec

EXPERT = ("--policy", "scripted")


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["demo", *words])


def test_the_expert_needs_no_other_options() -> None:
    assert parameters(parsed("--policy", "scripted")) == {
        "policy": {"policy": "scripted", "mode": "realtime"},
        "bridge": {"mode": "realtime", "auto_reset": False},
        "monitor": {},
    }


#: What the policy reads from its checkpoint by itself: no command says it a second time.
CONVENTIONS = {"action_scale", "unnorm_key", "preprocessing", "center_crop", "use_wrist_image"}


def test_no_options_run_the_trained_policy_and_leave_its_units_to_it() -> None:
    pytest.importorskip("torch")
    policy = parameters(parsed())["policy"]
    assert (policy["policy"], policy["checkpoint"]) == ("vla", "shipped:tabletop")
    assert not {"max_age_s", *CONVENTIONS} & set(policy)


def test_random_weights_may_be_late() -> None:
    policy = parameters(parsed("--checkpoint", "random:small"))["policy"]
    assert policy["max_age_s"] > 0.5
    assert not CONVENTIONS & set(policy)
    given = parameters(parsed("--checkpoint", "random:small", "--device", "cuda:0"))["policy"]
    assert "max_age_s" not in given


def test_a_policy_that_takes_liberos_state_is_given_it() -> None:
    pytest.importorskip("torch")
    policy = parameters(parsed("--checkpoint", "random:bitvla-small"))["policy"]
    assert policy["state_layout"] == "libero_oft"
    assert policy["joint_names"] == ["finger_left", "finger_right"]
    assert not CONVENTIONS & set(policy)
    given = ("--checkpoint", "random:bitvla-small", "-p", "policy.state_layout=joints")
    assert parameters(parsed(*given))["policy"]["state_layout"] == "joints"
    assert "state_layout" not in parameters(parsed("--checkpoint", "random:small"))["policy"]


def test_a_checkpoint_that_is_not_there_is_refused_before_anything_starts() -> None:
    pytest.importorskip("torch")
    with pytest.raises(UserError, match="neither a directory nor a hub id"):
        parameters(parsed("--checkpoint", "/no/such/directory"))


def test_lockstep_runs_all_who_need_it_on_simulated_time() -> None:
    found = parameters(parsed(*EXPERT, "--mode", "lockstep", "--seed", "4", "--control-rate", "10"))
    assert found["policy"]["use_sim_time"] is True
    assert found["monitor"]["use_sim_time"] is True
    bridge = {"mode": "lockstep", "seed": 4, "auto_reset": False, "control_rate_hz": 10.0}
    assert found["bridge"] == bridge, "the world is stepped at the commands' rate"
    assert found["policy"]["control_rate_hz"] == 10.0


def test_what_an_installed_package_offers_acts_with_its_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "wave", "")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--policy", "wave", "--policy-option", "far=0.1", "--policy-option", "how=a=b"]
    policy = parameters(parsed(*words, "--checkpoint", "any", "--device", "cuda:0"))["policy"]
    assert (policy["policy"], policy["checkpoint"], policy["device"]) == ("wave", "any", "cuda:0")
    assert policy["policy_options"] == ["far=0.1", "how=a=b"]


def test_a_parameter_wins_over_the_option_it_doubles() -> None:
    found = parameters(parsed(*EXPERT, "--control-rate", "10", "-p", "policy.control_rate_hz=5.0"))
    assert found["policy"]["control_rate_hz"] == 5.0


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("--control-rate", "100"), ""),
        (
            ("--control-rate", "100", "-p", "bridge.control_rate_hz=50.0"),
            "100, and the world takes 50",
        ),
        (("-p", "policy.control_rate_hz=100.0"), "100, and the world takes 20 steps a second"),
    ],
)
def test_the_world_and_the_commands_have_one_rate(words: tuple[str, ...], refused: str) -> None:
    spec = GraphSpec.load(GRAPH, parameters(parsed(*EXPERT, *words)))
    if not refused:
        check_graph(spec)
        assert spec.node("policy").values()["action_rate_hz"] == 20.0
        return
    with pytest.raises(UserError, match=refused):
        check_graph(spec)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--policy", "scripted", "--decoding", "actionflow"],
            "--decoding needs --policy vla, not scripted",
        ),
        (["--policy", "zero", "--checkpoint", "x"], "--checkpoint needs --policy vla"),
        (
            ["--policy", "nobody"],
            "policy is 'nobody': there are zero, scripted, replay, vla, lerobot",
        ),
        (["--policy", "lerobot"], "--policy lerobot needs --checkpoint"),
        (["--policy-option", "a=b"], "--policy-option needs --policy lerobot"),
        (
            ["--policy", "lerobot", "--checkpoint", ".", "--policy-option", "a"],
            "--policy-option a: write name=value",
        ),
        (["--policy", "replay"], "--policy replay needs --replay-file"),
        (["--policy", "replay", "--replay-file", "/no/file"], "no file /no/file"),
        (["--control-rate", "0"], "must be 1 to 500 Hz"),
        (["--control-rate", "nan"], "must be 1 to 500 Hz"),
        (["--timeout", "-1"], "--timeout -1: must be above 0"),
        (["--timeout", "nan"], "--timeout nan: must be above 0"),
        (["--seed", "-1"], "--seed -1: must be 0 to"),
        (["--domain-id", "233"], "must be 0 to 232"),
        (["-p", "policy"], "write NODE.PARAMETER=VALUE"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *words]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
