"""Vision towers: attention over all patches, rows that lie one behind the other."""

from __future__ import annotations

import pytest
import torch

from vla_ros.engine.io.config import TowerConfig
from vla_ros.engine.models import towers
from vla_ros.engine.models.siglip import SigLip
from vla_ros.engine.models.towers import Tower, attend_all

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


@pytest.mark.parametrize("by_products", [False, True], ids=["flash", "products"])
@pytest.mark.parametrize(("heads", "count", "others", "dim"), [(12, 90, 90, 64), (3, 1, 40, 72)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_every_query_sees_every_key(
    by_products: bool,
    heads: int,
    count: int,
    others: int,
    dim: int,
    scale: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some heads at a time, the last time fewer; what has a gradient is torch's."""
    monkeypatch.setattr(towers, "_by_products", lambda device, dtype: by_products)
    monkeypatch.setattr(towers, "_SCORES", 5 * count * others * 2)  # five heads of bfloat16
    random = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, n, heads, dim, generator=random).bfloat16().transpose(1, 2)
        for n in (count, others, others)
    )
    scores = q.double() @ k.double().transpose(2, 3) * (dim**-0.5 if scale is None else scale)
    wanted = scores.softmax(-1) @ v.double()
    with torch.inference_mode():
        found = attend_all(q, k, v, scale)
    assert found.shape == wanted.shape
    assert float((found.double() - wanted).norm() / wanted.norm()) < 0.015
    attend_all(q.requires_grad_(), k, v, scale).sum().backward()
    assert q.grad is not None
