"""The instructions that a checkpoint was trained on, where its folder has them. Apart from the
findings: it reads files of strangers.

LeRobot's data sets keep their tasks in ``meta/tasks.parquet`` (v3) or ``meta/tasks.jsonl`` (v2):
beside the weights, or in the data set that ``train_config.json`` names.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vla_ros.core.files import INDEX, BadFile, parse_json, read_bytes, read_text
from vla_ros.core.text import printable
from vla_ros.engine.io.rates import TRAINED, data_sets, read
from vla_ros.policies.lerobot.environment import seen_variables
from vla_ros.policies.load import lerobot_python

_MOST_TASKS = 100_000
_PATIENCE_S = 60.0
#: In a process of its own, of a Python that has pyarrow: here, or LeRobot's. LeRobot writes the
#: tasks as pandas' index, which is a column of either name.
_PARQUET = f"""
import io, json, sys
from pyarrow import parquet
file = parquet.ParquetFile(io.BytesIO(sys.stdin.buffer.read()))
size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
if file.metadata.num_rows > {_MOST_TASKS} or size > {INDEX}:
    sys.exit(f"{{file.metadata.num_rows:,}} tasks of {{size:,}} bytes are too many")
names = [n for n in ("task", "__index_level_0__") if n in file.schema_arrow.names]
if not names:
    sys.exit(f"it has no column task, it has {{', '.join(file.schema_arrow.names)[:200]}}")
print(json.dumps(file.read(names[:1]).column(0).to_pylist()))
"""


def trained_texts(checkpoint: str) -> tuple[frozenset[str], str]:
    """The instructions of the data that a folder was trained on, empty: nothing has them; and why
    those that are there could not be read, or ""."""
    folder = Path(checkpoint)
    if not folder.is_dir():
        return frozenset(), ""
    trouble = ""
    for place in (folder, folder.parent, *data_sets(read(folder / TRAINED))):
        for name, texts in _READERS.items():
            path = place / "meta" / name
            try:
                if path.is_file() and (found := _known(texts(path))):
                    return found, ""
            except (OSError, BadFile) as error:  # another one may have them
                trouble = trouble or f"the instructions of the training data are not read: {error}"
    return frozenset(), trouble


def _known(texts: Iterable[Any]) -> frozenset[str]:
    return frozenset(t.strip() for t in texts if isinstance(t, str) and t.strip())


def _of_lines(path: Path) -> list[Any]:
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    if len(lines) > _MOST_TASKS:
        raise BadFile(f"{path} has {len(lines):,} tasks, and at most {_MOST_TASKS:,} are read")
    rows = [parse_json(line, str(path)) for line in lines]
    return [row.get("task") for row in rows if isinstance(row, dict)]


def _of_parquet(path: Path) -> list[Any]:
    here = importlib.util.find_spec("pyarrow") is not None
    python = Path(sys.executable) if here else lerobot_python()
    if not python.is_file():
        raise BadFile(f"{path} needs pyarrow: `pip install pyarrow`, or `vla-ros lerobot setup`,"
                      " whose Python has it")  # fmt: skip
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _PARQUET], input=read_bytes(path, INDEX), check=False,
            capture_output=True, timeout=_PATIENCE_S, env=seen_variables(os.environ),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BadFile(f"{path}: no answer of {python} within {_PATIENCE_S:g} s") from None
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["it ended"]
        raise BadFile(f"{path}: {printable(words[-1], 200)}")
    found = parse_json(done.stdout.decode(errors="replace"), str(path))
    return found if isinstance(found, list) else []


_READERS: dict[str, Callable[[Path], list[Any]]] = {
    "tasks.parquet": _of_parquet,
    "tasks.jsonl": _of_lines,
}


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
