"""Rate of the data that a checkpoint's actions were learned from, read of its folder.

No architecture has a field for it. What there is: this project's own ``action_rate_hz`` in
config.json; the ``fps`` of a data set of LeRobot's, beside the policy or where its
``train_config.json`` says that it was; the line that LeRobot 0.6 writes into the card of a policy
that it publishes; and the simulation it was evaluated in, in ``train_config.json``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vla_ros.core.files import parse_json, read_text
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.files import naming, read_json, write_json

RATE = "action_rate_hz"  # in config.json
#: robosuite's. Data sets of LIBERO in LeRobot's layout say 10, and LeRobot before 0.6.1 wrote 30.
LIBERO_HZ = 20.0
CONFIG, TRAINED, CARD = "config.json", "train_config.json", "README.md"
INFO = Path("meta") / "info.json"
_CARDS_LINE = re.compile(r"^- \*\*Frame rate:\*\* ([0-9.]+) FPS\s*$", re.MULTILINE)
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def action_rate_of(directory: Path) -> float:
    """Rate in Hz of the data that a folder's policy learned from, 0 where nothing says it.

    CheckpointError: config.json has an ``action_rate_hz`` that is none. Other people's files are
    read as far as they can be.
    """
    path = directory / CONFIG
    if path.is_file():
        with naming(path):
            fields = Fields(read_json(path))
            if fields.raw.get(RATE) is not None:
                return fields.number(RATE, 0.0)
    trained = read(directory / TRAINED)
    if "libero" in f"{part(trained, 'env').get('type')} {repository(trained)}".lower():
        return LIBERO_HZ
    said = (
        *(read(folder / INFO).get("fps") for folder in (directory, *data_sets(trained))),
        _card(directory / CARD),
        part(trained, "env").get("fps"),
    )
    return next((rate for rate in map(_rate, said) if rate), 0.0)


def write_action_rate(directory: Path, hz: float) -> None:
    """Write the rate into a folder's config.json, in place of the one that it has."""
    path = directory / CONFIG
    write_json(path, {RATE: hz} | {k: v for k, v in read_json(path).items() if k != RATE})


def data_sets(trained: Mapping[str, Any]) -> Iterator[Path]:
    """Where the data set of a train_config.json may be on this machine, as LeRobot looks for it."""
    root = part(trained, "dataset").get("root")
    if isinstance(root, str) and root:
        yield Path(root)
    if name := repository(trained):
        home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
        of_lerobot = Path(os.environ.get("HF_LEROBOT_HOME") or f"{home}/lerobot").expanduser()
        yield of_lerobot / name
        cached = of_lerobot / "hub" / f"datasets--{name.replace('/', '--')}" / "snapshots"
        yield from sorted(cached.glob("*"))


def repository(trained: Mapping[str, Any]) -> str:
    """The hub's name of the data set, "" where there is none."""
    name = part(trained, "dataset").get("repo_id")
    return name if isinstance(name, str) and _REPOSITORY.fullmatch(name) else ""


def part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, Mapping) else {}


def read(path: Path) -> Mapping[str, Any]:
    """A JSON object of somebody's, empty where there is none to be read."""
    try:
        return read_json(path) if path.is_file() else {}
    except (CheckpointError, OSError):
        return {}


def _card(path: Path) -> float:
    """The frame rate in a card of LeRobot's, 0 where there is none."""
    try:
        found = _CARDS_LINE.search(read_text(path)) if path.is_file() else None
        return parse_json(found[1], str(path)) if found else 0.0
    except (OSError, ValueError):
        return 0.0


def _rate(value: object) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good and value > 0 else 0.0  # type: ignore[arg-type, operator]
