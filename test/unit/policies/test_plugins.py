"""Policies of other packages: found by entry point, refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.plugins import EXAMPLE, install, offer
from unit.runtime.worker.bench import CLOCK
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.policies import PolicyRefused, PolicySpec, load_policy


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """An empty folder of packages on the path."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def refused(**fields) -> str:
    with pytest.raises(PolicyRefused) as error:
        load_policy(PolicySpec(**fields))
    text = str(error.value)
    assert "\n" not in text
    return text


def test_the_documented_package_installs_and_acts(tmp_path, monkeypatch):
    assert len((EXAMPLE / "example_policy.py").read_text().splitlines()) < 45
    monkeypatch.syspath_prepend(str(install(EXAMPLE, tmp_path)))
    policy = load_policy(PolicySpec("nod", options={"step_m": "0.01"}))
    policy.reset(Instruction("nod", 0))
    said = []
    for stamp in (1, 2):
        seen = Observation(stamp, stamp, stamp, np.full((4, 4, 3), 9, np.uint8))
        said.append(policy.step(seen, Timeline(1), CLOCK).actions[0, 2])
    assert said == pytest.approx([-0.01, 0.009])
    assert refused(name="nod", options={"step_m": "1"}) == (
        "policy 'nod' (entry point example_policy:Nod of example-policy 1.0): step_m is 1: that is"
        " no nod, give 0.05 or less"
    )


def test_an_unknown_name_is_refused_with_those_that_there_are(site):
    known = "policy is 'magic': there are zero, scripted, replay, vla, lerobot, remote, and "
    assert refused(name="magic") == (
        f"{known}no installed package offers another (entry point vla_ros.policies)"
    )
    offer(site, "juggle", "", "juggle = juggle:make", "dance = juggle:make")
    assert refused(name="magic") == f"{known}installed packages offer dance, juggle"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def make(spec): raise KeyError('no arm\\nat all')",
         "cannot be loaded: KeyError: 'no arm\\nat all'"),
        ("import a_module_of_nobody", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("", "cannot be loaded: AttributeError: module"),
        ("make = dict", "cannot be loaded: TypeError: 'PolicySpec' object is not iterable"),
        ("def make(spec): return {}", "gave a dict without info (a vla_ros.core.PolicyInfo), reset,"
                                     " step"),
        ("class make:\n def __init__(self, spec): self.info = 'me'\n def reset(self, i): 0\n"
         " def step(self, *_): 0", "gave a make without info (a vla_ros.core.PolicyInfo)"),
    ],
)  # fmt: skip
def test_a_package_that_fails_is_named_in_one_line(site, body, says, tmp_path):
    name = tmp_path.name  # another module each time
    offer(site, name, body)
    assert refused(name=name).startswith(
        f"policy '{name}' (entry point {name}:make of {name} 1.0) {says}"
    )


def test_two_packages_of_one_name_are_refused(site):
    offer(site, "left", "", "arm = left:make")
    offer(site, "right", "", "arm = right:make")
    text = refused(name="arm")
    assert "left:make of left 1.0" in text
    assert text.endswith("uninstall all but one")


def test_a_built_in_policy_wins_over_a_package(site):
    offer(site, "naught", "raise RuntimeError", "zero = naught:make")
    assert load_policy(PolicySpec("zero")).info.name == "zero"


def test_another_interpreter_is_asked_itself(site):
    """What it has installed cannot be seen from here."""
    assert PolicySpec("magic", worker_python="/usr/bin/python3").name == "magic"
