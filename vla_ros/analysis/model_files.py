"""The shape of a model by any name: a known one, a checkpoint's from its config.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vla_ros.analysis.models import (
    BITVLA_TEXT,
    MODELS,
    PROMPT_TEXT,
    TERNARY,
    fused_projector,
    l1_head,
    single_projector,
)
from vla_ros.analysis.shapes import DecoderShape, ModelShape, TowerShape

if TYPE_CHECKING:
    from vla_ros.engine.checkpoints.config import ModelConfig


def load_model(name: str) -> ModelShape:
    """A model by any name that the policy and `vla-ros bench` know it by.

    A known shape (``random:`` before it or not) needs nothing; a checkpoint directory, its
    config.json, ``shipped:NAME`` and a hub id of which there is a copy here need torch
    installed. Nothing is downloaded.

    Raises:
        ValueError: with what there is.
    """
    known = name.removeprefix("random:")
    if known in MODELS:
        return MODELS[known]
    if name.startswith("random:"):
        return _small_flow(name)
    try:
        from vla_ros.engine.checkpoints.parse import read_config
        from vla_ros.engine.errors import CheckpointError
        from vla_ros.engine.flow.families import is_flow
    except ImportError as error:
        raise ValueError(
            f"{name!r} is none of {', '.join(MODELS)}, and reading a checkpoint needs the engine's"
            f" packages: {error}"
        ) from None
    folder = _folder(name)
    shown = name if ":" in name else folder.name
    try:
        if is_flow(folder):
            return _flow_folder(folder, shown)
        config, raw = read_config(folder)
    except CheckpointError as error:
        raise ValueError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"{folder / 'config.json'} cannot be read: {error}") from None
    return shape_of(config, shown, action_dim(raw))


def _flow_folder(folder: Path, shown: str) -> ModelShape:
    from vla_ros.analysis.flow_shapes import flow_shape_of
    from vla_ros.engine.flow.families import config_of

    return flow_shape_of(config_of(folder), shown)


def _small_flow(name: str) -> ModelShape:
    """``random:pi0-small`` and the like."""
    from vla_ros.analysis.flow_shapes import flow_shape_of
    from vla_ros.engine.flow.families import all_presets

    preset, presets = name.removeprefix("random:"), all_presets()
    if preset not in presets:
        known = ", ".join(dict.fromkeys((*MODELS, *presets)))
        raise ValueError(f"no model {name!r}: the known shapes are {known}")
    return flow_shape_of(presets[preset], preset)


def _folder(name: str) -> Path:
    """Where a checkpoint is on this machine. ValueError: nowhere."""
    from vla_ros.engine.checkpoints.hub import hub_id
    from vla_ros.engine.checkpoints.shipped import PREFIX, shipped

    if name.startswith(PREFIX):
        return shipped(name)  # its CheckpointError is a ValueError
    path = Path(name).expanduser()
    folder = path.parent if path.name == "config.json" else path
    if folder.is_dir():
        return folder
    if (what := hub_id(name)) is not None:
        from huggingface_hub import constants, try_to_load_from_cache

        found = try_to_load_from_cache(
            what.repository,
            "config.json",
            cache_dir=constants.HF_HUB_CACHE,
            revision=what.revision or None,
        )
        if isinstance(found, str):
            return Path(found).parent
        raise ValueError(
            f"no model {name!r}: there is no copy of it on this machine; give a directory or a"
            f" shape like its own: {', '.join(MODELS)}"
        )
    raise ValueError(f"no model {name!r}: give a checkpoint directory or {', '.join(MODELS)}")


def action_dim(raw: dict) -> int:
    """Dimensions of an action: those of the checkpoint's statistics, else 7."""
    for stats in (raw.get("norm_stats") or {}).values():
        return len(stats["action"]["q01"])
    return 7


def shape_of(config: ModelConfig, name: str, dim: int = 7) -> ModelShape:
    """The shape of a model the engine can load."""
    text, patches = config.text, config.towers[0].patches
    words = BITVLA_TEXT if text.ternary else PROMPT_TEXT
    towers = tuple(
        TowerShape(
            t.width, t.depth - 1, t.heads, t.mlp, t.patches, t.registers + t.class_token, t.patch
        )
        for t in config.towers
    )
    project = fused_projector if len(towers) == 2 else single_projector
    parallel = config.parallel
    return ModelShape(
        name,
        "parallel" if parallel else "tokens",
        towers,
        project(config.feature_width, text.hidden_size, patches),
        DecoderShape(
            text.hidden_size,
            text.intermediate_size,
            text.layers,
            text.heads,
            text.kv_heads,
            text.head_dim,
            0 if text.ternary else text.vocab_size,  # whose words stay on the disk
            0 if text.tied else text.vocab_size,
        ),
        vision_tokens=patches,
        text_tokens=words + int(config.proprio_dim > 0),
        action_tokens=config.chunk * dim,
        chunk=config.chunk,
        images=config.images,
        action_head=l1_head(text.hidden_size, config.action_dim, config.chunk) if parallel else (),
        source=f"config.json of {name}",
        notes=(TERNARY,) if text.ternary else (),
    )
