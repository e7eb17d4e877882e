"""A name that a terminal would obey, the verbs of `vla-ros` that are given it, and what is left of
it in what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path

EVIL = "\x1b[2J\x1b]0;x\x07\u202egnp.\u2066\r\n[FATAL] fake\x9b2J"
RUN = "import sys; from vla_ros.cli.main import main; sys.exit(main())"


def obeyed(text: str) -> list[str]:
    """Characters that a terminal or a reader would obey, line ends and tabs apart."""
    return [
        c
        for c in text
        if (unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t")
        or 0x202A <= ord(c) <= 0x202E
        or 0x2066 <= ord(c) <= 0x2069
        or c in "\u200e\u200f\u061c"
    ]


def hostile_folder(folder: Path) -> str:
    """The name of a new folder that looks like a checkpoint, a data set and a bag, and is none."""
    made = folder / EVIL
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"model_type": EVIL, "type": EVIL}))
    (made / "metadata.yaml").write_text(f"rosbag2_bagfile_information: {json.dumps(EVIL)}\n")
    return EVIL


def check_verb(words: Sequence[str], folder: Path) -> None:
    """Run `vla-ros` in ``folder`` with the hostile name in place of each ``{}``: it is named, and
    nothing is left in it that would be obeyed."""
    name = hostile_folder(folder)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, *(word.format(name) for word in words)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=120)
    text = (done.stdout + done.stderr).decode(errors="replace")
    assert obeyed(text) == []
    assert "\n[FATAL] fake" not in text
    assert "FATAL" in text, f"it is named: {text}"
