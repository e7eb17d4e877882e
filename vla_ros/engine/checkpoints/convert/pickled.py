"""OpenVLA's layout with its weights in ``pytorch_model*.bin``: the same in safetensors."""

from __future__ import annotations

import json
from pathlib import Path

from vla_ros.engine.checkpoints.convert.copying import INDEX, copy_beside
from vla_ros.engine.checkpoints.convert.unpickle import to_safetensors
from vla_ros.engine.checkpoints.family import PICKLES
from vla_ros.engine.checkpoints.files import read_json, weight_map
from vla_ros.engine.checkpoints.weights import read_headers
from vla_ros.engine.errors import CheckpointError


def pickles_in(directory: Path) -> list[Path]:
    """Files of weights that are pickles."""
    return sorted(path for pattern in PICKLES for path in directory.glob(pattern))


def convert_pickled(source: Path, scratch: Path) -> str:
    """Every file on its own, and an index over them where there are several."""
    read_json(source / "config.json")
    files = pickles_in(source)
    index = source / "pytorch_model.bin.index.json"
    if index.is_file():
        files = [source / name for name in sorted(set(weight_map(index).values()))]
    elif len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise CheckpointError(f"{source} has {names} and no index: which one is the model?")
    for number, path in enumerate(files, 1):
        several = f"-{number:05d}-of-{len(files):05d}" if len(files) > 1 else ""
        to_safetensors(path, scratch / f"model{several}.safetensors")
    if len(files) > 1:
        stored = read_headers(sorted(scratch.glob("model-*.safetensors")))
        named = {"weight_map": {name: where.path.name for name, where in stored.items()}}
        (scratch / INDEX).write_text(json.dumps(named, indent=1) + "\n")
    copy_beside(source, scratch)
    return f"{len(files)} file{'s' * (len(files) > 1)} of pickled weights"
