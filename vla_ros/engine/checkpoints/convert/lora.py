"""A LoRA adapter on its own: what it was trained on, with it merged in."""

from __future__ import annotations

import json
from pathlib import Path

from vla_ros.engine.checkpoints.convert.adapter import adapter_in, merge
from vla_ros.engine.checkpoints.convert.copying import copy_beside
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.checkpoints.parse import read_config
from vla_ros.engine.errors import CheckpointError


def convert_adapter(source: Path, scratch: Path, base: Path | None) -> str:
    """An adapter, merged into ``base``; its own statistics win over the base's."""
    directory = adapter_in(source)
    assert directory is not None  # the caller saw it
    if base is None:
        said = read_json(directory / "adapter_config.json").get("base_model_name_or_path")
        known = f" ({said})" if isinstance(said, str) and said else ""
        raise CheckpointError(
            f"{source} is a LoRA adapter: give --base, the directory of its base model{known}"
        )
    config, raw = read_config(base)
    summary = merge(base, directory, scratch, config)
    copy_beside(base, scratch)
    for place in (directory, source):
        copy_beside(place, scratch)
    (scratch / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    return summary
