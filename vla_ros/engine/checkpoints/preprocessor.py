"""How a checkpoint wants its pictures: its ``preprocessor_config.json``.

Source: openvla ``prismatic/extern/hf/processing_prismatic.py``. Its class works out the
``tvf_*`` fields from the others once, when a checkpoint is made, and stores both; on reload
what is stored wins. So it does here. The released files differ from what the towers' own
documentation says: the conversion ran with bfloat16 as the default type, and DINOv2's mean of
0.485 became 0.484375.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_ros.engine.checkpoints.bitvla.config import apply_siglip
from vla_ros.engine.checkpoints.config import INTERPOLATIONS, STRATEGIES, ModelConfig, TowerConfig
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.errors import CheckpointError

FILE = "preprocessor_config.json"
PROCESSOR = "PrismaticImageProcessor"


@dataclass(frozen=True, slots=True)
class _Resize:
    """What one ``tvf_resize_params`` entry says: both sides, or the shorter one."""

    both: bool
    interpolation: str


def read_preprocessor(directory: Path, config: ModelConfig) -> ModelConfig:
    """``config`` with what the directory's preprocessor says; as it is where there is none.

    CheckpointError names the file and the field that this engine cannot follow.
    """
    path = directory / FILE
    if not path.exists():
        return config
    try:
        return apply_preprocessor(config, read_json(path))
    except CheckpointError as error:
        said = str(error)
        raise CheckpointError(said if str(path) in said else f"{path}: {said}") from error


def apply_preprocessor(config: ModelConfig, raw: dict[str, Any]) -> ModelConfig:
    """``config`` with the content of a preprocessor_config.json."""
    if config.text.ternary:
        return apply_siglip(config, raw)
    fields = Fields(raw)
    kind = fields.text("image_processor_type", PROCESSOR)
    if kind != PROCESSOR:
        raise fields.wrong("image_processor_type", f"{PROCESSOR}, the family's own")
    count = len(config.towers)
    strategy = fields.choice("image_resize_strategy", "letterbox", STRATEGIES)
    towers = tuple(_tower(fields, tower, i, count) for i, tower in enumerate(config.towers))
    stored = [_resize(fields, tower, i, count) for i, tower in enumerate(towers)]
    boxed = fields.flag("tvf_do_letterbox", strategy == "letterbox")
    if stored[0] is not None:
        shown = {resize.both for resize in stored if resize is not None}
        if shown == {True, False} or (boxed and True in shown):
            raise fields.wrong("tvf_resize_params", "the same for every tower, as its class writes")
        strategy = "letterbox" if boxed else "resize-naive" if True in shown else "resize-crop"
        towers = tuple(
            replace(tower, interpolation=resize.interpolation) if resize else tower
            for tower, resize in zip(towers, stored, strict=True)
        )
    fill = _fill(fields, _list(fields, "means", count)[-1]) if boxed else None
    return replace(config, towers=towers, resize=strategy, fill=fill)


def _tower(fields: Fields, tower: TowerConfig, index: int, count: int) -> TowerConfig:
    size = _list(fields, "input_sizes", count)[index] or [3, 224, 224]
    if size != [3, tower.image_size, tower.image_size]:
        wanted = f"3, {tower.image_size}, {tower.image_size} for tower {index}"
        raise fields.wrong("input_sizes", wanted)
    crop = _part(fields, "tvf_crop_params", index, count).raw.get("output_size", size[1:])
    if crop not in (tower.image_size, size[1:]):
        raise fields.wrong("tvf_crop_params", f"{size[1:]} for tower {index}")
    normal = _part(fields, "tvf_normalize_params", index, count)
    mean, std = (
        normal.triple(one, normal.raw.get(one) or _list(fields, many, count)[index] or [0.5] * 3)
        for one, many in (("mean", "means"), ("std", "stds"))
    )
    if min(std) <= 0:
        raise fields.wrong("stds", "numbers above 0")
    interpolation = _list(fields, "interpolations", count)[index] or "bicubic"
    if interpolation not in INTERPOLATIONS:
        raise fields.wrong("interpolations", f"of {', '.join(INTERPOLATIONS)}")
    return replace(tower, mean=mean, std=std, interpolation=str(interpolation))


def _resize(fields: Fields, tower: TowerConfig, index: int, count: int) -> _Resize | None:
    """The stored resize of a tower; None where the file has none."""
    part = _part(fields, "tvf_resize_params", index, count)
    if not part.raw:
        return None
    if part.raw.get("max_size") is not None:
        raise part.wrong("max_size", "null")
    size, side = part.raw.get("size"), tower.image_size
    if size not in (side, [side], [side, side]):
        raise part.wrong("size", f"{side} or [{side}, {side}]")
    number = part.whole("interpolation", 3, 0, len(INTERPOLATIONS) - 1)
    return _Resize(size == [side, side], INTERPOLATIONS[number])


def _fill(fields: Fields, mean: object) -> tuple[int, int, int] | None:
    """The one colour that its class pads with for all towers: that of the last."""
    stored = fields.raw.get("tvf_letterbox_fill")
    if stored is None:
        stored = [int(x * 255) for x in fields.triple("means", mean or [0.5] * 3)]
    return fields.colour("tvf_letterbox_fill", stored)


def _list(fields: Fields, name: str, count: int) -> list[Any]:
    """A field with an entry for each of ``count`` towers; Nones where it is absent."""
    listed = fields.items(name) or [None] * count
    if len(listed) != count:
        raise fields.wrong(name, f"one entry for each of the {count} towers")
    return listed


def _part(fields: Fields, name: str, index: int, count: int) -> Fields:
    """Entry ``index`` of a list of objects; empty where it is absent."""
    return Fields(_list(fields, name, count)[index] or {}, f"{name}[{index}]")
