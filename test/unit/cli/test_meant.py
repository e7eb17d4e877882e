"""Mistyped names of every kind: one line, with the name that was meant, before anything starts."""

import pytest

from vla_ros.cli.main import main
from vla_ros.core.names import known_or_nearest, nearest
from vla_ros.engine.families.registry import FAMILIES
from vla_ros.policies.base import MODELS, PolicyRefused, refuse_unknown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["recrod"], "there is no verb 'recrod': did you mean 'record'?"),
        (["-p", "bridge.instruction=pick", "up", "sim"], "the verb comes first"),
        (["up", "sim", "-p", "bridge.instruction=pick", "up", "it"], "spaces in quotes"),
        (["up", "sim", "--lits"], "there is no --lits: did you mean '--list'?"),
        (["up", "smi"], "no graph or robot file 'smi': did you mean 'sim'?"),
        (["up", "sim", "-p", "polici.mode=lockstep"], "no node 'polici': did you mean 'policy'?"),
        (["up", "policy", "-p", "policy.policy=scrpted"], "did you mean 'scripted'?"),
        (["up", "policy", "-p", "policy.policy=smolvla"], "a model: give policy: vla"),
        (["up", "policy", "-p", "policy.outputs=twist"], "a list such as [twist], not 'twist'"),
        (["demo", "--mode", "lockstp"], "did you mean 'lockstep'?"),
        (["eval", "--tasks", "pick_red_cub", "--no-ros"], "did you mean 'pick_red_cube'?"),
        (["doctor", "--checkpoint", "shipped:tabletpo"], "did you mean 'shipped:tabletop'?"),
    ],
)
def test_the_line_names_what_was_meant(words, says, capsys):
    try:
        status = main(words)
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    assert status in (1, 2)
    assert says in out + err
    assert "Traceback" not in out + err
    assert len(err.splitlines()) <= 1


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_that_is_taken_for_a_policy_is_answered(kind):
    if kind == "tokens":
        kind = "openvla-7b"
    with pytest.raises(PolicyRefused, match="which is a model: give policy: vla and checkpoint"):
        refuse_unknown(kind)
    assert len(set(MODELS)) == len(MODELS)


def test_what_is_far_from_all_is_answered_with_all():
    assert nearest("xyz", ["image", "wrist_image"]) == ""
    assert known_or_nearest("xyz", ["image", "joints"]) == "; there are image, joints"
    assert known_or_nearest("x", []) == "; there are none"


def test_help_has_every_verb_in_a_group(capsys):
    from vla_ros.cli.main import available

    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for verb in available():
        assert f"\n  {verb} " in shown, verb
    for title in ("run a policy:", "data:", "learn:", "measure:", "set up:"):
        assert title in shown
    assert max(map(len, shown.splitlines())) <= 80
