"""The shape of a model: everything that decides its arithmetic and traffic, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vla_ros.engine.io.config import ModelConfig, TextConfig
    from vla_ros.engine.io.flow_config import FlowConfig
    from vla_ros.engine.models.eagle import EagleConfig
    from vla_ros.engine.models.evo1 import Evo1Config
    from vla_ros.engine.models.groot import GrootConfig
    from vla_ros.engine.models.groot_head import HeadConfig
    from vla_ros.engine.models.qwen3_vl import Qwen3VLConfig
    from vla_ros.engine.models.turbovla import TurboVLAConfig


@dataclass(frozen=True, slots=True)
class TowerShape:
    """A vision transformer. ``blocks`` that are run; ``prefix`` class and register tokens."""

    width: int
    blocks: int
    heads: int
    mlp: int
    patches: int
    prefix: int = 0
    patch: int = 14


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A Llama-like decoder: grouped key/value heads, a gated MLP or (not ``gated``) a plain one.

    ``vocab`` 0: its head is never asked. ``table`` is the number of embeddings in memory besides
    the head: only a few rows are read, so it takes room but no time; 0 where the head is it.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int = 0
    table: int = 0
    gated: bool = True

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's matrices."""
        qkv = self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim
        mlp = (3 if self.gated else 2) * self.hidden * self.intermediate
        return qkv + self.heads * self.head_dim * self.hidden + mlp

    @property
    def weights(self) -> int:
        """Weights of the layers' matrices, without embedding and head."""
        return self.layers * self.layer_weights


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A flow-matching action expert that attends to the decoder's cache.

    ``rows`` actions are denoised together in ``steps`` steps; ``still_rows`` stand before them
    and are the same in all steps (pi0's state). In ``cross_layers`` of its layers keys and values
    are made from the decoder's cache, ``cross_width`` wide. ``ends`` are the matrices (inputs,
    outputs) around it, run once a step on every row. ``timed_weights`` depend on the time alone:
    tables when the model is loaded (pi0.5's adaRMS). ``flat`` are matrices that are run once a step
    on one row (Evo-1 flattens its chunk). ``reads_hidden``: it reads the decoder's last hidden
    states, so that the last layer is run whole, and the prefix is causal (Evo-1). Then layers that
    do not cross see nothing but the chunk, those that cross read ``cross_share`` of the prompt
    (GR00T: the text or the images alone), and ``refine`` are matrices that it goes through once.

    What is the same in all steps is done once a chunk; in a *naive* step all of it again.
    """

    decoder: DecoderShape
    rows: int
    steps: int = 10
    still_rows: int = 0
    cross_layers: int = 0
    cross_width: int = 0
    ends: tuple[tuple[int, int], ...] = ()
    timed_weights: int = 0
    flat: tuple[tuple[int, int], ...] = ()
    reads_hidden: bool = False
    cross_share: float = 1.0
    refine: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of the projector or of an action head, applied to ``rows`` rows a frame."""

    inputs: int
    outputs: int
    rows: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A VLA. ``kind`` is how it makes actions: ``tokens`` (one at a time), ``parallel`` (all
    placeholders in one pass), ``flow`` (an expert denoises a chunk).

    ``vision_tokens`` of one image enter the decoder; ``text_tokens`` are all the others of the
    prompt. ``action_tokens`` are those of one inference, which returns ``chunk`` actions.
    """

    name: str
    kind: str
    towers: tuple[TowerShape, ...]
    projector: tuple[Matrix, ...]
    decoder: DecoderShape
    vision_tokens: int
    text_tokens: int
    source: str
    action_tokens: int = 7
    chunk: int = 1
    images: int = 1
    action_head: tuple[Matrix, ...] = ()
    expert: ExpertShape | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def prompt(self) -> int:
        """Tokens of the prefill."""
        return self.images * self.vision_tokens + self.text_tokens

    def with_prompt(self, tokens: int) -> ModelShape:
        """The same model with so many tokens in its prompt, those of the images included.

        Raises:
            ValueError: fewer than the images alone have.
        """
        text = tokens - self.images * self.vision_tokens
        if text < 1:
            least = self.images * self.vision_tokens + 1
            raise ValueError(f"a prompt of {tokens} tokens: the images alone need {least - 1}")
        return replace(self, text_tokens=text)

    def with_images(self, images: int) -> ModelShape:
        """The same model with so many cameras."""
        return replace(self, images=images)

    def with_chunk(self, actions: int) -> ModelShape:
        """The same model trained to say so many actions at once, token by token.

        Raises:
            ValueError: fewer than one, or it makes no tokens one at a time.
        """
        if actions < 1:
            raise ValueError(f"a chunk of {actions} actions: give at least 1")
        if self.kind != "tokens":
            raise ValueError(f"{self.name} says its chunk at once: its length is not to choose")
        dim = self.action_tokens // self.chunk
        return replace(self, chunk=actions, action_tokens=dim * actions)


# The models this project knows by shape.
#
# Shapes are written down here so that a roofline needs neither torch nor a checkpoint; a test
# holds those of the OpenVLA family equal to what the engine loads.


PROMPT_TEXT = 25  # OpenVLA's prompt around a short instruction: 281 tokens with 256 patches
BITVLA_TEXT = 53  # BitVLA's, its words and marks counted: its tokenizer is not at hand
TERNARY = "its weights are ternary: give --dtype vision=ternary,decoder=ternary"

# Features are taken after block depth - 2, so the last block of each tower is never run.
_DINOV2_L = TowerShape(1024, 23, 16, 4096, patches=256, prefix=5)
_SIGLIP = TowerShape(1152, 26, 16, 4304, patches=256)
_LLAMA_7B = DecoderShape(4096, 11008, 32, 32, 32, 128, 32064, 32064)
_QWEN_05B = DecoderShape(896, 4864, 24, 14, 2, 64, 151936)


def fused_projector(features: int, hidden: int, patches: int) -> tuple[Matrix, ...]:
    """OpenVLA's projector of two fused towers: fc1 four times as wide, fc2, fc3."""
    wide = 4 * features
    sizes = ((features, wide), (wide, hidden), (hidden, hidden))
    return tuple(Matrix(i, o, patches) for i, o in sizes)


def single_projector(features: int, hidden: int, patches: int) -> tuple[Matrix, ...]:
    """OpenVLA v0.1's projector of one tower: fc1, fc2."""
    return Matrix(features, hidden, patches), Matrix(hidden, hidden, patches)


def l1_head(hidden: int, action_dim: int, chunk: int) -> tuple[Matrix, ...]:
    """OpenVLA-OFT's action head: fc1, two residual blocks, fc2, on each action of the chunk."""
    sizes = (
        (hidden * action_dim, hidden),
        (hidden, hidden),
        (hidden, hidden),
        (hidden, action_dim),
    )
    return tuple(Matrix(i, o, chunk) for i, o in sizes)


OPENVLA = ModelShape(
    "openvla-7b", "tokens", (_DINOV2_L, _SIGLIP), fused_projector(2176, 4096, 256), _LLAMA_7B,
    vision_tokens=256, text_tokens=PROMPT_TEXT,
    source="config.json of openvla/openvla-7b; timm's two towers",
)  # fmt: skip
MINIVLA = ModelShape(
    "minivla", "tokens", (_DINOV2_L, _SIGLIP), fused_projector(2176, 896, 256), _QWEN_05B,
    vision_tokens=256, text_tokens=PROMPT_TEXT,
    source="openvla-mini; config.json of Qwen/Qwen2.5-0.5B, 151936 embeddings",
    notes=("its own chat prompt is some 20 tokens longer: give --prompt-tokens",),
)  # fmt: skip
OFT = ModelShape(
    "openvla-oft", "parallel", (_DINOV2_L, _SIGLIP), fused_projector(2176, 4096, 256), _LLAMA_7B,
    vision_tokens=256, text_tokens=PROMPT_TEXT + 1, action_tokens=56, chunk=8, images=2,
    action_head=l1_head(4096, 7, 8),
    source="openvla-oft, LIBERO setting: 2 images, proprio, chunk 8 of 7 dimensions",
)  # fmt: skip
BITVLA = ModelShape(
    "bitvla", "parallel", (_SIGLIP,), single_projector(1152, 2560, 256),
    DecoderShape(2560, 6912, 30, 20, 5, 128), vision_tokens=256, text_tokens=BITVLA_TEXT + 1,
    action_tokens=56, chunk=8, images=2, action_head=l1_head(2560, 7, 8),
    source="BitVLA, LIBERO setting: 2 images, proprio, chunk 8 of 7 dimensions",
    notes=(TERNARY,),
)  # fmt: skip
SMOLVLA = ModelShape(
    "smolvla", "flow", (TowerShape(768, 12, 12, 3072, patches=1024, patch=16),),
    (Matrix(16 * 768, 960, 64),), DecoderShape(960, 2560, 16, 15, 5, 64, table=49280),
    vision_tokens=64, text_tokens=49, action_tokens=50, chunk=50, images=2,
    expert=ExpertShape(
        DecoderShape(720, 2048, 16, 15, 5, 64), rows=50, cross_layers=8, cross_width=320,
        ends=((32, 720), (1440, 720), (720, 720), (720, 32)),
    ),
    source="lerobot policies/smolvla on SmolVLM2-500M: 16 of 32 layers, expert 0.75 as wide",
)  # fmt: skip
PI0 = ModelShape(
    "pi0", "flow", (TowerShape(1152, 27, 16, 4304, patches=256),), (Matrix(1152, 2048, 256),),
    DecoderShape(2048, 16384, 18, 8, 1, 256, table=257152),
    vision_tokens=256, text_tokens=48, action_tokens=50, chunk=50, images=2,
    expert=ExpertShape(
        DecoderShape(1024, 4096, 18, 8, 1, 256), rows=50, still_rows=1,
        ends=((32, 1024), (2048, 1024), (1024, 1024), (1024, 32)),
    ),
    source="lerobot policies/pi0 (PaliGemma, 300M expert)",
)  # fmt: skip
PI05 = replace(
    PI0, name="pi05", text_tokens=200, images=3,
    expert=ExpertShape(
        DecoderShape(1024, 4096, 18, 8, 1, 256), rows=50, ends=((32, 1024), (1024, 32)),
        timed_weights=37 * 3 * 1024**2 + 2 * 1024**2,  # two norms a layer and the last one; time
    ),
    source="lerobot policies/pi05: the state is words of the prompt, time enters every norm",
)  # fmt: skip
EVO1 = ModelShape(
    "evo1", "flow", (TowerShape(1024, 24, 16, 4096, patches=1024, prefix=1),),
    (Matrix(4096, 896, 256), Matrix(896, 896, 256)),
    DecoderShape(896, 4864, 14, 14, 2, 64, table=151674),
    vision_tokens=256, text_tokens=40, action_tokens=50, chunk=50, images=2,
    expert=ExpertShape(
        DecoderShape(896, 3584, 8, 8, 8, 112, gated=False), rows=50, steps=32, cross_layers=8,
        cross_width=896, ends=((24, 896), (896, 896), (896, 896)),
        flat=((50 * 896, 896), (896, 1024), (1024, 1200)), reads_hidden=True,
    ),
    source="lerobot policies/evo1 on InternVL3-1B: 14 of 24 layers, the head crosses to them",
    notes=("the prompt keeps three images' places; those of absent cameras have no rows here",),
)  # fmt: skip
_DIT = DecoderShape(1536, 6144, 32, 32, 32, 48, gated=False)
GROOT_N17 = ModelShape(
    "groot-n1.7", "flow", (TowerShape(1024, 24, 16, 4096, patches=256, patch=16),),
    (Matrix(4096, 4096, 64), Matrix(4096, 2048, 64)) * 4,
    DecoderShape(2048, 6144, 16, 16, 8, 128, table=151936),
    vision_tokens=64, text_tokens=28, action_tokens=16, chunk=16, images=2,
    expert=ExpertShape(
        _DIT, rows=41, steps=4, cross_layers=16, cross_width=2048,
        ends=((132, 1536), (3072, 1536), (1536, 1536), (1536, 1024), (1024, 1024), (1024, 132)),
        timed_weights=2 * 1536**2 * 33 + 1536 * (1536 + 256), reads_hidden=True, cross_share=0.5,
        refine=((2048, 8192), (2048, 8192), (8192, 2048)) * 4,
    ),
    source="NVIDIA Isaac-GR00T gr00t_n1d7 on Cosmos-Reason2-2B (Qwen3-VL): 16 of 28 layers,"
    " three taps of the tower, 16 of the head's 40 actions",
)  # fmt: skip
GROOT_N16 = ModelShape(
    "groot-n1.6", "flow", (TowerShape(1152, 27, 16, 4304, patches=324),),
    (Matrix(4608, 2048, 81), Matrix(2048, 2048, 81)),
    DecoderShape(2048, 6144, 16, 16, 8, 128, table=151680),
    vision_tokens=81, text_tokens=35, action_tokens=16, chunk=16, images=2,
    expert=ExpertShape(
        _DIT, rows=51, steps=4, cross_layers=16, cross_width=2048,
        ends=((128, 1536), (3072, 1536), (1536, 1536), (1536, 1024), (1024, 1024), (1024, 128)),
        timed_weights=2 * 1536**2 * 33 + 1536 * (1536 + 256), reads_hidden=True, cross_share=0.5,
    ),
    source="NVIDIA Isaac-GR00T gr00t_n1d6 on Eagle-Block2A-2B: SigLIP2 at 252 pixels, 16 of 28"
    " layers of Qwen3, 16 of the head's 50 actions",
)  # fmt: skip
GROOT_N15 = ModelShape(
    "groot-n1.5", "flow", (TowerShape(1152, 27, 16, 4304, patches=256),),
    (Matrix(1152, 2048, 256),), DecoderShape(2048, 6144, 12, 16, 8, 128, table=151680),
    vision_tokens=256, text_tokens=38, action_tokens=16, chunk=16, images=2,
    expert=ExpertShape(
        replace(_DIT, layers=16), rows=49, steps=4, cross_layers=8, cross_width=2048,
        ends=((32, 1536), (3072, 1536), (1536, 1536), (1536, 1024), (1024, 1024), (1024, 32)),
        timed_weights=2 * 1536**2 * 17 + 1536 * (1536 + 256), reads_hidden=True,
        refine=((2048, 8192), (2048, 8192), (8192, 2048)) * 4,
    ),
    source="NVIDIA Isaac-GR00T gr00t_n1_5 on Eagle 2.5: 12 of 28 layers of Qwen3, 32 future tokens",
)  # fmt: skip
_SMALL_TOWER = TowerShape(192, 6, 3, 768, patches=64, patch=16)
SMALL = ModelShape(
    "small", "tokens", (_SMALL_TOWER,), single_projector(192, 256, 64),
    DecoderShape(256, 704, 4, 4, 4, 64, 1024, 1024), vision_tokens=64, text_tokens=PROMPT_TEXT,
    source="this project's small policy",
)  # fmt: skip
SMALL_BITVLA = replace(
    BITVLA, name="bitvla-small", towers=(_SMALL_TOWER,), projector=single_projector(192, 256, 64),
    decoder=DecoderShape(256, 704, 4, 4, 2, 64), vision_tokens=64, action_head=l1_head(256, 7, 8),
    source="BitVLA's layout at the size of this project's small policy",
)  # fmt: skip
CPU = ModelShape(
    "cpu", "tokens", (_SMALL_TOWER,), single_projector(192, 768, 64),
    DecoderShape(768, 2048, 12, 12, 12, 64, 32064, 32064), vision_tokens=64,
    text_tokens=PROMPT_TEXT, source="vla-ros bench --preset cpu",
)  # fmt: skip


def as_parallel(model: ModelShape, chunk: int) -> ModelShape:
    """A token model as OpenVLA-OFT would have it: placeholders and an L1 head for the chunk."""
    head = l1_head(model.decoder.hidden, 7, chunk)
    return replace(model, kind="parallel", chunk=chunk, action_tokens=7 * chunk, action_head=head)


SMALL_OFT = replace(as_parallel(SMALL, 8), name="small-oft")
# the same chunk said token by token: more passes of the same shape
SMALL_CHUNK = replace(SMALL, name="small-chunk", chunk=8, action_tokens=56)
OPENVLA_CHUNK = replace(OPENVLA, name="openvla-7b-chunk", chunk=8, action_tokens=56)

_KNOWN = (
    OPENVLA,
    MINIVLA,
    OFT,
    BITVLA,
    SMOLVLA,
    PI0,
    PI05,
    EVO1,
    GROOT_N17,
    GROOT_N16,
    GROOT_N15,
    SMALL,
    SMALL_OFT,
    SMALL_CHUNK,
    SMALL_BITVLA,
    OPENVLA_CHUNK,
    CPU,
)
MODELS = {m.name: m for m in _KNOWN}


# The shape of a flow policy that the engine can load.


#: Of a checkpoint's tensors those of the projector; of the maps around an expert, in the order in
#: which they are run; those that depend on the time alone; those that read a whole chunk at once.
_PROJECTOR = r"multi_modal_projector\.linear|modality_projection|merger.*linear_fc|mlp1\.\d"
_ENDS = (
    "action_in_proj", "action_time_mlp_in", "action_time_mlp_out", "action_out_proj",
    r"action_encoder\.W", "proj_out_2", r"action_decoder\.layer",
)  # fmt: skip
_TIMED = r"\.dense\.|^time_mlp|norm1\.linear|proj_out_1|timestep_embedder"
_FLAT = r"seq_pool_proj|mlp_head\.fc"


def flow_shape_of(config: Any, name: str) -> ModelShape:
    """A config of any family (``PolicyConfig``) as a shape, with the longest prompt it takes, and
    of pi0-FAST the longest answer."""
    if config.kind == "turbovla":
        return _turbovla(config, name)
    from vla_ros.engine.families.registry import family_of_kind

    maps = partial(_maps, family_of_kind(config.kind).expected(config).must)
    tower, text, words, expert = SHAPES[config.kind](config)
    timed = sum(inputs * outputs for inputs, outputs in maps(_TIMED))
    expert = replace(expert, ends=maps(*_ENDS), timed_weights=timed, flat=maps(_FLAT))
    spoken = int(getattr(config, "max_tokens", 0))
    return ModelShape(
        name,
        "tokens" if spoken else "flow",
        (tower,),
        tuple(Matrix(*size, config.view_tokens) for size in maps(_PROJECTOR)),
        _decoder(text, text.vocab_size),
        vision_tokens=config.view_tokens,
        text_tokens=words,
        action_tokens=spoken or config.horizon,
        chunk=config.horizon,
        images=len(config.cameras),
        expert=None if spoken else expert,
        source=f"config.json of {name}",
    )


def _maps(must: Mapping[str, tuple[int, ...]], *patterns: str) -> tuple[tuple[int, int], ...]:
    """Inputs and outputs of the matrices whose names hold a pattern; of a stack, one robot's."""
    found = [
        shape if len(shape) == 2 else shape[:0:-1]
        for pattern in patterns
        for name, shape in must.items()
        if re.search(pattern, name) and name.endswith(("weight", ".W")) and len(shape) > 1
    ]
    return tuple((inputs, outputs) for outputs, inputs in found)


#: tower, decoder, tokens of the prompt beside the images, expert
Parts = tuple[TowerShape, "TextConfig", int, ExpertShape]


def _tower(eyes: Any, patches: int, prefix: int = 0) -> TowerShape:
    return TowerShape(eyes.width, eyes.depth, eyes.heads, eyes.mlp, patches, prefix, eyes.patch)


def _lerobot(config: FlowConfig) -> Parts:
    vision, text, own = config.shapes.vision, config.shapes.text, config.shapes.expert
    # the state's row is in SmolVLA's prefix, a BOS behind pi0-FAST's
    words = config.max_text + int(config.kind in ("smolvla", "pi0_fast"))
    every = config.self_every
    cross = sum(1 for i in range(own.layers) if every and i % every)
    expert = ExpertShape(
        _decoder(own, 0),
        rows=config.horizon,
        steps=config.steps,
        still_rows=int(config.kind == "pi0"),
        cross_layers=cross,
        cross_width=text.kv_heads * text.head_dim if cross else 0,
    )
    return _tower(vision, (config.image_size // vision.patch) ** 2), text, words, expert


def _decoder(text: TextConfig, table: int) -> DecoderShape:
    """Its head is never asked."""
    return DecoderShape(
        text.hidden_size, text.intermediate_size, text.layers, text.heads, text.kv_heads,
        text.head_dim, table=table,
    )  # fmt: skip


def _evo1(config: Evo1Config) -> Parts:
    width, heads = config.width, config.heads
    expert = ExpertShape(
        DecoderShape(width, 4 * width, config.blocks, heads, heads, width // heads, gated=False),
        rows=config.horizon,
        steps=config.steps,
        cross_layers=config.blocks,
        cross_width=width,
        reads_hidden=True,
    )
    words = config.max_text - config.slots * config.view_tokens
    return _tower(config.vision, config.vision.patches, 1), config.text, words, expert


def _groot_n17(config: GrootConfig) -> Parts:
    qwen: Qwen3VLConfig = config.backbone  # type: ignore[assignment]
    eyes = qwen.vision
    tower = TowerShape(
        eyes.hidden_size,
        eyes.depth,
        eyes.num_heads,
        eyes.intermediate_size,
        eyes.patches,
        patch=eyes.patch_size,
    )
    return tower, qwen.text, config.max_text, groot_expert(config.head)


def _groot_eagle(config: GrootConfig) -> Parts:
    eagle: EagleConfig = config.backbone  # type: ignore[assignment]
    tower = _tower(eagle.vision, eagle.vision.patches)
    return tower, eagle.text, config.max_text, groot_expert(config.head)


def groot_expert(head: HeadConfig) -> ExpertShape:
    """GR00T's head with one robot's encoders: the blocks cross to a context and to themselves in
    turn, and time is tables."""
    width, context = head.width, head.backbone_embedding_dim
    heads, every = head.num_attention_heads, head.attend_text_every_n_blocks
    blocks = DecoderShape(
        width, 4 * width, head.num_layers, heads, heads, head.attention_head_dim, gated=False
    )
    return ExpertShape(
        blocks,
        rows=head.rows,
        steps=head.num_inference_timesteps,
        cross_layers=len(head.crossing),
        cross_width=context,
        reads_hidden=True,
        cross_share=1 / every if every == 2 else 1.0,
        refine=((context, 4 * context), (context, 4 * context), (4 * context, context))
        * head.vl_layers,
    )


def _turbovla(config: TurboVLAConfig, name: str) -> ModelShape:
    """Its matrices without BERT's, which read an instruction once: there is no language model, so
    the decoder has no layers, and the scores of its small attention are left out."""
    width, inner, patches = config.width, config.inner, config.vision.patches
    words = config.text_length or config.max_text
    seen = len(config.cameras) * patches
    memory = seen + words + config.state_rows
    exchange = [
        *[Matrix(width, inner, rows) for rows in (seen, words) for _ in range(2)],
        *[Matrix(inner, width, rows) for rows in (seen, words)],
        *[Matrix(width, wide, words) for wide in (3 * width, width, inner)],
        Matrix(inner, width, words),
    ]
    queries = [
        Matrix(width, 2 * width, memory),
        *[Matrix(width, wide, config.horizon) for wide in (3 * width, width, width, width)],
        Matrix(width, config.mlp, config.horizon),
        Matrix(config.mlp, width, config.horizon),
    ]
    ends = pairwise((width, config.hidden, config.hidden, config.action_dim))
    head = [
        *exchange * config.exchange,
        Matrix(config.state_dim, config.state_hidden, 1),
        Matrix(config.state_hidden, config.state_rows * width, 1),
        *queries * config.layers,
        *[Matrix(a, b, config.horizon) for a, b in ends],
    ]
    eyes, inside = config.vision.width, config.projector
    tower = _tower(config.vision, patches, 1 + config.vision.registers)
    return ModelShape(
        name,
        "parallel",
        (tower,),
        tuple(Matrix(*ab, patches) for ab in ((eyes, inside), (inside, width), (eyes, width))),
        DecoderShape(
            width, inner, 0, config.heads, config.heads, width // config.heads, gated=False
        ),
        vision_tokens=patches,
        text_tokens=words,
        action_tokens=config.horizon,
        chunk=config.horizon,
        images=len(config.cameras),
        action_head=tuple(head),
        source=f"config.json of {name}",
    )


#: By kind; a test asks every family's presets for theirs.
SHAPES: dict[str, Callable[[Any], Parts]] = {
    "pi0": _lerobot, "pi05": _lerobot, "smolvla": _lerobot, "pi0_fast": _lerobot,
    "evo1": _evo1,
    "groot-n1.7": _groot_n17, "groot-n1.6": _groot_eagle, "groot-n1.5": _groot_eagle,
}  # fmt: skip


# The shape of a model by any name: a known one, a checkpoint's from its config.json.


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
        from vla_ros.engine.errors import CheckpointError
        from vla_ros.engine.families.registry import config_of, family_of
        from vla_ros.engine.io.checkpoint import read_config
        from vla_ros.engine.options import TOKENS
    except ImportError as error:
        raise ValueError(
            f"{name!r} is none of {', '.join(MODELS)}, and reading a checkpoint needs the engine's"
            f" packages: {error}"
        ) from None
    folder = _folder(name)
    shown = name if ":" in name else folder.name
    try:
        if family_of(folder).group != TOKENS:
            return flow_shape_of(config_of(folder), shown)
        config, raw = read_config(folder)
    except CheckpointError as error:
        raise ValueError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"{folder / 'config.json'} cannot be read: {error}") from None
    return shape_of(config, shown, action_dim(raw))


def _small_flow(name: str) -> ModelShape:
    """``random:pi0-small`` and the like."""
    from vla_ros.engine.families.registry import all_presets

    preset = name.removeprefix("random:")
    presets = {n: config for n, config in all_presets().items() if config.kind != "tokens"}
    if preset not in presets:
        known = ", ".join(dict.fromkeys((*MODELS, *presets)))
        raise ValueError(f"no model {name!r}: the known shapes are {known}")
    return flow_shape_of(presets[preset], preset)


def _folder(name: str) -> Path:
    """Where a checkpoint is on this machine. ValueError: nowhere."""
    from vla_ros.engine.io.hub import SHIPPED, hub_id, shipped

    if name.startswith(SHIPPED):
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
