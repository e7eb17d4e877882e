"""GR00T N1.5 and N1.6 against NVIDIA's code, stage by stage, from pixels to a chunk.

The files were made once by test/golden/groot/make_n15.py and make_n16.py.
"""

from __future__ import annotations

import pytest
import torch

from unit.engine.flow.groot import eagle_small
from unit.engine.flow.groot.eagle_small import Small
from vla_ros.engine.flow.groot.eagle_config import N15, N16
from vla_ros.engine.flow.primitive import Prefix

BOUND = 2e-5


@pytest.fixture(scope="module", params=[N15, N16])
def small(request: pytest.FixtureRequest) -> Small:
    return eagle_small.small(request.param)


def prefix_of(small: Small) -> Prefix:
    model, golden = small.model, small.golden
    return model.prefill(model.see(golden["pixels"]), golden["ids"], golden["state"])


@pytest.mark.parametrize("kind", [N15, N16])
def test_the_tensors_are_nvidias(kind: str) -> None:
    eagle_small.check_names(kind)


def test_every_tensor_is_read_but_those_that_nothing_uses(small: Small) -> None:
    idle = ("vision_model.head.", "lm_head.", "mask_token")
    assert all(any(part in name for part in idle) for name in small.left), small.left


def test_what_is_seen_and_read(small: Small) -> None:
    model, golden = small.model, small.golden
    with torch.inference_mode():
        seen = model.backbone.see(golden["pixels"])
        places = (golden["ids"] == model.backbone.image_token).nonzero().flatten()
        x = model.backbone.embed(golden["ids"]).index_copy(0, places, seen)
        rows = model.backbone.read(x, seen, places)
    found = {"vision": off(seen, golden["vision"]), "rows": off(rows, golden["rows"])}
    assert max(found.values()) < BOUND, found
    assert golden["rows"].abs().max() > 1


def test_the_context_of_the_head(small: Small) -> None:
    prefix_of(small)
    model, golden = small.model, small.golden
    ids = golden["ids"]
    pictures = ids == model.backbone.image_token
    order = torch.cat((pictures.nonzero().flatten(), (~pictures).nonzero().flatten()))
    with torch.inference_mode():
        refined = model.head.refine(model._context, golden["rows"][order])  # type: ignore[arg-type]
    assert off(refined, golden["context"][order]) < BOUND


def test_the_velocity_of_every_step(small: Small) -> None:
    prefix, x = prefix_of(small), small.noise
    for step, theirs in enumerate(small.golden["velocities"]):
        assert off(small.model.velocity(prefix, x, step, begin=step == 0), theirs) < BOUND
        x = x + theirs / small.config.steps
    assert small.golden["velocities"].abs().max() > 1


def test_the_chunk(small: Small) -> None:
    chunk = small.model.integrate(prefix_of(small), None, small.noise)
    assert off(chunk, small.golden["chunk"][: small.config.horizon]) < BOUND


def test_other_words_give_another_chunk(small: Small) -> None:
    """Of the same pictures: the text reaches the actions."""
    first = small.model.integrate(prefix_of(small), None, small.noise)
    model, golden = small.model, small.golden
    ids = golden["ids"].clone()
    ids[10] += 1
    prefix = model.prefill(model.see(golden["pixels"]), ids, golden["state"])
    assert off(model.integrate(prefix, None, small.noise), first) > 1e-3


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
    model.prepare(len(model.see(golden["pixels"])), (None,))
    made, prefix = len(runs), prefix_of(padded)
    assert len(prefix.mask) > int(prefix.mask.sum()) == len(golden["ids"])
    chunk = model.integrate(prefix, None, padded.noise)
    assert off(chunk, golden["chunk"][: padded.config.horizon]) < BOUND
    assert len(runs) == made == model.captured.count


@pytest.mark.parametrize("kind", [N15, N16])
def test_in_bfloat16_it_stays_near(kind: str) -> None:
    half = eagle_small.small(kind, dtype=torch.bfloat16)
    chunk = half.model.integrate(prefix_of(half), None, half.noise)
    assert off(chunk, half.golden["chunk"][: half.config.horizon]) < 0.2
