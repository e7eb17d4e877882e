"""A copy of a token policy with a fault of precision in its weights, an ordinary checkpoint.

    python benchmarks/precision/damage.py --bits 3 OUT            coarser than int4: 2**3 values
    python benchmarks/precision/damage.py --positions half OUT    patches on others' positions
    python benchmarks/precision/damage.py --positions one_low OUT

For `vla-ros verify --checkpoint OUT --reference shipped:tabletop` and `vla-ros eval --checkpoint
OUT`: what is played has gone wrong in the checkpoint, and nothing in the product knows of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from vla_ros.core.errors import UserError
from vla_ros.engine.formats import STORED, Formats
from vla_ros.engine.io.checkpoint import read_config
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.io.files import copy_beside, publishing
from vla_ros.engine.io.hub import resolve
from vla_ros.engine.io.quantize import format_of
from vla_ros.engine.layers.kernels.torch_products import GROUP
from vla_ros.engine.models.golden_ints import patch_positions

#: every matrix that `--weights vision=int4,decoder=int4,head=int4` would quantize
ALL = Formats("int4", "int4", "int4")
TABLE = "vision_backbone.featurizer.pos_embed"


def coarse(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """[N, K] -> the same, rounded as int4 is, but to 2**bits even steps a group; bfloat16.

    With 4 bits it is, to the bit, what ``Int4.of(weight).whole()`` gives.
    """
    count, width = weight.shape
    groups = weight.float().view(count, width // GROUP, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    half = 2 ** (bits - 1)
    step = ((high - low) / (2 * half - 1)).clamp_min(1e-30).bfloat16().float()
    middle = (low + half * step).bfloat16().float()
    values = ((groups - middle) / step).round().clamp(-half, half - 1)
    return (values * step + middle).view(count, width).bfloat16()


def rows_of(fault: str, side: int) -> torch.Tensor:
    """Which row of a ``side`` x ``side`` position table each patch is given, int64 [side ** 2].

    ``half``: the coordinate i / (side - 1) is kept in bfloat16 and floored when it is taken back.
    ``one_low``: every patch one row and one column too low, as SmolVLM's table in float32 under
    transformers 4.57 (the fault in appendix E of vla.cpp).
    """
    if fault == "one_low":
        return patch_positions(side, side, "transformers-4")
    kept = (torch.arange(side) / (side - 1)).bfloat16()
    axis = (kept.float() * (side - 1)).floor().long().clamp(max=side - 1)
    return (axis[:, None] * side + axis).flatten()


def rounded(
    tensors: Mapping[str, torch.Tensor], bits: int, config: ModelConfig
) -> dict[str, torch.Tensor]:
    """All tensors, the matrices of vision, decoder and head with fewer bits."""
    return {
        name: tensor if format_of(name, ALL, config) == STORED else coarse(tensor, bits)
        for name, tensor in tensors.items()
    }


def moved(tensors: Mapping[str, torch.Tensor], fault: str) -> dict[str, torch.Tensor]:
    """All tensors, the position table with other rows. Of one tower, without class tokens."""
    table = tensors[TABLE]
    rows = rows_of(fault, round(table.shape[1] ** 0.5))
    return {**tensors, TABLE: table[:, rows].contiguous()}


def main() -> int:
    """Write one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", default="shipped:tabletop")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--bits", type=int, choices=range(1, 9), metavar="1..8")
    which.add_argument("--positions", choices=("half", "one_low"))
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    try:
        source = resolve(args.checkpoint)
        config, _ = read_config(source)
        before = load_file(source / "model.safetensors")
        after = rounded(before, args.bits, config) if args.bits else moved(before, args.positions)
        with publishing(args.out) as scratch:
            copy_beside(source, scratch)
            save_file(after, str(scratch / "model.safetensors"), {"format": "pt"})
    except UserError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    changed = sum(not torch.equal(before[name], after[name]) for name in before)
    print(f"{args.out}: {changed} of {len(before)} tensors are others")
    return 0


if __name__ == "__main__":
    sys.exit(main())
