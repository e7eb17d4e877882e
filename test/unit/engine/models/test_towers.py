"""The rows of a vision tower lie one behind the other, from the first block to the last."""

from __future__ import annotations

import pytest
import torch

from vla_ros.engine.io.config import TowerConfig
from vla_ros.engine.models.siglip import SigLip
from vla_ros.engine.models.towers import Tower

TOWER = TowerConfig(32, 3, 2, 64, image_size=32, patch=8)


@pytest.mark.parametrize("kind", ["siglip", "openvla"])
def test_no_block_is_given_rows_that_lie_across(kind: str) -> None:
    """A convolution's output turned round is a view: sums keep its order, and norms copy it."""
    torch.manual_seed(0)
    model = SigLip(TOWER, TOWER.patches) if kind == "siglip" else Tower(TOWER)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    seen: list[tuple[int, ...]] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, given: seen.append(given[0].stride()))
    with torch.inference_mode():
        model(torch.randn(2, 3, 32, 32))
    assert seen
    assert set(seen) == {(TOWER.patches * 32, 32, 1)}
