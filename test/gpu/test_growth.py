"""A recursive head's draft: one graph replayed names what its levels name eagerly."""

from __future__ import annotations

import pytest
import torch

from support.engine import Again, tiny_config
from support.heads import recursive_head
from vla_ros.engine.decoding.draft_tree import likeliest
from vla_ros.engine.decoding.tree_growth import TreeFrame, TreeGrower, shape_of
from vla_ros.engine.layers.graphs import CountedCapture, CudaCapture

FIRST, COUNT, BINS = 704, 14, 256


@pytest.mark.parametrize("reach", [0, 2])
def test_a_graph_names_what_eager_levels_name(device: str, reach: int) -> None:
    place = torch.device(device)
    head = recursive_head(tiny_config(), COUNT, seed=1).to(place)
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(960, 64, generator=draw).to(place)
    taps = torch.randn(COUNT, 2 * 64, generator=draw).to(place)
    said = (FIRST + torch.randint(0, BINS, (COUNT,), generator=draw)).tolist()
    told = torch.randint(-1, BINS, (2, 40), generator=draw).tolist()
    trees = [likeliest([[0.5, 0.3, 0.2]] * levels, 20) for levels in (1, 2, 4)]
    shapes = [shape_of(tree) for tree in trees]
    capture = CountedCapture(Again() if place.type == "cpu" else CudaCapture(place))

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        return table[tokens]

    frame = TreeFrame.around(shapes)
    plain = TreeGrower(head, embed, FIRST, lambda at: reach, frame)
    own = TreeGrower(head, embed, FIRST, lambda at: reach, frame, capture)
    own.prepare([(-1, len(shape.levels)) for shape in shapes])
    assert capture.count == len(shapes)
    for turn in range(2):  # of two answers, three rounds each
        plain.forget()
        own.forget()
        known = 0
        for fresh, shape in zip((1, 4, 3), shapes, strict=True):
            found = []
            for growing in (plain, own):
                growing.add_taps(taps[known : known + fresh] * (1.0 - 0.1 * turn))
                behind = told[0][known : known + fresh], told[1][known : known + fresh]
                ahead = told[0][20:26], told[1][20:26]
                with torch.inference_mode():
                    growing.begin(said[known : known + fresh], behind, ahead)
                    growing.through(shape, len(shape.levels))
                    found.append((growing.tokens().tolist(), growing.entropy()))
            known += fresh
            assert found[0][0] == found[1][0]
            assert found[0][1] == pytest.approx(found[1][1], abs=1e-3)
    assert capture.count == len(shapes)
