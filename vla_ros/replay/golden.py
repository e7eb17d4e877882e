"""Golden files: what a policy said about the frames of a bag, kept to compare with later.

JSON, readable and comparable by eye; numbers are written so that they are read back exactly.
"""

from __future__ import annotations

import json
from pathlib import Path

from vla_ros.action_space import END_EFFECTOR_DELTA
from vla_ros.core import CommandKind
from vla_ros.replay.errors import BagError
from vla_ros.replay.run import Run, Said

FORMAT = "vla_ros golden actions 1"


def save_golden(path: Path, run: Run, bag: str) -> None:
    """Write the policy's actions and tokens. BagError: the file cannot be written."""
    actions = [
        {"stamp_ns": key[0], "chunk_index": key[1], "action": list(said.action)}
        for key, said in run.actions.items()
    ]
    content = {
        "format": FORMAT,
        "bag": bag,
        "policy": run.policy,
        "schedule": run.schedule,
        "checkpoint": run.checkpoint,
        "checkpoint_sha256": run.checkpoint_sha256,
        "frames": run.frames,
        "names": list(run.names),
        "units": list(run.units),
        "actions": actions,
        "tokens": {str(stamp): list(tokens) for stamp, tokens in run.tokens.items()},
    }
    try:
        path.write_text(_lines(content), encoding="utf-8")
    except OSError as error:
        raise BagError(f"cannot write {path}: {error.strerror}") from None


def _lines(content: dict[str, object]) -> str:
    """JSON with one line an action."""
    rows = content.pop("actions")
    assert isinstance(rows, list)
    head = json.dumps(content)[:-1]
    body = ",\n".join(json.dumps(row) for row in rows)
    return f'{head}, "actions": [\n{body}\n]}}\n'


def load_golden(path: Path) -> Run:
    """The inverse of :func:`save_golden`. BagError: no such file, or something else in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BagError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BagError(f"{path} is no golden file: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BagError(f"{path} is no golden file: make one with `vla-ros replay BAG --save FILE`")
    try:
        names = tuple(map(str, content.get("names", END_EFFECTOR_DELTA.names)))
        units = tuple(map(str, content.get("units", END_EFFECTOR_DELTA.units)))
        said = tuple(_said(row, names, units) for row in content["actions"])
        tokens = {int(stamp): tuple(row) for stamp, row in content["tokens"].items()}
        return Run(
            said,
            tokens,
            int(content["frames"]),
            policy=content["policy"],
            schedule=content["schedule"],
            checkpoint=content["checkpoint"],
            checkpoint_sha256=content["checkpoint_sha256"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BagError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def _said(row: dict[str, object], names: tuple[str, ...], units: tuple[str, ...]) -> Said:
    stamp, index, action = row["stamp_ns"], row["chunk_index"], row["action"]
    if not (isinstance(stamp, int) and isinstance(index, int) and isinstance(action, list)):
        raise TypeError("an action is not as it was written")
    if len(action) != len(names):
        raise ValueError(f"an action has {len(action)} numbers, not {len(names)}")
    numbers = tuple(float(number) for number in action)
    return Said(
        CommandKind.POLICY,
        *(stamp,) * 4,
        numbers,
        chunk_index=index,
        names=names,
        units=units,
    )
