"""Every verb of the lab, given a name that a terminal would obey."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for module in ("torch", "mujoco"):
    pytest.importorskip(module, reason=f"{module} is not installed: its verbs say so instead")

from support.shown import check_verb
from vla_ros_lab.cli import VERBS

RATES = ["--camera-hz", "20", "--control-hz", "20", "--max-age-ms", "500"]
#: words of each verb with a hostile name among them, such that it is refused, or shown at once
WORDS = {
    "advise": [*RATES, "--bench", "{}"],
    "bench": ["--checkpoint", "{}"],
    "calibrate": ["--checkpoint", "{}"],
    "collect": ["--policy", "{}", "--out", "x"],
    "coverage": ["{}"],
    "demonstrations": ["--from-lerobot", "{}", "--out", "x", "--python", sys.executable],
    "loop": ["{}/none"],
    "roofline": ["--devices", "{}"],
    "train": ["--data", "{}", "--out", "x"],
    "verify": ["--checkpoint", "{}"],
}


def test_each_verb_is_asked() -> None:
    assert set(WORDS) == set(VERBS)


@pytest.mark.parametrize("verb", sorted(WORDS))
def test_a_name_that_a_terminal_would_obey_is_shown(verb: str, tmp_path: Path) -> None:
    check_verb([verb, *WORDS[verb]], tmp_path)
