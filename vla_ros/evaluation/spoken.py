"""What a policy said, frame by frame: an .npz an episode in the folder `tokens` of an evaluation.

Each holds ``tokens`` int32 [frames, K], in the order of the frames, and ``success``, bool. What an
evaluation's lines keep of them is a digest only; these are for studies of drafts.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vla_ros.errors import UserError
from vla_ros.evaluation.records import Record

FOLDER = "tokens"


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """One episode: ``tokens`` int [frames, K]."""

    name: str
    tokens: npt.NDArray[np.int32]
    success: bool


def write_spoken(record: Record, directory: Path) -> Path | None:
    """Write what was said in an episode into the evaluation's directory; None: nothing was."""
    if not record.said:
        return None
    name = re.sub(r"[^A-Za-z0-9._=,-]+", "_", record.job.key()).strip("_")
    path = directory / FOLDER / f"{name[:200]}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, tokens=np.asarray(record.said, np.int32), success=record.success)
    return path


def read_spoken(directory: Path, variant: str = "") -> list[Spoken]:
    """The episodes of an evaluation, or of one of its variants, by name. UserError, OSError."""
    start = re.sub(r"[^A-Za-z0-9._=,-]+", "_", f"{variant}/") if variant else ""
    paths = sorted(p for p in (directory / FOLDER).glob("*.npz") if p.name.startswith(start))
    if not paths:
        raise UserError(f"{directory / FOLDER} holds no tokens: play with `eval --keep-tokens`")
    return [_read(path) for path in paths]


def _read(path: Path) -> Spoken:
    try:
        with np.load(path, allow_pickle=False) as archive:
            tokens: npt.NDArray[Any] = archive["tokens"]
            success = bool(archive["success"])
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if tokens.ndim != 2 or tokens.dtype != np.int32:
        raise UserError(f"{path}: tokens are {tokens.dtype} {tokens.shape}, not int32 [frames, K]")
    return Spoken(path.stem, tokens, success)
