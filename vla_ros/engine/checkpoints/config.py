"""The frozen description of a model, read from a checkpoint's ``config.json``.

Source: the published config.json of openvla/openvla-7b and the classes of the openvla and
openvla-mini code bases. Keys that those do not have, and that this project's own checkpoints
and converters add, are ``vision_config`` (explicit towers) and those from ``empty_token_id`` to
``normalise_by_minmax`` in :func:`config_json`; they mean what :class:`ModelConfig` says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vla_ros.engine.errors import CheckpointError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
LLAMA_EMPTY_TOKEN = 29871  # "▁" of Llama-2's tokenizer: OpenVLA expects it at the prompt's end


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """One vision tower. Features are those of block ``depth - 2`` (the last is never run)."""

    width: int
    depth: int
    heads: int
    mlp: int
    image_size: int = 224
    patch: int = 14
    class_token: bool = False
    registers: int = 0
    layer_scale: bool = False
    mean: tuple[float, float, float] = HALF
    std: tuple[float, float, float] = HALF

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch) ** 2


#: timm vit_large_patch14_reg4_dinov2 and vit_so400m_patch14_siglip_224.
DINOV2_L = TowerConfig(
    1024, 24, 16, 4096, class_token=True, registers=4, layer_scale=True,
    mean=IMAGENET_MEAN, std=IMAGENET_STD,
)  # fmt: skip
SIGLIP_SO400M = TowerConfig(1152, 27, 16, 4304)

BACKBONES: dict[str, tuple[TowerConfig, ...]] = {
    "dinosiglip-vit-so-224px": (DINOV2_L, SIGLIP_SO400M),
    "siglip-vit-so400m": (SIGLIP_SO400M,),
    "dinov2-vit-l": (DINOV2_L,),
}


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The language model: Llama (no biases) or Qwen2 (QKV biases), both with RoPE and SwiGLU."""

    kind: str = "llama"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    layers: int = 32
    heads: int = 32
    kv_heads: int = 32
    head_dim: int = 128
    rope_theta: float = 1e4
    rms_eps: float = 1e-6
    tied: bool = False

    @property
    def qkv_bias(self) -> bool:
        return self.kind == "qwen2"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the engine needs to know about a checkpoint besides its tensors.

    ``action_vocab`` is the tokenizer's length V: action bin b (0...255) has token V - 1 - b.
    ``empty_token_id`` is appended to a prompt that does not end with it (Llama-2's 29871).
    ``images`` counts the cameras: 1, or 2 with the wrist. ``chunk`` is the number of actions
    one inference returns; ``parallel`` marks an OpenVLA-OFT checkpoint with its L1 head, for
    actions of ``action_dim``; ``minmax`` normalises by min and max, not by q01 and q99 (ALOHA).
    """

    text: TextConfig
    towers: tuple[TowerConfig, ...]
    action_vocab: int
    prompt_style: str = "openvla"
    empty_token_id: int | None = None
    resize: str = "resize-naive"
    bins: int = 256
    images: int = 1
    chunk: int = 1
    parallel: bool = False
    proprio_dim: int = 0
    action_dim: int = 7
    minmax: bool = False

    @property
    def patches(self) -> int:
        """Vision tokens of one frame, all images together."""
        return self.towers[0].patches * self.images

    @property
    def feature_width(self) -> int:
        return sum(tower.width for tower in self.towers)

    @property
    def image_size(self) -> int:
        return self.towers[0].image_size


def read_config(directory: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Read ``config.json``; returns the config and the raw JSON (for its ``norm_stats``).

    Raises CheckpointError when there is none or it describes something else.
    """
    path = directory / "config.json"
    if not path.is_file():
        present = ", ".join(sorted(p.name for p in directory.iterdir())[:20]) or "nothing"
        raise CheckpointError(f"no config.json in {directory}: there is {present}")
    raw = json.loads(path.read_text())
    return parse_config(raw), raw


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Turn a config.json's content into a :class:`ModelConfig`."""
    text = parse_text(raw.get("text_config") or {})
    pad = int(raw.get("pad_to_multiple_of", 64))
    if text.kind == "qwen2" and "action_vocab" not in raw:
        raise CheckpointError(
            "config.json of a Qwen checkpoint lacks action_vocab: give its tokenizer's length"
            " (MiniVLA: 151921), the embedding's padding does not tell"
        )
    vocab = int(raw.get("action_vocab", text.vocab_size - pad))
    images = int(raw.get("image_sequence_len", 1))
    if images not in (1, 2):
        raise CheckpointError(f"image_sequence_len is {images}: one camera or two are supported")
    style = _prompt_style(str(raw.get("llm_backbone_id", "")), text)
    empty = LLAMA_EMPTY_TOKEN if vocab == 32000 else None
    return ModelConfig(
        text=text,
        towers=_towers(raw),
        action_vocab=vocab,
        prompt_style=style,
        empty_token_id=raw.get("empty_token_id", empty),
        resize=str(raw.get("image_resize_strategy", "resize-naive")),
        bins=int(raw.get("n_action_bins", 256)),
        images=images,
        chunk=int(raw.get("action_chunk", 1)),
        parallel=bool(raw.get("parallel_decoding", False)),
        proprio_dim=int(raw.get("proprio_dim", 0)),
        action_dim=int(raw.get("action_dim", 7)),
        minmax=bool(raw.get("normalise_by_minmax", False)),
    )


def parse_text(raw: Mapping[str, Any]) -> TextConfig:
    """Read ``text_config``; keys that are absent have the defaults of Llama-2 7B / Qwen2."""
    kind = str(raw.get("model_type", "llama"))
    if kind not in ("llama", "qwen2"):
        raise CheckpointError(f"text_config.model_type is {kind!r}: this engine has llama, qwen2")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise CheckpointError(f"RoPE scaling {rope_type!r} is not supported: only the default is")
    defaults = TextConfig(kind)
    heads = int(raw.get("num_attention_heads", defaults.heads))
    hidden = int(raw.get("hidden_size", defaults.hidden_size))
    theta = raw.get("rope_theta", rope.get("rope_theta", defaults.rope_theta))
    return TextConfig(
        kind=kind,
        vocab_size=int(raw.get("vocab_size", defaults.vocab_size)),
        hidden_size=hidden,
        intermediate_size=int(raw.get("intermediate_size", defaults.intermediate_size)),
        layers=int(raw.get("num_hidden_layers", defaults.layers)),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        rope_theta=float(theta),
        rms_eps=float(raw.get("rms_norm_eps", defaults.rms_eps)),
        tied=bool(raw.get("tie_word_embeddings", False)),
    )


def _towers(raw: Mapping[str, Any]) -> tuple[TowerConfig, ...]:
    explicit = raw.get("vision_config")
    if explicit:
        known = TowerConfig.__dataclass_fields__
        towers = []
        for tower in explicit["towers"]:
            unknown = sorted(set(tower) - set(known))
            if unknown:
                raise CheckpointError(f"vision_config has unknown keys {', '.join(unknown)}")
            values: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in tower.items()
            }
            towers.append(TowerConfig(**values))
        return tuple(towers)
    name = str(raw.get("vision_backbone_id", ""))
    if name not in BACKBONES:
        raise CheckpointError(
            f"vision_backbone_id is {name!r}: known are {', '.join(BACKBONES)};"
            " other towers need a vision_config"
        )
    return BACKBONES[name]


def _prompt_style(llm: str, text: TextConfig) -> str:
    if text.kind == "qwen2" or llm.startswith("qwen"):
        return "qwen"
    return "openvla-v0.1" if llm.startswith("vicuna") else "openvla"


def config_json(config: ModelConfig, norm_stats: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that :func:`parse_config` reads back as ``config``."""
    text = config.text
    llm = {"qwen": "qwen25-0_5b-extra", "openvla": "llama2-7b-pure"}
    return {
        "model_type": "openvla",
        "llm_backbone_id": llm.get(config.prompt_style, "vicuna-v15-7b"),
        "vision_config": {"towers": [asdict(tower) for tower in config.towers]},
        "use_fused_vision_backbone": len(config.towers) == 2,
        "image_resize_strategy": config.resize,
        "pad_to_multiple_of": text.vocab_size - config.action_vocab,
        "action_vocab": config.action_vocab,
        "empty_token_id": config.empty_token_id,
        "n_action_bins": config.bins,
        "image_sequence_len": config.images,
        "action_chunk": config.chunk,
        "parallel_decoding": config.parallel,
        "proprio_dim": config.proprio_dim,
        "action_dim": config.action_dim,
        "normalise_by_minmax": config.minmax,
        "norm_stats": dict(norm_stats),
        "text_config": text_json(text),
    }


def text_json(text: TextConfig) -> dict[str, Any]:
    """``text_config`` with transformers' names, also good for LlamaConfig and Qwen2Config."""
    out = {
        "model_type": text.kind,
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": text.layers,
        "num_attention_heads": text.heads,
        "num_key_value_heads": text.kv_heads,
        "rope_theta": text.rope_theta,
        "rms_norm_eps": text.rms_eps,
        "tie_word_embeddings": text.tied,
    }
    if text.head_dim * text.heads != text.hidden_size:
        out["head_dim"] = text.head_dim
    return out
