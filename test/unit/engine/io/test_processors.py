"""preprocessor_config.json: what it says is done, what cannot be done is refused by its name."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.engine import CPU, tiny_config
from vla_ros.engine import CheckpointError
from vla_ros.engine.families.openvla import PRESETS, write_random
from vla_ros.engine.io.checkpoint import read_config
from vla_ros.engine.io.config import DINOV2_L, SIGLIP_SO400M, ModelConfig
from vla_ros.engine.io.images.preprocessor import Preprocessor
from vla_ros.engine.io.processors import FILE, apply_preprocessor

CONFIG = PRESETS["openvla-7b"]
#: As published with openvla/openvla-7b: made with bfloat16 as the default type.
RELEASED: dict[str, Any] = {
    "auto_map": {"AutoImageProcessor": "processing_prismatic.PrismaticImageProcessor"},
    "image_processor_type": "PrismaticImageProcessor",
    "image_resize_strategy": "resize-naive",
    "input_sizes": [[3, 224, 224], [3, 224, 224]],
    "interpolations": ["bicubic", "bicubic"],
    "means": [[0.485, 0.456, 0.406], [0.5, 0.5, 0.5]],
    "processor_class": "PrismaticProcessor",
    "stds": [[0.229, 0.224, 0.225], [0.5, 0.5, 0.5]],
    "tvf_crop_params": [{"output_size": [224, 224]}, {"output_size": [224, 224]}],
    "tvf_do_letterbox": False,
    "tvf_letterbox_fill": None,
    "tvf_normalize_params": [
        {"inplace": False, "mean": [0.484375, 0.455078125, 0.40625],
         "std": [0.228515625, 0.2236328125, 0.224609375]},
        {"inplace": False, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    ],
    "tvf_resize_params": [
        {"antialias": True, "interpolation": 3, "max_size": None, "size": [224, 224]},
        {"antialias": True, "interpolation": 3, "max_size": None, "size": [224, 224]},
    ],
    "use_fused_vision_backbone": True,
}  # fmt: skip


def with_(*path: Any, value: Any, raw: dict[str, Any] = RELEASED) -> dict[str, Any]:
    """A copy of ``raw`` with one field changed."""
    changed = copy.deepcopy(raw)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def without_stored(raw: dict[str, Any] = RELEASED, **changes: Any) -> dict[str, Any]:
    """Without the fields that the class works out by itself."""
    return {**{k: v for k, v in raw.items() if not k.startswith("tvf_")}, **changes}


def white(config: ModelConfig) -> tuple[torch.Tensor, ...]:
    image = np.full((224, 224, 3), 255, np.uint8)
    return Preprocessor(config, CPU, torch.float32, False)(image)


def test_released_files_normalize_with_what_they_store() -> None:
    """0.484375, not 0.485: pixels of DINOv2 differ by up to 8e-3, and actions with them."""
    config = apply_preprocessor(CONFIG, RELEASED)
    assert config.towers[0].mean == (0.484375, 0.455078125, 0.40625)
    assert config.towers[0].std == (0.228515625, 0.2236328125, 0.224609375)
    assert config.towers[1] == SIGLIP_SO400M
    assert config.resize == "resize-naive"
    first, second = white(config)
    assert first[0, 0, 0, 0].item() == pytest.approx((1 - 0.484375) / 0.228515625, abs=1e-6)
    assert (first - white(CONFIG)[0]).abs().max().item() > 4e-3
    torch.testing.assert_close(second, torch.ones(1, 3, 224, 224))


def test_the_directory_s_file_wins_over_what_config_json_says(tmp_path: Path) -> None:
    config = tiny_config(towers="fused")
    write_random(tmp_path, config, seed=1)
    size = config.image_size
    raw = without_stored(
        image_resize_strategy="letterbox",
        input_sizes=[[3, size, size]] * 2,
        means=[[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]],
        interpolations=["bilinear", "lanczos"],
    )
    (tmp_path / FILE).write_text(json.dumps(raw))
    found, _ = read_config(tmp_path)
    assert [tower.mean for tower in found.towers] == [(0.1, 0.2, 0.3), (0.4, 0.5, 0.6)]
    assert [tower.interpolation for tower in found.towers] == ["bilinear", "lanczos"]
    assert (found.resize, found.fill) == ("letterbox", (102, 127, 153))
    (tmp_path / FILE).unlink()
    assert read_config(tmp_path)[0] == config


def test_without_stored_fields_they_follow_from_the_others() -> None:
    config = apply_preprocessor(CONFIG, without_stored())
    assert config == CONFIG
    assert config.towers[0] == DINOV2_L


@pytest.mark.parametrize("strategy", ["resize-crop", "letterbox"])
def test_the_stored_strategy_is_told_by_the_stored_size(strategy: str) -> None:
    raw = with_("image_resize_strategy", value=strategy)
    for resize in raw["tvf_resize_params"]:
        resize["size"] = 224
    raw["tvf_do_letterbox"] = strategy == "letterbox"
    raw["tvf_letterbox_fill"] = [127, 127, 127] if strategy == "letterbox" else None
    config = apply_preprocessor(CONFIG, raw)
    assert config.resize == strategy
    assert config.fill == ((127, 127, 127) if strategy == "letterbox" else None)


def test_a_fused_letterbox_has_one_grey_for_both_towers_as_the_processor_does() -> None:
    """SigLIP's grey for DINOv2 too; the training transform, without a file, uses each its own."""
    raw = without_stored(image_resize_strategy="letterbox")
    config = apply_preprocessor(CONFIG, raw)
    black = np.zeros((112, 224, 3), np.uint8)
    first, _ = Preprocessor(config, CPU, torch.float32, False)(black)
    mean, std = config.towers[0].mean[0], config.towers[0].std[0]
    assert first[0, 0, 0, 0].item() == pytest.approx((127 / 255 - mean) / std, abs=1e-5)
    trained = replace(CONFIG, resize="letterbox")
    first, second = Preprocessor(trained, CPU, torch.float32, False)(black)
    assert abs(first[0, 0, 0, 0].item()) < 0.02  # int(0.485 * 255) is 123: its own mean
    assert abs(second[0, 0, 0, 0].item()) < 0.01


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (with_("image_resize_strategy", value="stretch"), "image_resize_strategy is 'stretch'"),
        (with_("image_processor_type", value="SiglipImageProcessor"), "'SiglipImageProcessor'"),
        (with_("input_sizes", 0, value=[3, 256, 256]), "input_sizes"),
        (with_("input_sizes", value=[[3, 224, 224]]), "input_sizes .* each of the 2 towers"),
        (without_stored(means="grey"), "means is 'grey': wanted a list"),
        (with_("tvf_normalize_params", 0, "mean", value=[0.5, 0.5]), "mean is .* three numbers"),
        (with_("tvf_normalize_params", 1, "std", value=[0.0, 0.5, 0.5]), "stds .* above 0"),
        (with_("tvf_resize_params", 0, "max_size", value=300), "max_size is 300"),
        (with_("tvf_resize_params", 0, "size", value=[224, 200]), r"size is \[224, 200\]"),
        (with_("tvf_resize_params", 0, "size", value=224), "the same for every tower"),
        (with_("tvf_resize_params", 0, "interpolation", value=9), "interpolation is 9"),
        (with_("tvf_crop_params", 1, "output_size", value=[200, 200]), "tvf_crop_params"),
        (without_stored(interpolations=["bicubic", "random"]), "interpolations"),
        ([], "is a list|holds a list"),
    ],
)
def test_what_cannot_be_done_is_refused_when_it_is_read(
    raw: Any, message: str, tmp_path: Path
) -> None:
    """Before the first image is seen, with the file's name."""
    config = replace(CONFIG, text=tiny_config().text, action_vocab=960)
    (tmp_path / "config.json").write_text(json.dumps({
        "vision_backbone_id": "dinosiglip-vit-so-224px", "text_config": {"vocab_size": 32064},
    }))  # fmt: skip
    (tmp_path / FILE).write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=message) as error:
        read_config(tmp_path)
    assert str(error.value).startswith(str(tmp_path / FILE))
    assert "\n" not in str(error.value)
    assert config.towers == CONFIG.towers
