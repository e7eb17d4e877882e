"""The position gate of SmolVLM's vision tower: which row of its table each patch gets.

The tower finds the rows with a bucket search in the weights' number format, so another version or
format may move a patch by one row: the actions stay plausible and the policy is another one. The
rows are computed at loading and compared, as integers, with those stored in the checkpoint's
``discrete.json`` (the native engine's file), else with exact arithmetic.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from vla_ros.policies.base import PolicyRefused

FILE = "discrete.json"
TOWER = "SmolVLMVisionEmbeddings"


def check_positions(model: Any, directory: Path, side: int) -> None:
    """``side``: of the square image that the tower sees, in pixels. PolicyRefused names the rows.

    Models without that tower pass.
    """
    for module in model.modules():
        if type(module).__name__ == TOWER:
            found = positions(module, side)
            patches, rows = side // module.patch_size, module.num_patches_per_side
            _compare(stored(directory) or exact(patches, rows), found)


def positions(tower: Any, side: int) -> list[int]:
    """The rows that the tower looks up for an image of this size."""
    seen: list[torch.Tensor] = []
    hook = tower.position_embedding.register_forward_pre_hook(
        lambda _, arguments: seen.append(arguments[0])
    )
    weight = tower.patch_embedding.weight
    patches = side // tower.patch_size
    try:
        with torch.no_grad():
            tower(
                pixel_values=torch.zeros(
                    1, 3, side, side, dtype=weight.dtype, device=weight.device
                ),
                patch_attention_mask=torch.ones(
                    1, patches, patches, dtype=torch.bool, device=weight.device
                ),
            )
    finally:
        hook.remove()
    return [int(i) for i in seen[0].flatten().tolist()]


def exact(patches: int, rows: int) -> list[int]:
    """Patch (i, j) of n x n lies in cell (floor(i N / n), floor(j N / n)) of the table's N x N."""
    cells = [i * rows // patches for i in range(patches)]
    return [y * rows + x for y in cells for x in cells]


def stored(directory: Path) -> list[int] | None:
    """The checkpoint's own rows, where it has any."""
    path = directory / FILE
    if not path.is_file():
        return None
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return [int(i) for i in raw["position_ids"]] if "position_ids" in raw else None
    except (OSError, ValueError, TypeError) as error:
        raise PolicyRefused(f"{path} cannot be read: {error}") from error


def _compare(wanted: list[int], found: list[int]) -> None:
    if len(wanted) != len(found):
        raise PolicyRefused(f"{len(wanted)} position ids are stored, the tower has {len(found)}")
    wrong = [i for i, pair in enumerate(zip(wanted, found, strict=True)) if pair[0] != pair[1]]
    if wrong:
        few = ", ".join(f"[{i}] {wanted[i]} is {found[i]}" for i in wrong[:3])
        raise PolicyRefused(
            f"{len(wrong)} of {len(wanted)} position ids are not the checkpoint's ({few}): this"
            " would be another policy; use the transformers and dtype that it was trained with"
        )
