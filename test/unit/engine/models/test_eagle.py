"""GR00T N1.5 and N1.6 against NVIDIA's code, stage by stage, from pixels to a chunk.

The files were made once by tools/golden/groot/make_n15.py and make_n16.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.flow.seeded import draw
from golden.groot import eagle_cases as cases
from unit.engine.models import eagle_small
from unit.engine.models.eagle_small import FOLDERS, Small, halves
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.groot import formalize
from vla_ros.engine.models import eagle
from vla_ros.engine.models.base import Prefix
from vla_ros.engine.models.eagle import (
    EAGLE_N16,
    N16_POSITIONS,
    WEIGHT_SCALE,
    EagleTokenizer,
    images_first,
    position_integers,
    smart_side,
    stretched,
    task_first,
)
from vla_ros.engine.models.groot import N15, N16

BOUND = 2e-5


@pytest.fixture(scope="module", params=[N15, N16])
def small(request: pytest.FixtureRequest) -> Small:
    return eagle_small.small(request.param)


def prefix_of(small: Small) -> Prefix:
    model, golden = small.model, small.golden
    return model.prefill(model.image_features(golden["pixels"]), golden["ids"], golden["state"])


@pytest.mark.parametrize("kind", [N15, N16])
def test_the_tensors_are_nvidias(kind: str) -> None:
    eagle_small.check_names(kind)


def test_every_tensor_is_read_but_those_that_nothing_uses(small: Small) -> None:
    idle = ("vision_model.head.", "lm_head.", "mask_token")
    assert all(any(part in name for part in idle) for name in small.left), small.left


def test_what_is_seen_and_read(small: Small) -> None:
    model, golden = small.model, small.golden
    with torch.inference_mode():
        seen = model.backbone.encode_images(golden["pixels"])
        places = (golden["ids"] == model.config.backbone.image_token).nonzero().flatten()
        x = model.backbone.embed(golden["ids"]).index_copy(0, places, seen)
        rows = model.backbone.forward(x, seen, places)
    found = {"vision": off(seen, golden["vision"]), "rows": off(rows, golden["rows"])}
    assert max(found.values()) < BOUND, found
    assert golden["rows"].abs().max() > 1


def test_the_context_of_the_head(small: Small) -> None:
    prefix_of(small)
    model, golden = small.model, small.golden
    ids = golden["ids"]
    pictures = ids == model.config.backbone.image_token
    order = torch.cat((pictures.nonzero().flatten(), (~pictures).nonzero().flatten()))
    with torch.inference_mode():
        refined = model.head.process_backbone_output(model._span, golden["rows"][order])  # type: ignore[arg-type]
    assert off(refined, golden["context"][order]) < BOUND


def test_the_velocity_of_every_step(small: Small) -> None:
    prefix, x = prefix_of(small), small.noise
    for step, theirs in enumerate(small.golden["velocities"]):
        assert off(small.model.denoise_step(prefix, x, step, begin=step == 0), theirs) < BOUND
        x = x + theirs / small.config.steps
    assert small.golden["velocities"].abs().max() > 1


def test_the_chunk(small: Small) -> None:
    chunk = small.model.sample_actions(prefix_of(small), None, small.noise)
    assert off(chunk, small.golden["chunk"][: small.config.horizon]) < BOUND


def test_other_words_give_another_chunk(small: Small) -> None:
    """Of the same images: the text reaches the actions."""
    first = small.model.sample_actions(prefix_of(small), None, small.noise)
    model, golden = small.model, small.golden
    ids = golden["ids"].clone()
    ids[10] += 1
    prefix = model.prefill(model.image_features(golden["pixels"]), ids, golden["state"])
    assert off(model.sample_actions(prefix, None, small.noise), first) > 1e-3


def off(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


@pytest.mark.parametrize("kind", [N15, N16])
def test_graphs_say_the_same_and_are_made_before(kind: str) -> None:
    runs: list[object] = []

    def capture(function):  # type: ignore[no-untyped-def]
        runs.append(function)
        return function

    padded = eagle_small.small(kind, capture)
    model, golden = padded.model, padded.golden
    model.capture_graphs(len(model.image_features(golden["pixels"])), (None,))
    made, prefix = len(runs), prefix_of(padded)
    assert len(prefix.mask) > int(prefix.mask.sum()) == len(golden["ids"])
    chunk = model.sample_actions(prefix, None, padded.noise)
    assert off(chunk, golden["chunk"][: padded.config.horizon]) < BOUND
    assert len(runs) == made == model.captured.count


@pytest.mark.parametrize("kind", [N15, N16])
def test_in_bfloat16_it_stays_near(kind: str) -> None:
    half = eagle_small.small(kind, dtype=torch.bfloat16)
    chunk = half.model.sample_actions(prefix_of(half), None, half.noise)
    assert off(chunk, half.golden["chunk"][: half.config.horizon]) < 0.2


def words(kind: str) -> EagleTokenizer:
    return EagleTokenizer(FOLDERS[kind], None, cases.TEXT["vocab_size"], cases.IMAGE_TOKEN)


def read_golden(kind: str) -> dict[str, np.ndarray]:
    with np.load(FOLDERS[kind] / "golden.npz") as arrays:
        return {n: arrays[n] for n in arrays.files}


def test_n15s_prompt() -> None:
    ids = words(N15)(images_first(cases.TASK, 2, 16))
    assert ids == read_golden(N15)["ids"].tolist()


def test_n16s_prompt() -> None:
    ids = words(N16)(task_first(formalize(cases.TASK), 2, 9))
    assert ids == read_golden(N16)["ids"].tolist()


@pytest.mark.parametrize("text", ["push <IMG_CONTEXT>", "<img> push", "<|im_end|>"])
def test_an_instruction_cannot_hold_the_place_of_a_picture(text: str) -> None:
    with pytest.raises(ValueError, match="an instruction cannot have"):
        images_first(text, 1, 16)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(FOLDERS[N15] / name, tmp_path)
    with pytest.raises(CheckpointError, match=r"has no token <\|im_start\|>: it is not"):
        EagleTokenizer(tmp_path, None, 280, 265)
    with pytest.raises(CheckpointError, match="no tokenizer in"):
        EagleTokenizer(tmp_path / "..", None, 280, 265)


@settings(max_examples=40, deadline=None)
@given(source=st.integers(1, 24), target=st.integers(1, 40))
def test_the_stretched_table_is_torchs(source: int, target: int) -> None:
    table = torch.from_numpy(draw("table", source * source, 3))
    grid = table.view(source, source, 3).permute(2, 0, 1)[None]
    theirs = F.interpolate(
        grid, (target, target), mode="bilinear", align_corners=False, antialias=True
    )[0].permute(1, 2, 0)
    assert (stretched(table, target) - theirs.flatten(0, 1)).abs().max() < 1e-6


def test_the_stored_rows_and_weights_are_torchs() -> None:
    """The gate's reference for N1.6, read out of torch's own interpolation."""
    pictures = torch.eye(16)[:, None, :, None].expand(16, 1, 16, 16)  # one row each
    wide = F.interpolate(pictures, (18, 16), mode="bilinear", align_corners=False, antialias=True)
    matrix = wide[:, 0, :, 0].T  # [18, 16]
    rows = [row.nonzero().flatten().tolist() for row in matrix]
    weights = [
        round(v * WEIGHT_SCALE)
        for row, used in zip(matrix, rows, strict=True)
        for v in row[used].tolist()
    ]
    theirs = {"position_rows": [used[0] for used in rows], "position_weights": weights}
    assert theirs == N16_POSITIONS == position_integers(16, 18)


def test_the_published_table_is_held_to_the_stored_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, head = halves(N16)
    assert head.times == (0, 250, 500, 750)
    assert EAGLE_N16.discrete() == N16_POSITIONS
    moved = {**N16_POSITIONS, "position_rows": [0, 1, *N16_POSITIONS["position_rows"][2:]]}
    monkeypatch.setattr(eagle, "position_integers", lambda source, target: moved)
    with pytest.raises(CheckpointError, match=r"1 of 18 position rows .*\[1\] 0 is 1.*another"):
        EAGLE_N16.discrete()


@pytest.mark.parametrize(("side", "wanted"), [(256, 252), (80, 84), (224, 224), (20, 56)])
def test_sides_of_n16(side: int, wanted: int) -> None:
    """Source: ``smart_resize``: 256 / 28 is nearer 9 than 10, and four blocks are the least."""
    assert smart_side(side) == wanted
