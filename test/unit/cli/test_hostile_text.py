"""Every verb, given a name that a terminal would obey: a folder, a checkpoint, a bag."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for module in ("rclpy", "torch", "mujoco", "websockets"):
    pytest.importorskip(module, reason=f"{module} is not installed: its verbs say so instead")

from support.shown import check_verb
from vla_ros.cli.arguments import VERBS

#: words of each verb with a hostile name among them, such that it is refused, or shown at once
WORDS = {
    "check": ["{}", "{}"],
    "contract": ["{}"],
    "convert": ["{}", "{}/x"],
    "demo": ["--policy", "vla", "--checkpoint", "{}"],
    "doctor": ["--checkpoint", "{}"],
    "eval": ["--policy", "vla", "--checkpoint", "{}"],
    "export": ["--lerobot", "{}", "--out", "x", "--python", sys.executable],
    "lerobot": ["check", "{}"],
    "libero": ["tasks", "--suite", "{}"],
    "lock": ["{}"],
    "quantize": ["--checkpoint", "{}", "--weights", "int8", "--out", "x"],
    "record": ["--topic", "{}"],
    "replay": ["{}"],
    "rerun": ["{}", "--out", "{}"],
    "serve": ["{}", "--port", "0"],
    "setup": ["--yes", "--robot", "{}"],
    "up": ["policy", "--contract", "{}/none"],
}


def test_each_verb_is_asked() -> None:
    assert set(WORDS) == set(VERBS)


@pytest.mark.parametrize("verb", sorted(WORDS))
def test_a_name_that_a_terminal_would_obey_is_shown(verb: str, tmp_path: Path) -> None:
    check_verb([verb, *WORDS[verb]], tmp_path)
