"""What the flags of `vla-ros serve` say of units and of the engine reaches the policy."""

from __future__ import annotations

import socket

import pytest

from vla_ros.cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """DIR: a checkpoint that is there is all that is looked at before the flags."""
    (tmp_path / "DIR").mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def served(monkeypatch):
    """The policy that would be served by these words."""
    found = []
    monkeypatch.setattr(
        "vla_ros.serve.server.serve", lambda spec, options, say: found.append(spec) or 0
    )

    def run(*words):
        assert main(["serve", *words]) == 0
        return found[-1]

    return run


def test_units_scale_and_options_reach_the_policy(served):
    spec = served(
        "DIR", "--action-units", "deg,deg,0..100", "--state-units", "deg",
        "--engine-option", "state_in_prompt=robot", "--engine-option", "gamma=3",
        "--policy-option", "speed=2",
    )  # fmt: skip
    assert spec.action_units == ("deg", "deg", "0..100")
    assert spec.state_units == ("deg",)
    assert spec.engine.gamma == 3
    assert spec.options == {"speed": "2"}
    assert served("DIR", "--action-scale", "0.05,0.5").action_scale == (0.05,) * 3 + (0.5,) * 3
    assert served("DIR").action_scale is None
    six = served("DIR", "--action-scale", "1,2,3,4,5,6").action_scale
    assert six == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


def test_joints_and_grippers_reach_the_policy(served):
    spec = served(
        "DIR", "--action-space", "joint_position", "--action-names", "a,b,finger_joint",
        "--gripper", "0.8..0", "--action-units", "deg", "--action-rate-hz", "20",
    )  # fmt: skip
    assert spec.action_space.names == ("a", "b", "finger_joint")
    assert spec.action_space.grippers == (2,)
    assert (spec.gripper, spec.action_units, spec.action_rate_hz) == ("0.8..0", ("deg",), 20.0)


def test_what_a_check_finds_reaches_the_policy(served):
    words = ("--adapt", "cameras.main.rotate=180", "--adapt", "action_factor=1,-1,1,1,1,1,1")
    adaptation = served("DIR", *words).adaptation
    assert adaptation.images["main"].rotate == 180
    assert adaptation.action.values.factor == (1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert not served("DIR").adaptation


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--action-space", "joint_delta"], "--action-names goes with --action-space"),
        (["--action-names", "a,b"], "--action-names goes with --action-space"),
        (["--action-scale", "1,2,3"], "--action-scale 1,2,3: write two numbers or six"),
        (["--action-scale", "a,b"], "write two numbers or six"),
        (["--adapt", "rotate=180"], "--adapt 'rotate=180': no rotate: there are cameras.ROLE"),
        (["--engine-option", "gamma"], "--engine-option gamma: write NAME=VALUE"),
        (["--engine-option", "gamm=3"], "no engine option 'gamm': did you mean 'gamma'?"),
        (["--engine-option", "decoding=auto"], "a flag of that name says it"),
        (["--policy-option", "a=1", "--policy-option", "a=2"], "each name once"),
    ],
)
def test_wrong_ones_are_a_line(capsys, words, says):
    assert main(["serve", "DIR", *words]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_an_address_that_cannot_be_listened_at_is_a_line_before_anything_loads(capsys, monkeypatch):
    monkeypatch.setenv("VLA_ROS_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, says in (
            (["--port", port], "is taken: give another --port, 0 for a free one"),
            (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: "),
        ):
            words = ["serve", "DIR", *words]
            assert main(words) == 2
            err = capsys.readouterr().err
            assert says in err and err.count("\n") == 1, err
