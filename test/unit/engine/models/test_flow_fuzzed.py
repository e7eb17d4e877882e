"""What `make fuzz` found in checkpoints of flow policies: each is one line now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.folders import refused
from vla_ros.engine.families.registry import all_presets, write_folder


def made(folder: Path, preset: str) -> Path:
    folder.mkdir()
    write_folder(folder, all_presets()[preset], seed=0)
    return folder


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("value", [[0.5, 0.5, "x"], [0.5, 0.5, None], [0.5] * 4])
def test_colors_of_evo1_are_three_numbers(tmp_path: Path, name: str, value: list[Any]) -> None:
    """They were torch's business at the first frame."""
    path = made(tmp_path / "it", "evo1-small") / "config.json"
    content = json.loads(path.read_text())
    content["shapes"]["vision"][name] = value
    path.write_text(json.dumps(content))
    assert f"{name} is" in refused(path.parent) and "three numbers" in refused(path.parent)


def test_a_prompt_of_evo1_has_an_end(tmp_path: Path) -> None:
    """A mask of its length squared is made of it: 37 GB were asked for."""
    path = made(tmp_path / "it", "evo1-small") / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "max_text_length": 96000}))
    assert "max_text_length is 96000" in refused(path.parent)


def test_probed_states_are_numbers(tmp_path: Path) -> None:
    path = made(tmp_path / "it", "pi05-small") / "discrete.json"
    content = json.loads(path.read_text())
    content["state_bins"]["values"][1] = [False]
    path.write_text(json.dumps(content))
    assert "values is" in refused(path.parent)


def test_a_shard_of_a_name_that_no_disk_takes_is_not_there(tmp_path: Path) -> None:
    path = made(tmp_path / "it", "groot-n1.7-small") / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    content["weight_map"][min(content["weight_map"])] = "0" * 400
    path.write_text(json.dumps(content))
    assert "lacks the shards" in refused(path.parent)
