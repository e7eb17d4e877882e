"""The frozen description of a model, and the ``config.json`` that says it.

:mod:`~vla_ros.engine.checkpoints.parse` reads it back, and those that others wrote. Keys that
the OpenVLA family's own files do not have, and that this project's checkpoints and converters
add, are ``vision_config`` (explicit towers) and those from ``empty_token_id`` to
``normalise_by_minmax`` in :func:`config_json`; they mean what :class:`ModelConfig` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
MOST_DELAY = 9  # control periods; a prompt names a delay by one digit
STRATEGIES = ("resize-naive", "resize-crop", "letterbox")
ACTIVATIONS = ("gelu", "gelu_tanh")  # of a tower: exact, and its approximation by tanh
INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's 0...5


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """One vision tower. Features are those of block ``depth - 2`` (the last is never run).

    ``mean``, ``std`` per channel and ``interpolation`` are how it wants its pixels, where no
    ``preprocessor_config.json`` says otherwise. ``ternary``: its blocks have weights of -1, 0
    and 1 times a scale, and int8 inputs (BitSigLIP).
    """

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
    interpolation: str = "bicubic"
    activation: str = "gelu"
    ternary: bool = False

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch) ** 2


#: timm vit_large_patch14_reg4_dinov2 and vit_so400m_patch14_siglip_224.
DINOV2_L = TowerConfig(
    1024, 24, 16, 4096, class_token=True, registers=4, layer_scale=True,
    mean=IMAGENET_MEAN, std=IMAGENET_STD,
)  # fmt: skip
SIGLIP_SO400M = TowerConfig(1152, 27, 16, 4304)

_AT_384 = (replace(DINOV2_L, image_size=384), replace(SIGLIP_SO400M, image_size=384))

BACKBONES: dict[str, tuple[TowerConfig, ...]] = {
    "dinosiglip-vit-so-224px": (DINOV2_L, SIGLIP_SO400M),
    "dinosiglip-vit-so-384px": _AT_384,
    "siglip-vit-so400m": (SIGLIP_SO400M,),
    "siglip-vit-so400m-384px": _AT_384[1:],
    "dinov2-vit-l": (DINOV2_L,),
}


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The language model: Llama (no biases) or Qwen2 (QKV biases), both with RoPE and SwiGLU; or
    BitNet, Llama with ternary weights, a norm before each output and ReLU squared for SiLU."""

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

    @property
    def ternary(self) -> bool:
        return self.kind == "bitnet"


@dataclass(frozen=True, slots=True)
class VqConfig:
    """A VQ-VAE that turns the tokens of an answer into ``horizon`` actions (MiniVLA's VQ)."""

    horizon: int = 8
    latent: int = 512
    hidden: int = 128
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the engine needs to know about a checkpoint besides its tensors.

    ``action_vocab`` is the tokenizer's length V: action bin b (0...255) has token V - 1 - b.
    ``empty_token_id`` is appended to a prompt that does not end with it (Llama-2's 29871).
    ``resize`` is one of STRATEGIES; ``fill`` is the colour that a letterbox is padded with, None
    for int(255 * mean) of each tower. ``images`` counts the cameras: 1, or 2 with the wrist.
    ``chunk`` is the number of actions one inference returns; ``parallel`` marks an OpenVLA-OFT
    checkpoint with its L1 head, for actions of ``action_dim``; ``minmax`` normalises by min and
    max, not by q01 and q99 (ALOHA); ``stop_token`` ends its sequence. With ``vq``
    the ``bins`` are codes of a VQ-VAE. ``max_delay``: delays in control periods that it was trained
    for; above 0 its prompts name the delay.
    """

    text: TextConfig
    towers: tuple[TowerConfig, ...]
    action_vocab: int
    prompt_style: str = "openvla"
    empty_token_id: int | None = None
    resize: str = "resize-naive"
    fill: tuple[int, int, int] | None = None
    bins: int = 256
    images: int = 1
    chunk: int = 1
    parallel: bool = False
    proprio_dim: int = 0
    action_dim: int = 7
    minmax: bool = False
    vq: VqConfig | None = None
    max_delay: int = 0
    stop_token: int = 2

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

    def sees_like(self, other: ModelConfig) -> bool:
        """The same picture becomes the same pixels for the same towers."""
        return (self.towers, self.resize, self.fill) == (other.towers, other.resize, other.fill)


def config_json(config: ModelConfig, norm_stats: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that ``parse_config`` reads back as ``config``."""
    text = config.text
    llm = {"qwen": "qwen25-0_5b-extra", "openvla": "llama2-7b-pure"}
    return {
        "model_type": "openvla",
        "llm_backbone_id": llm.get(config.prompt_style, "vicuna-v15-7b"),
        "vision_config": {"towers": [asdict(tower) for tower in config.towers]},
        "use_fused_vision_backbone": len(config.towers) == 2,
        "image_resize_strategy": config.resize,
        "letterbox_fill": config.fill,
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
        "vq": config.vq and asdict(config.vq),
        "max_delay": config.max_delay,
        "stop_token": config.stop_token,
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
