"""The shape of a flow policy that the engine can load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vla_ros.analysis.shapes import DecoderShape, ExpertShape, Matrix, ModelShape, TowerShape

if TYPE_CHECKING:
    from vla_ros.engine.checkpoints.config import TextConfig
    from vla_ros.engine.flow.config import FlowConfig
    from vla_ros.engine.flow.evo1.config import Evo1Config
    from vla_ros.engine.flow.family import Config
    from vla_ros.engine.flow.groot.config import GrootConfig
    from vla_ros.engine.flow.groot.eagle import EagleConfig
    from vla_ros.engine.flow.groot.qwen_vl import QwenVlConfig
    from vla_ros.engine.flow.groot.shapes import HeadConfig


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


def _evo1(config: Evo1Config, name: str) -> ModelShape:
    tower, text, width = config.vision, config.text, config.width
    head = DecoderShape(
        width, 4 * width, config.blocks, config.heads, config.heads, width // config.heads,
        gated=False,
    )  # fmt: skip
    return ModelShape(
        name,
        "flow",
        (TowerShape(tower.width, tower.depth, tower.heads, tower.mlp, tower.patches, 1,
                    tower.patch),),
        (
            Matrix(config.shuffle**2 * tower.width, width, config.view_tokens),
            Matrix(width, width, config.view_tokens),
        ),
        _decoder(text, text.vocab_size),
        vision_tokens=config.view_tokens,
        text_tokens=config.max_text - config.slots * config.view_tokens,
        action_tokens=config.horizon,
        chunk=config.horizon,
        images=len(config.cameras),
        expert=ExpertShape(
            head,
            rows=config.horizon,
            steps=config.steps,
            cross_layers=config.blocks,
            cross_width=width,
            ends=((config.action_width, width), (width, width), (width, width)),
            flat=(
                (config.horizon * width, width),
                (width, config.hidden),
                (config.hidden, config.horizon * config.action_width),
            ),
            reads_hidden=True,
        ),
        source=f"config.json of {name}",
    )  # fmt: skip


def _groot_n17(config: GrootConfig, name: str) -> ModelShape:
    qwen: QwenVlConfig = config.backbone  # type: ignore[assignment]
    eyes = qwen.vision
    wide, mergers = eyes.width * eyes.merge**2, 1 + len(eyes.taps)
    return ModelShape(
        name,
        "flow",
        (TowerShape(eyes.width, eyes.depth, eyes.heads, eyes.mlp, eyes.patches, patch=eyes.patch),),
        (Matrix(wide, wide, eyes.tokens), Matrix(wide, eyes.out, eyes.tokens)) * mergers,
        _decoder(qwen.text, qwen.text.vocab_size),
        vision_tokens=eyes.tokens,
        text_tokens=config.max_text,
        action_tokens=config.horizon,
        chunk=config.horizon,
        images=len(config.cameras),
        expert=groot_expert(config.head),
        source=f"config.json of {name}",
    )


def _groot_eagle(config: GrootConfig, name: str) -> ModelShape:
    eagle: EagleConfig = config.backbone  # type: ignore[assignment]
    eyes, wide = eagle.vision, eagle.text.hidden_size
    inputs = [eyes.width * eagle.shuffle**2, *([wide] if eagle.shuffle > 1 else [])]
    return ModelShape(
        name,
        "flow",
        (TowerShape(eyes.width, eyes.depth, eyes.heads, eyes.mlp, eyes.patches, patch=eyes.patch),),
        tuple(Matrix(i, wide, eagle.view_tokens) for i in inputs),
        _decoder(eagle.text, eagle.text.vocab_size),
        vision_tokens=eagle.view_tokens,
        text_tokens=config.max_text,
        action_tokens=config.horizon,
        chunk=config.horizon,
        images=len(config.cameras),
        expert=groot_expert(config.head),
        source=f"config.json of {name}",
    )


def groot_expert(head: HeadConfig) -> ExpertShape:
    """GR00T's head with one robot's encoders: the blocks cross to a context and to themselves in
    turn, and time is tables."""
    width, hidden, context = head.width, head.hidden, head.context_width
    blocks = DecoderShape(
        width, 4 * width, head.layers, head.heads, head.heads, head.head_dim, gated=False
    )
    return ExpertShape(
        blocks,
        rows=head.rows,
        steps=head.steps,
        cross_layers=len(head.crossing),
        cross_width=context,
        ends=(
            (head.action_width, width), (2 * width, width), (width, width),
            (width, hidden), (hidden, hidden), (hidden, head.action_width),
        ),
        timed_weights=2 * width**2 * (head.layers + 1) + width * (width + 256),
        reads_hidden=True,
        cross_share=1 / head.text_every if head.text_every == 2 else 1.0,
        refine=((context, 4 * context), (context, 4 * context), (4 * context, context))
        * head.context_layers,
    )  # fmt: skip


#: By kind; a test asks every family's presets for theirs.
SHAPES: dict[str, Callable[[Any, str], ModelShape]] = {
    "pi0": _lerobot, "pi05": _lerobot, "smolvla": _lerobot, "evo1": _evo1,
    "groot-n1.7": _groot_n17, "groot-n1.6": _groot_eagle, "groot-n1.5": _groot_eagle,
}  # fmt: skip
