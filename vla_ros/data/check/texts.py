"""The instructions that a checkpoint was trained on, where its folder says them. Apart from the
findings: it reads files of strangers.

Data sets of LeRobot's v2 keep their tasks in ``meta/tasks.jsonl``: beside the weights, or
``train_config.json`` names the data set's folder. v3's parquet is not read here.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from pathlib import Path

from vla_ros.core.files import BadFile, parse_json, read_json, read_text

_MOST_TASKS = 100_000


def trained_texts(checkpoint: str) -> frozenset[str]:
    """The instructions of the data that a folder was trained on; empty: it does not say them."""
    folder = Path(checkpoint)
    if not folder.is_dir():
        return frozenset()
    for place in (folder, folder.parent, *_data_set(folder)):
        with contextlib.suppress(OSError, BadFile):  # another one may say them
            if found := _tasks(place / "meta"):
                return found
    return frozenset()


def _data_set(folder: Path) -> list[Path]:
    """The data set's folder, if LeRobot's trainer named one that is here."""
    try:
        content = read_json(folder / "train_config.json")
    except (OSError, BadFile):
        return []
    data = content.get("dataset") if isinstance(content, dict) else None
    root = data.get("root") if isinstance(data, dict) else None
    return [Path(root)] if isinstance(root, str) and root else []


def _tasks(meta: Path) -> frozenset[str]:
    path = meta / "tasks.jsonl"
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    if len(lines) > _MOST_TASKS:
        raise BadFile(f"{path} has {len(lines):,} tasks, and at most {_MOST_TASKS:,} are read")
    rows = [parse_json(line, str(path)) for line in lines]
    found = (row.get("task") for row in rows if isinstance(row, dict))
    return frozenset(t.strip() for t in found if isinstance(t, str) and t.strip())


def beside(text: str, trained: frozenset[str]) -> str:
    """What to say of an instruction that is none of the trained ones; "": it is one, or nothing is
    known."""
    if not trained or text in trained:
        return ""
    plain = {_plain(known): known for known in sorted(trained)}
    if (same := plain.get(_plain(text))) is not None:
        return f"the training data write it {same!r}: a policy may read that otherwise"
    near = difflib.get_close_matches(_plain(text), plain, 1, 0.6)
    like = f"; the nearest is {plain[near[0]]!r}" if near else f", such as {min(trained)!r}"
    return f"it is none of the {len(trained)} of the training data{like}"


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[\W_]+", " ", text.casefold()).split())
