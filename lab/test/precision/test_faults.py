"""A planted fault of the paper's kind is found, and named as what it is; rounding alone passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from support.engine import Again, engine_of, images, tiny, tiny_config
from vla_ros.core.types import Observation
from vla_ros.engine import Engine
from vla_ros.engine.io.config import ModelConfig, TowerConfig
from vla_ros.engine.layers.graphs import Capture, Outputs
from vla_ros.engine.layers.linear import plain
from vla_ros.engine.models.base import GraphedFunctions
from vla_ros.engine.models.golden_ints import patch_positions
from vla_ros.engine.models.language.llama import LlamaDecoder
from vla_ros.engine.options import EngineOptions
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.conventions import Conventions
from vla_ros_lab.precision.compare import Comparison
from vla_ros_lab.precision.judge import allowed, judge
from vla_ros_lab.precision.run import Broken, load, measure
from vla_ros_lab.precision.watch import DECODED, DECODING, PATCHES, ROTARY, TOKENS, ProbeFrame

SPEC = PolicySpec(name="vla", engine=EngineOptions("random:small", dtype="bfloat16"))
FRAMES = [
    ProbeFrame(0, "pick up the red cube", Observation(n, n, n, image, image))
    for n, image in enumerate(images(2), 1)
]
MOVING = [replace(f, observation=replace(f.observation, proprio=np.zeros(9))) for f in FRAMES]
MOST = allowed("bfloat16", mm=1e9, degrees=1e9, gripper=1e9)
#: 14 x 14 patches, where a fraction in half precision misses rows
_GRID = TowerConfig(32, 3, 2, 64, image_size=28, patch=2)


def half_positions(count: int) -> torch.Tensor:
    """Where ``count`` positions land when the fraction i / count is rounded to bfloat16."""
    fraction = (torch.arange(count) / count).bfloat16()
    return (fraction.float() * count).floor().long().clamp(max=count - 1)


def compared(config: ModelConfig | None, plant: object = None) -> Comparison:
    """A tiny model in bfloat16, with a fault planted in it, against itself in float32."""

    def make(spec: PolicySpec, used: Conventions) -> Engine:
        checkpoint = tiny(config)
        if spec.engine.dtype == "bfloat16":
            tensors = {n: t.bfloat16() for n, t in checkpoint.tensors.items()}
            checkpoint = replace(checkpoint, tensors=tensors)
        engine = engine_of(checkpoint, "auto", dtype=spec.engine.dtype)
        if spec.engine.dtype == "bfloat16" and plant is not None:
            plant(engine)  # type: ignore[operator]
        return engine

    return measure(SPEC, FRAMES, lambda *_: None, make=make).comparison


def of_flow(checkpoint: str, plant: Callable[[Any], None] | None = None) -> Comparison:
    """A flow policy in bfloat16, with a fault planted in its network, against itself in float32."""

    def make(spec: PolicySpec, used: Conventions) -> Engine:
        engine = load(spec, used)
        if plant is not None and spec.engine.dtype == "bfloat16":
            plant(engine.policy.model)
        return engine

    spec = replace(SPEC, engine=replace(SPEC.engine, checkpoint=checkpoint))
    return measure(spec, MOVING, lambda *_: None, make=make).comparison


@pytest.mark.parametrize("language", ["llama_gqa", "qwen2_tied"])
def test_rounding_alone_passes(language: str) -> None:
    found = compared(tiny_config(language, "fused"))
    assert judge(found, MOST).reasons == ()
    assert dict(found.checked)[TOKENS] == 14
    assert dict(found.checked)[DECODED] == dict(found.checked)[DECODING] == 12
    errors = {stage.name: stage.worst for stage in found.stages}
    assert all(0 < error < 0.05 for error in errors.values())
    assert list(errors)[2:] == ["vision", "projector", "layer 0", "layer 1", "logits",
                                "logits while decoding"]  # fmt: skip


def test_rotary_positions_in_half_precision_are_found() -> None:
    """The rows of cos and sin that reach attention are another position's."""
    moved = half_positions(97)  # as long as any of these prompts with its action

    def plant(engine: Engine) -> None:
        decoder = engine.model.decoder
        assert isinstance(decoder, LlamaDecoder)
        decoder._cos, decoder._sin = decoder._cos[moved], decoder._sin[moved]

    found = compared(None, plant)
    flips = [flip for flip in found.flips if flip.name == ROTARY]
    assert flips
    assert all(flip.measured == int(moved[flip.reference]) for flip in flips)
    assert all(flip.margin > 0.9 for flip in flips)  # the other row, not one on the way to it
    assert ROTARY in judge(found, MOST).reasons[0]


def test_the_position_table_of_patches_in_half_precision_is_found() -> None:
    """The faulty gather puts patches on other rows of the table: the vision tower's own case."""
    config = replace(tiny_config(), towers=(_GRID,))
    side = 14
    axis = half_positions(side)
    rows = (axis[:, None] * side + axis).flatten()
    assert 0 < int((rows != torch.arange(side**2)).sum()) < side**2

    def plant(engine: Engine) -> None:
        tower = engine.model.vision.vision_backbone.featurizer
        tower.pos_embed = torch.nn.Parameter(tower.pos_embed[:, rows], requires_grad=False)

    found = compared(config, plant)
    flips = [flip for flip in found.flips if flip.name.startswith("positions of patches")]
    wrong = [(i, int(row)) for i, row in enumerate(rows) if int(row) != i]
    assert [(f.place, f.measured) for f in flips if f.frame == 0] == wrong
    assert "positions of patches" in judge(found, MOST).reasons[0]


def test_a_fault_that_moves_no_index_is_found_by_its_stage() -> None:
    """Weights of a layer that were read with another scale: nothing discrete, but all is off from
    there on."""

    def plant(engine: Engine) -> None:
        decoder = engine.model.decoder
        assert isinstance(decoder, LlamaDecoder)
        decoder._layers[0] = replace(decoder._layers[0], down=2 * plain(decoder._layers[0].down))

    found = compared(None, plant)
    assert any("the first is layer 0" in reason for reason in judge(found, MOST).reasons)
    assert next(stage.worst for stage in found.stages if stage.name == "vision") < 0.05


def test_nothing_flips_against_oneself() -> None:
    spec = replace(SPEC, engine=replace(SPEC.engine, dtype="float32"))
    found = measure(spec, FRAMES, lambda *_: None, make=lambda s, u: engine_of(tiny(), "auto"))
    comparison = found.comparison
    assert comparison.flips == ()
    assert comparison.agreement == 1.0
    assert max(stage.worst for stage in comparison.stages) == 0.0
    assert comparison.displacement.mm == comparison.displacement.degrees == 0.0


@pytest.mark.parametrize("faulty", [False, True])
def test_smolvlms_old_position_table_is_found_in_a_flow_policy(faulty: bool) -> None:
    """The paper's own fault: patches one row and one column too low. Without it all is well."""

    def plant(model: Any) -> None:
        tower = model.tower
        side = round(len(tower.positions) ** 0.5)
        rows = patch_positions(side, side, "transformers-4")
        assert int((rows != torch.arange(side**2)).sum()) > 0
        tower.positions = torch.nn.Parameter(tower.positions[rows], requires_grad=False)

    found = of_flow("random:smolvla-small", plant if faulty else None)
    names = [stage.name for stage in found.stages]
    assert names[:3] == ["pixels", "vision", "layer 0, K and V"]
    assert names[-2:] == ["velocity 4", "chunk"]
    assert any(flip.name == PATCHES for flip in found.flips) == faulty
    random = replace(MOST, error=0.2)  # whose rounding grows faster than that of trained ones
    assert judge(found, random).passed != faulty


@pytest.mark.parametrize("fault", ["", "patches", "rows"])
def test_positions_of_evo1_are_found(fault: str) -> None:
    """Patches one place further in the table, or the prompt's rows turned by other positions."""

    def plant(model: Any) -> None:
        if fault == "patches":
            model.tower.positions[:, 1:] = model.tower.positions[:, 1:].roll(1, 1)
        if fault == "rows":
            model._rope = type(model._rope)(model._rope.cos.roll(1, 0), model._rope.sin.roll(1, 0))

    found = of_flow("random:evo1-small", plant)
    names = [stage.name for stage in found.stages]
    assert names[:3] == ["pixels", "vision", "layer 0, K and V"]
    assert names[-2:] == ["velocity 7", "chunk"]
    flips = {flip.name for flip in found.flips}
    assert (PATCHES in flips) == (fault == "patches")
    assert (ROTARY in flips) == (fault == "rows")


def test_a_policy_that_says_no_action_is_broken_and_not_unjudged() -> None:
    """As where float16 overflows: its weights are not finite any more."""

    def plant(engine: Engine) -> None:
        engine.model.decoder.embedding.mul_(float("inf"))  # type: ignore[attr-defined]

    with pytest.raises(Broken, match="frame 0: a logit is not finite"):
        compared(None, plant)


def damaging(function: Callable[[], Outputs]) -> Callable[[], Outputs]:
    """A stand-in for graphs (tuned products, padding and all) that compute something else."""
    result = function()

    def replay() -> Outputs:
        with torch.inference_mode():
            for static, fresh in zip(result, function(), strict=True):
                static.copy_(fresh * 0.5 if fresh.is_floating_point() else fresh)
        return result

    return replay


def captured(faulty: bool) -> Capture:
    return damaging if faulty else Again()


@pytest.mark.parametrize("faulty", [False, True])
def test_what_a_graph_computes_is_judged_and_not_another_engine(faulty: bool) -> None:
    """The reference runs plainly, what is measured as it serves: padded passes, replayed."""
    graphs = []

    def make(spec: PolicySpec, used: Conventions) -> Engine:
        graphs.append(spec.engine.cuda_graphs)
        checkpoint, capture = tiny(tiny_config("llama_gqa", "fused")), None
        if spec.engine.dtype == "bfloat16":
            tensors = {n: t.bfloat16() for n, t in checkpoint.tensors.items()}
            checkpoint, capture = replace(checkpoint, tensors=tensors), captured(faulty)
        return engine_of(checkpoint, "auto", capture, dtype=spec.engine.dtype)

    found = measure(SPEC, FRAMES, lambda *_: None, make=make).comparison
    assert graphs == [False, True]
    off = {stage.name for stage in found.stages if stage.worst > MOST.error}
    assert off >= {"vision", "logits", "logits while decoding"} if faulty else not off
    assert judge(found, MOST).passed != faulty


@pytest.mark.parametrize("faulty", [False, True])
def test_what_a_graph_of_a_flow_policy_computes_is_judged(faulty: bool) -> None:
    def plant(model: Any) -> None:
        model.captured, model.bucket = GraphedFunctions(captured(faulty)), 1

    found = of_flow("random:smolvla-small", plant)
    random = replace(MOST, error=0.2)
    off = {stage.name for stage in found.stages if stage.worst > random.error}
    assert ("chunk" in off) == ("vision" in off) == faulty
    assert judge(found, random).passed != faulty
    names = [stage.name for stage in found.stages]
    assert "velocity 4" in names, "looked into beside the graph"
