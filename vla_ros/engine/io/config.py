"""The frozen description of a token model, and the ``config.json`` that has it.

:func:`parse_config` reads what a file says and refuses by its name what the file asks for and this
engine does not compute; :func:`config_json` writes it. Sources: the published config.json of
openvla/openvla-7b and the classes that read it, openvla
``prismatic/extern/hf/configuration_prismatic.py``, transformers 4.40's ``LlamaConfig`` and
``Qwen2Config``; BitVLA ``configuration_bit_vla.py``, ``configuration_bitnet.py``,
``configuration_llava.py``: their defaults hold where a key is absent. Keys that these files do not
have, and that this project's checkpoints and converters add, are ``vision_config`` (explicit
towers) and those from ``empty_token_id`` to ``normalise_by_minmax`` in :func:`config_json`; they
mean what :class:`ModelConfig` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import BITVLA as BITVLA_FIELDS
from vla_ros.engine.io.fields import BITVLA_TEXT, BITVLA_VISION, DEEPEST, OPENVLA, TEXT

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
MOST_DELAY = 9  # action periods; a prompt names a delay by one digit
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


_IMAGENET: dict[str, Any] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
#: timm vit_large_patch14_reg4_dinov2 and vit_so400m_patch14_siglip_224.
DINOV2_L = TowerConfig(
    1024, 24, 16, 4096, class_token=True, registers=4, layer_scale=True, **_IMAGENET
)
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
    ``resize``: how an image becomes a square; ``fill`` is the color that a letterbox is padded
    with, None for int(255 * mean) of each tower. ``images`` counts the cameras: 1, or 2 with the
    wrist.
    ``chunk`` is the number of actions one inference returns; ``parallel`` marks an OpenVLA-OFT
    checkpoint with its L1 head, for actions of ``action_dim``; ``minmax`` normalizes by min and
    max, not by q01 and q99 (ALOHA); ``stop_token`` ends its sequence. With ``vq``
    the ``bins`` are codes of a VQ-VAE. ``max_delay``: delays in action periods that it was trained
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

    @property
    def kind(self) -> str:
        """The kind of policy, as the configs of the other families have it."""
        return "tokens"

    @property
    def horizon(self) -> int:
        """Actions of a chunk, by the name that flow policies' configs have for it."""
        return self.chunk

    @property
    def state_dim(self) -> int:
        """Values of the robot's state, by their name too."""
        return self.proprio_dim

    def sees_like(self, other: ModelConfig) -> bool:
        """An image becomes the same pixels for the same towers."""
        return (self.towers, self.resize, self.fill) == (other.towers, other.resize, other.fill)


LLAMA_EMPTY_TOKEN = 29871  # "▁" of Llama-2's tokenizer: OpenVLA expects it at the prompt's end
BITVLA = "bitvla"
#: BitNet-b1.58-2B-4T and BitSigLIP-L at 224 pixels: the published model
BITNET = TextConfig("bitnet", 128256, 2560, 6912, 30, 20, 5, 128, 5e5, 1e-5, tied=True)
BITSIGLIP = TowerConfig(1152, 27, 16, 4304, activation="gelu_tanh", ternary=True)
BITNET_END = 128001  # <|end_of_text|>
_GELU_TANH, _GELU = "gelu_pytorch_tanh", "gelu"
#: What a kind of language model has where ``text_config`` leaves it out.
DEFAULTS = {
    "llama": TextConfig("llama"),
    "qwen2": TextConfig("qwen2", vocab_size=151936, intermediate_size=22016),
    "bitnet": BITNET,
}
#: The values, where a file has one, of what the decoder computes in one way only.
_BUILT: dict[str, object] = {
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
}


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Turn a config.json's content into a :class:`ModelConfig`."""
    if raw.get("model_type") == BITVLA:
        return _parse_bitvla(raw)
    top = Fields(raw)
    OPENVLA.check(raw)
    if top.raw.get("quantization_config"):
        raise CheckpointError("quantization_config: quantized weights are not supported")
    llm = top.text("llm_backbone_id", "")
    text = parse_text(top.part("text_config").raw, "qwen2" if llm.startswith("qwen") else "llama")
    if text.kind == "qwen2" and "action_vocab" not in raw:
        raise CheckpointError(
            "a Qwen checkpoint lacks action_vocab: give its tokenizer's length"
            " (MiniVLA: 151921), the embedding's padding does not tell"
        )
    values = OPENVLA.parse(top, ModelConfig)
    vocab = top.whole("action_vocab", text.vocab_size - top.whole("pad_to_multiple_of", 64, 0))
    if not values["bins"] < vocab <= text.vocab_size:
        raise CheckpointError(
            f"{values['bins']} action bins at the end of {vocab} tokens do not fit into"
            f" text_config.vocab_size {text.vocab_size}"
        )
    if (delay := values["max_delay"]) > MOST_DELAY:
        raise CheckpointError(f"max_delay is {delay}: a prompt names a delay by one digit")
    style = _prompt_style(llm, text)
    empty = raw.get("empty_token_id", None if style == "qwen" else LLAMA_EMPTY_TOKEN)
    if empty is not None and not (isinstance(empty, int) and 0 <= empty < text.vocab_size):
        raise CheckpointError(f"empty_token_id {empty!r} is no token of {text.vocab_size}")
    config = ModelConfig(
        text=text,
        towers=_towers(top),
        action_vocab=vocab,
        prompt_style=style,
        empty_token_id=empty,
        fill=top.color("letterbox_fill", top.raw.get("letterbox_fill")),
        vq=top.part("vq").record(VqConfig) if raw.get("vq") else None,
        stop_token=top.whole("stop_token", 2, 0, text.vocab_size - 1),
        **values,
    )
    _check_images(config)
    return config


def _parse_bitvla(raw: Mapping[str, Any]) -> ModelConfig:
    """``parallel`` where it has been converted: the number of actions, cameras and values of state
    is in none of the authors' files, and `vla-ros convert` writes it beside them."""
    top = Fields(raw)
    BITVLA_FIELDS.check(raw)
    BITVLA_VISION.check(top.part("vision_config").raw, "vision_config.")
    text = parse_text(top.part("text_config").raw, "bitnet")
    if top.choice("vision_feature_select_strategy", "default", ("default", "full")) != "full":
        raise top.wrong("vision_feature_select_strategy", "full: every patch has a token")
    top.only("multimodal_projector_bias", True)
    end = top.part("text_config").whole("eos_token_id", BITNET_END, 0, text.vocab_size - 1)
    config = ModelConfig(
        text=text,
        towers=(_bitvla_tower(top.part("vision_config")),),
        action_vocab=text.vocab_size,
        prompt_style=BITVLA,
        stop_token=end,
        **BITVLA_FIELDS.parse(top, ModelConfig),
    )
    _check_images(config)
    return config


def _check_images(config: ModelConfig) -> None:
    if config.images > 3:
        raise CheckpointError(
            f"image_sequence_len is {config.images}: one to three cameras are supported"
        )


def parse_text(raw: Mapping[str, Any], kind: str = "llama") -> TextConfig:
    """Read ``text_config``; ``kind`` is the language model's where it does not say."""
    text = Fields(raw, "text_config")
    bitnet = kind == "bitnet"
    if bitnet:
        text.choice("model_type", "BitNet", ("BitNet", "bitnet"))
        BITVLA_TEXT.check(raw, "text_config.")
    else:
        kind = text.choice("model_type", kind, ("llama", "qwen2"))
        TEXT.check(raw, "text_config.")
    defaults = DEFAULTS[kind]
    # BitNet's own class computes ReLU squared whatever its hidden_act says
    text.only("hidden_act", "silu", "relu2" if bitnet else "swish")
    for name, allowed in _BUILT.items():
        text.only(name, allowed)
    rope = text.part("rope_parameters" if raw.get("rope_parameters") else "rope_scaling")
    rope.only("rope_type", "default")
    rope.only("type", "default")
    values = TEXT.parse(text, defaults)
    heads, hidden = values["heads"], values["hidden_size"]
    kv_heads = text.whole("num_key_value_heads", heads if kind == "llama" else defaults.kv_heads)
    head_dim = text.whole("head_dim", hidden // heads)
    uneven = hidden % heads and (bitnet or not raw.get("head_dim"))
    if heads % kv_heads or head_dim % 2 or uneven or (bitnet and head_dim * heads != hidden):
        raise CheckpointError(
            f"text_config has hidden_size {hidden}, {heads} heads, {kv_heads} key-value heads,"
            f" head_dim {head_dim}: these do not go together"
        )
    return TextConfig(
        kind=kind,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=text.number("rope_theta", rope.number("rope_theta", defaults.rope_theta)),
        **values,
    )


def _towers(top: Fields) -> tuple[TowerConfig, ...]:
    if any(top.items("timm_override_act_layers")):
        raise top.wrong("timm_override_act_layers", "null, the towers' own GELU")
    if top.raw.get("vision_config"):
        listed = top.part("vision_config").items("towers")
        if not 1 <= len(listed) <= 2:
            raise CheckpointError(f"vision_config has {len(listed)} towers: wanted one or two")
        towers = tuple(
            _tower(Fields(tower, f"vision_config.towers[{i}]")) for i, tower in enumerate(listed)
        )
        if len({tower.patches for tower in towers}) > 1:
            raise CheckpointError("vision_config: the towers see different numbers of patches")
        return towers
    name = top.text("vision_backbone_id", "")
    if name not in BACKBONES:
        raise CheckpointError(
            f"vision_backbone_id is {name!r}: known are {', '.join(BACKBONES)};"
            " other towers need a vision_config"
        )
    fused = len(BACKBONES[name]) == 2
    if top.flag("use_fused_vision_backbone", fused) != fused:
        raise top.wrong("use_fused_vision_backbone", f"{fused}, for {name}")
    return BACKBONES[name]


def _tower(fields: Fields) -> TowerConfig:
    tower = fields.record(
        TowerConfig,
        depth=(2, DEEPEST),
        registers=(0,),
        interpolation=INTERPOLATIONS,
        activation=ACTIVATIONS,
    )
    if tower.width % tower.heads:
        raise fields.wrong("width", f"a multiple of the {tower.heads} heads")
    return tower


def _bitvla_tower(fields: Fields) -> TowerConfig:
    bits = fields.whole("vit_weight_bits", 32), fields.whole("vit_act_bits", 32)
    if bits not in ((1, 8), (32, 32)):
        raise CheckpointError(
            f"vision_config has vit_weight_bits {bits[0]} and vit_act_bits {bits[1]}: 1 and 8,"
            " or 32 and 32, are computed here"
        )
    activation = fields.choice("hidden_act", _GELU_TANH, (_GELU_TANH, _GELU))
    values = BITVLA_VISION.parse(fields, TowerConfig(768, 12, 12, 3072, patch=16))
    if values["width"] % values["heads"]:
        raise fields.wrong("hidden_size", f"a multiple of the {values['heads']} heads")
    return TowerConfig(
        **values,
        activation="gelu" if activation == _GELU else "gelu_tanh",
        ternary=bits == (1, 8),
    )


def _prompt_style(llm: str, text: TextConfig) -> str:
    if text.kind == "qwen2" or llm.startswith("qwen"):
        return "qwen"
    return "openvla-v0.1" if llm.startswith("vicuna") else "openvla"


def config_json(config: ModelConfig, norm_stats: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that ``parse_config`` reads back as ``config``."""
    text = config.text
    llm = {"qwen": "qwen25-0_5b-extra", "openvla": "llama2-7b-pure"}
    given = {
        "model_type": "openvla",
        "llm_backbone_id": llm.get(config.prompt_style, "vicuna-v15-7b"),
        "vision_config": {"towers": [asdict(tower) for tower in config.towers]},
        "use_fused_vision_backbone": len(config.towers) == 2,
        "pad_to_multiple_of": text.vocab_size - config.action_vocab,
        "vq": config.vq and asdict(config.vq),
        "norm_stats": dict(norm_stats),
        "text_config": text_json(text),
    }
    return OPENVLA.write(config, given)


def text_json(text: TextConfig) -> dict[str, Any]:
    """``text_config`` with transformers' names, also good for LlamaConfig and Qwen2Config."""
    uneven = text.head_dim * text.heads != text.hidden_size
    return TEXT.write(text, {"head_dim": text.head_dim} if uneven else {})


def bitvla_json(config: ModelConfig) -> dict[str, Any]:
    """The authors' config.json that :func:`parse_config` reads back as ``config``."""
    text, (tower,) = config.text, config.towers
    few = {"model_type": "BitNet", "eos_token_id": config.stop_token}
    vision = {
        "hidden_act": _GELU if tower.activation == "gelu" else _GELU_TANH,
        "vit_weight_bits": 1 if tower.ternary else 32,
        "vit_act_bits": 8 if tower.ternary else 32,
    }
    given = {
        "vision_feature_select_strategy": "full",
        "text_config": text_json(text) | few,
        "vision_config": BITVLA_VISION.write(tower, vision),
    }
    return BITVLA_FIELDS.write(config, given)
