"""The shape of a flow policy that the engine can load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vla_ros.analysis.shapes import DecoderShape, ExpertShape, Matrix, ModelShape, TowerShape

if TYPE_CHECKING:
    from vla_ros.engine.checkpoints.config import TextConfig
    from vla_ros.engine.flow.config import FlowConfig
    from vla_ros.engine.flow.family import Config


def flow_shape_of(config: Config, name: str) -> ModelShape:
    """A policy's config as a shape, with the longest prompt it takes."""
    return SHAPES[config.kind](config, name)


def _lerobot(config: FlowConfig, name: str) -> ModelShape:
    shapes = config.shapes
    tower, patches = shapes.vision, (config.image_size // shapes.vision.patch) ** 2
    in_prefix = int(config.kind == "smolvla")  # the state's row
    return ModelShape(
        name,
        "flow",
        (TowerShape(tower.width, tower.depth, tower.heads, tower.mlp, patches, patch=tower.patch),),
        (
            Matrix(
                shapes.shuffle**2 * tower.width, shapes.text.hidden_size, config.view_tokens
            ),
        ),
        _decoder(shapes.text, shapes.text.vocab_size),
        vision_tokens=config.view_tokens,
        text_tokens=config.max_text + in_prefix,
        action_tokens=config.horizon,
        chunk=config.horizon,
        images=len(config.cameras),
        expert=_expert(config),
        source=f"config.json of {name}",
    )  # fmt: skip


def _expert(config: FlowConfig) -> ExpertShape:
    text, own = config.shapes.text, config.shapes.expert
    width, action = own.hidden_size, config.action_width
    ends = ((action, width), (2 * width, width), (width, width), (width, action))
    timed = (2 * own.layers + 1) * 3 * width**2 + 2 * width**2  # two norms a layer, and the last
    every = config.self_every
    cross = sum(1 for i in range(own.layers) if every and i % every)
    return ExpertShape(
        _decoder(own, 0),
        rows=config.horizon,
        steps=config.steps,
        still_rows=int(config.kind == "pi0"),
        cross_layers=cross,
        cross_width=text.kv_heads * text.head_dim if cross else 0,
        ends=(ends[0], ends[-1]) if config.adaptive else ends,
        timed_weights=timed if config.adaptive else 0,
    )


def _decoder(text: TextConfig, table: int) -> DecoderShape:
    """Its head is never asked."""
    return DecoderShape(
        text.hidden_size, text.intermediate_size, text.layers, text.heads, text.kv_heads,
        text.head_dim, table=table,
    )  # fmt: skip


#: By kind; a test asks every family's presets for theirs.
SHAPES: dict[str, Callable[[Any, str], ModelShape]] = {
    "pi0": _lerobot, "pi05": _lerobot, "smolvla": _lerobot,
}  # fmt: skip
