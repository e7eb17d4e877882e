"""Qwen3-VL as NVIDIA's GR00T N1.7 runs it, with transformers 4.57.3: pixels to last rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from golden.groot.cases import PROMPT
from unit.engine.models.groot_small import GOLDEN, Drawn, golden, off, pixels, qwen
from vla_ros.engine.models.qwen3_vl import (
    Qwen3VL,
    Qwen3VLConfig,
    Qwen3VLVisionConfig,
    block_order,
    fast_pos_embed_interpolate,
    frequency_axes,
    get_rope_index,
)

BOUND = 1e-5


class Case:
    def __init__(self, padding: int = 0) -> None:
        self.golden = golden()
        self.config = qwen()
        expected = self.config.expected()
        self.drawn = Drawn(dict(expected.must))
        self.model = Qwen3VL(self.config, self.drawn, torch.empty(0), len(PROMPT) + padding)
        self.visual = self.model.encode_images(pixels())
        ids = torch.tensor(PROMPT)
        places = (ids == 7).nonzero().flatten()
        rows = self.model.embed(ids).index_copy(0, places, self.visual[:, :40])
        rows = torch.cat((rows, torch.zeros(padding, 40)))
        self.model.set_prompt(PROMPT)
        self.hidden = self.model.forward(rows, self.visual, places)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def test_pixels_to_last_rows(case: Case) -> None:
    found = {
        "visual": off(case.visual, case.golden["visual"]),
        "hidden": off(case.hidden, case.golden["hidden"]),
    }
    assert np.abs(case.golden["hidden"]).max() > 1
    assert max(found.values()) < BOUND, found


def test_padding_behind_a_prompt_changes_nothing(case: Case) -> None:
    padded = Case(padding=6)
    assert (padded.hidden[: len(PROMPT)] - case.hidden).abs().max() < BOUND


def test_positions_are_the_same_integers(case: Case) -> None:
    assert get_rope_index(case.config, PROMPT).tolist() == case.golden["positions"].tolist()


def test_tensors_are_those_of_the_checkpoint(case: Case) -> None:
    saved = json.loads((GOLDEN / "n17.json").read_text())
    expected = case.config.expected()
    ours = {n: list(s) for n, s in (expected.must | expected.spare).items()}
    assert ours == {n: s for n, s in saved.items() if n.startswith("backbone.")}


def test_all_but_the_last_norm_is_read(case: Case) -> None:
    assert case.drawn.left == {"backbone.model.model.language_model.norm.weight"}


def test_frequencies_of_the_published_model_follow_moment_row_and_column_in_turn() -> None:
    axes = frequency_axes(Qwen3VLConfig())
    assert [axes.count(i) for i in range(3)] == [24, 20, 20]
    assert axes[:7] == [0, 1, 2, 0, 1, 2, 0]
    assert axes[57:] == [0, 1, 2, 0, 0, 0, 0]


def test_patches_of_a_block_stand_together() -> None:
    assert block_order(Qwen3VLVisionConfig()).tolist()[:6] == [0, 1, 16, 17, 2, 3]


def test_a_table_of_the_pictures_size_is_read_as_it_is() -> None:
    rows, shares = fast_pos_embed_interpolate(Qwen3VLVisionConfig(num_grid_per_side=16))
    read = (shares * (rows == torch.arange(256))).sum(0)
    assert torch.equal(read, torch.ones(256))
