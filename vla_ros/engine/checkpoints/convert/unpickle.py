"""Tensors of a ``.pt`` or ``.bin`` file, as safetensors. No pickle is read in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from vla_ros.engine.checkpoints.files import refuse_broken
from vla_ros.engine.errors import CheckpointError

SEPARATOR = "/"  # {"model": {"llm": {"x": tensor}}} becomes model/llm/x
_PROGRAM = Path(__file__).with_name("unpickle_process.py")


def to_safetensors(source: Path, target: Path) -> Path:
    """Write the tensors of ``source`` to ``target``. CheckpointError: it holds something else.

    A process of its own reads the file with torch's ``weights_only`` unpickler, which admits
    tensors and plain containers and nothing that could run code. A file made to crash it takes
    nothing else along.
    """
    refuse_broken(source)
    reason = _in_a_process(str(source), str(target), SEPARATOR)
    if reason is not None:
        raise CheckpointError(f"{source}: {reason}")
    return target


def _in_a_process(source: str, target: str, separator: str) -> str | None:
    """Run the program; returns what is wrong with ``source``."""
    command = [sys.executable, str(_PROGRAM), source, target, separator]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    try:
        return str(json.loads(done.stdout.strip().splitlines()[-1])["reason"])
    except (IndexError, ValueError, KeyError, TypeError):
        return f"the process that read it ended with status {done.returncode}"
