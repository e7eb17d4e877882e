"""The sizes of the transformers of pi0, pi0.5 and SmolVLA: published ones, or a folder's own.

Sources: lerobot 0.6.1 ``modeling_pi0.py``, ``smolvlm_with_expert.py``; PaliGemma's and
SmolVLM2-500M's config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from vla_ros.engine.checkpoints.config import SIGLIP_SO400M, TextConfig, TowerConfig
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.errors import CheckpointError

PALIGEMMA_VOCAB = 257152
SMOLVLM2_500M = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"

#: lerobot ``get_gemma_config``: width, layers, mlp.
_GEMMA = {"gemma_300m": (1024, 18, 4096), "gemma_2b": (2048, 18, 16384)}


@dataclass(frozen=True, slots=True)
class Shapes:
    """The three transformers: ``layers`` counts those that are used.

    ``shuffle`` is SmolVLM's pixel shuffle: so many patches on a side become one token.
    """

    vision: TowerConfig
    text: TextConfig
    expert: TextConfig
    shuffle: int = 1


def pi_shapes(fields: Fields) -> Shapes:
    """PaliGemma and its expert by their variants' names, or ``shapes``."""
    variants = tuple(_GEMMA)
    vlm = fields.choice("paligemma_variant", "gemma_2b", variants)
    expert = fields.choice("action_expert_variant", "gemma_300m", variants)
    side = fields.square("image_resolution", 224)
    published = Shapes(
        replace(SIGLIP_SO400M, image_size=side), _gemma(vlm, PALIGEMMA_VOCAB), _gemma(expert, 1)
    )
    return _own_shapes(fields, published)


def _gemma(variant: str, vocab: int) -> TextConfig:
    width, layers, mlp = _GEMMA[variant]
    return TextConfig(
        "gemma", vocab, width, mlp, layers, heads=8, kv_heads=1, head_dim=256, tied=True
    )


def smolvla_shapes(fields: Fields, directory: Path | None) -> Shapes:
    """SmolVLM2-500M, or what a local folder or ``shapes`` says; then the expert beside it."""
    fields.only("num_expert_layers", -1, 0, fields.raw.get("num_vlm_layers"))
    name = fields.text("vlm_model_name", SMOLVLM2_500M)
    layers = fields.whole("num_vlm_layers", 16, least=-1)
    own = fields.raw.get("shapes")
    if own is None:
        vision, text, shuffle = _vlm(name, directory)
        text = replace(text, layers=layers if layers > 0 else text.layers)
        expert = smolvla_expert(text, fields.number("expert_width_multiplier", 0.75))
        return Shapes(vision, text, expert, shuffle)
    empty = TextConfig("llama")
    return _own_shapes(fields, Shapes(SIGLIP_SO400M, empty, empty))


def smolvla_expert(text: TextConfig, multiplier: float) -> TextConfig:
    """lerobot ``SmolVLMWithExpertModel``: narrower, its mlp 4 * 2/3 rounded up to 256."""
    width = int(text.hidden_size * multiplier)
    mlp = 256 * -(-int(4 * int(2 * width / 3)) // 256)
    return replace(text, hidden_size=width, intermediate_size=mlp)


def _vlm(name: str, directory: Path | None) -> tuple[TowerConfig, TextConfig, int]:
    """Shapes of SmolVLM2-500M-Video-Instruct's config.json, or of one in a local folder.

    RoPE has base 10000 whatever the VLM says: LeRobot applies its own.
    """
    if name == SMOLVLM2_500M:
        vision = TowerConfig(768, 12, 12, 3072, image_size=512, patch=16)
        return vision, TextConfig("llama", 49280, 960, 2560, 32, 15, 5, 64, 1e4, 1e-5), 4
    places = [Path(name).expanduser()] + ([directory / name] if directory else [])
    found = next((p for p in places if (p / "config.json").is_file()), None)
    if found is None:
        raise CheckpointError(
            f"vlm_model_name is {name!r}: its shapes are not known here; put its config.json"
            " into a folder and give that folder's path"
        )
    raw = Fields(read_json(found / "config.json"))
    eyes, words = raw.part("vision_config"), raw.part("text_config")
    heads, width = words.whole("num_attention_heads", 32), words.whole("hidden_size", 4096)
    text = TextConfig(
        "llama", words.whole("vocab_size", 32000), width, words.whole("intermediate_size", 11008),
        words.whole("num_hidden_layers", 32), heads, words.whole("num_key_value_heads", heads),
        words.whole("head_dim", width // heads), 1e4, words.number("rms_norm_eps", 1e-6),
    )  # fmt: skip
    vision = TowerConfig(
        eyes.whole("hidden_size", 1152), eyes.whole("num_hidden_layers", 12),
        eyes.whole("num_attention_heads", 16), eyes.whole("intermediate_size", 3072),
        eyes.whole("image_size", 224), eyes.whole("patch_size", 32),
    )  # fmt: skip
    return vision, text, raw.whole("scale_factor", 2)


def _own_shapes(fields: Fields, published: Shapes) -> Shapes:
    """``shapes`` of this project's own checkpoints in place of the published ones."""
    if fields.raw.get("shapes") is None:
        return published
    own = fields.part("shapes")
    kind = published.text.kind
    try:
        made = Shapes(
            TowerConfig(**_plain(own.part("vision").raw)),
            TextConfig(**{**own.part("text").raw, "kind": kind}),
            TextConfig(**{**own.part("expert").raw, "kind": kind}),
            own.whole("shuffle", 1),
        )
    except TypeError as error:
        raise CheckpointError(f"shapes: {error}") from error
    for name in ("vision", "text", "expert"):
        same_types(f"shapes.{name}", getattr(made, name), getattr(published, name))
    return made


def same_types(place: str, made: Any, like: Any) -> None:
    """A dataclass takes what it is given; here that is somebody's file."""
    for one in dataclass_fields(like):
        value, wanted = getattr(made, one.name), type(getattr(like, one.name))
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise CheckpointError(
                f"{place}.{one.name} is {value!r}: a value of type {wanted.__name__} is wanted"
            )


def _plain(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
