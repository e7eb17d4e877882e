"""Verdicts of precision checks, kept with the hash of the checkpoint that they are about.

One file of JSON a precision and kind of device: in ``precision/`` of the checkpoint's folder, or in
the user's cache where that belongs to the package or cannot be written. A checkpoint that changed
by a byte has another hash, so an old verdict is none about it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vla_ros.core.errors import UserError
from vla_ros.core.files import read_json
from vla_ros.engine.formats import parse_formats
from vla_ros.engine.io.hub import PRECISION, RANDOM
from vla_ros.engine.layers.devices import device_of, multiplies_bfloat16
from vla_ros.engine.layers.tuner import multiplies_integers
from vla_ros.engine.options import AUTO, DTYPES, EngineOptions

_VERSION = 3  # of the measurement; a new one makes old verdicts void


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision that a verdict is about. ``weights``: a format, or formats by part; "" as they
    are stored.

    ``device``: its kind ("cpu", "cuda"): other kernels round otherwise.
    """

    dtype: str
    weights: str = ""
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype}: a check is of one of {', '.join(DTYPES)}")
        object.__setattr__(self, "device", self.device.partition(":")[0])
        object.__setattr__(self, "weights", str(parse_formats(self.weights)))

    def __str__(self) -> str:
        weights = f"{self.weights} weights, " if self.weights else ""
        return f"{weights}{self.dtype} on {self.device}"

    @property
    def file(self) -> str:
        """The name of its file. A CPU that multiplies int8 as integers has one of its own."""
        kind = self.device
        if "int8" in self.weights and multiplies_integers(torch.device(kind)):
            kind += "-vnni"
        return f"{self.weights or 'stored'}-{self.dtype}-{kind}.json".replace(",", "+")


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """A verdict. ``figures``: everything that was measured, as JSON."""

    checkpoint_sha256: str
    precision: Precision
    passed: bool
    reasons: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


class NotVerified(UserError):
    """A policy may not run since no check has shown that its precision is good enough. One line."""


def store(verdict: StoredVerdict, directory: Path | None) -> Path:
    """Keep a verdict; returns its file. ``directory``: the checkpoint's, None where it is the
    package's own or random."""
    last: OSError | None = None
    for folder in _folders(verdict.checkpoint_sha256, directory):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / verdict.precision.file
            scratch = path.with_name(f".{path.name}.{os.getpid()}")
            scratch.write_text(
                json.dumps({"version": _VERSION, **asdict(verdict)}, indent=1) + "\n"
            )
            scratch.replace(path)
            return path
        except OSError as error:
            last = error
    assert last is not None
    raise last


def find(sha256: str, precision: Precision, directory: Path | None) -> StoredVerdict | None:
    """The verdict about this checkpoint in this precision, passed or not; None: there is none."""
    for folder in _folders(sha256, directory):
        found = _read(folder / precision.file)
        if found is not None and found.checkpoint_sha256 == sha256:
            return found
    return None


def require(checkpoint: str, precision: Precision) -> None:
    """Refuse a checkpoint that did not pass in this precision: NotVerified. float32 as stored is
    the reference.

    CheckpointError where there is no such checkpoint.
    """
    if (precision.dtype, precision.weights) == ("float32", ""):
        return
    if checkpoint.startswith(RANDOM):
        raise NotVerified("require_verified: random weights are no policy that could be verified")
    found = _found(checkpoint, precision)
    if found is not None and found.passed:
        return
    why = f"failed its precision check ({found.reasons[0]})" if found else "has no precision check"
    raise NotVerified(
        f"require_verified: {checkpoint} with {precision} {why}:"
        f" run `{command(checkpoint, precision)}`"
    )


def chosen_dtype(checkpoint: str, weights: str, device: str) -> tuple[str, str]:
    """The dtype that ``auto`` stands for, and why: the fastest that was checked.

    On one core of a Zen 4 an action of shipped:tabletop took 35 ms in bfloat16 and 44 in float32.
    CheckpointError where there is no such checkpoint.
    """
    if not multiplies_bfloat16(torch.device(device)):
        return "float32", "this processor has no instructions for bfloat16"
    if checkpoint.startswith(RANDOM):
        return "float32", "random weights are never checked"
    precision = Precision("bfloat16", weights, device)
    found = _found(checkpoint, precision)
    if found is not None and found.passed:
        return "bfloat16", "it passed its precision check"
    why = "did not pass its precision check" if found else "has no precision check"
    return "float32", f"bfloat16 {why}: `{command(checkpoint, precision)}`"


def settled(options: EngineOptions) -> tuple[EngineOptions, tuple[str, ...]]:
    """Options with the device and dtype that were left open, and a line about each.

    CheckpointError where there is no such checkpoint.
    """
    device, why = device_of(options.device)
    lines = [f"device auto is {device}: {why}"] if why else []
    name, dtype = options.checkpoint, options.dtype
    if dtype == AUTO:
        dtype, why = chosen_dtype(name, options.weights, device)
        lines.append(f"dtype auto is {dtype}: {why}")
    elif not dtype:
        dtype = "float32" if torch.device(device).type == "cpu" else "bfloat16"
        if dtype == "bfloat16" and not name.startswith(RANDOM):
            precision = Precision(dtype, options.weights, device)
            found = _found(name, precision)
            if found is not None and not found.passed:
                dtype = "float32"
                lines.append("dtype is float32: bfloat16 did not pass its precision check")
            elif found is None:
                how = f"bfloat16 is not checked: `{command(name, precision)}`"
                lines.append(f"dtype is bfloat16, a GPU's default; {how}")
    return replace(options, device=device, dtype=dtype), tuple(lines)


def command(checkpoint: str, precision: Precision) -> str:
    """The command line that measures this precision."""
    words = ["vla-ros verify --checkpoint", checkpoint, "--dtype", precision.dtype]
    if precision.weights:
        words += ["--weights", precision.weights]
    if precision.device != "cpu":
        words += ["--device", precision.device]
    return " ".join(words)


def directory_of(checkpoint: str) -> Path | None:
    """The folder beside whose weights verdicts are kept; None: the package's own, or random."""
    from vla_ros.engine.io.hub import SHIPPED, resolve

    return None if checkpoint.startswith((RANDOM, SHIPPED)) else resolve(checkpoint)


def _found(checkpoint: str, precision: Precision) -> StoredVerdict | None:
    """The verdict about a checkpoint's files; the package has those of its own beside them."""
    from vla_ros.engine.families.registry import family_of
    from vla_ros.engine.io.hub import resolve

    directory = resolve(checkpoint)
    return find(family_of(directory).sha256(directory), precision, directory)


def _folders(sha256: str, directory: Path | None) -> list[Path]:
    """Folders to keep a verdict in, the best first."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = base / "vla_ros" / PRECISION / sha256[:16]
    return [cache] if directory is None else [directory / PRECISION, cache]


def _read(path: Path) -> StoredVerdict | None:
    """A verdict's file; None for one that is missing, damaged, or of another version."""
    try:
        raw = read_json(path)
        if raw["version"] != _VERSION:
            return None
        return StoredVerdict(
            str(raw["checkpoint_sha256"]),
            Precision(**raw["precision"]),
            raw["passed"] is True,
            tuple(map(str, raw["reasons"])),
            raw["figures"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
