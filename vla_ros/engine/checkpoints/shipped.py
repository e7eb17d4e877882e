"""The checkpoints that come with the package: ``shipped:tabletop`` and its draft model."""

from __future__ import annotations

from pathlib import Path

from vla_ros.engine.errors import CheckpointError

PREFIX = "shipped:"
_FOLDER = Path(__file__).resolve().parents[2] / "shipped"


def shipped(name: str) -> Path:
    """``shipped:<name>`` -> its directory. CheckpointError: there is none of that name."""
    wanted = name.removeprefix(PREFIX)
    known = sorted(path.parent.name for path in _FOLDER.glob("*/config.json"))
    if wanted not in known:
        names = ", ".join(PREFIX + one for one in known) or "none"
        raise CheckpointError(f"{name!r} is unknown; the package comes with {names}")
    return _FOLDER / wanted
