"""The models this project knows by shape.

Shapes are written down here so that a roofline needs neither torch nor a checkpoint; a test
holds those of the OpenVLA family equal to what the engine loads.
"""

from __future__ import annotations

from dataclasses import replace

from vla_ros.analysis.shapes import DecoderShape, ExpertShape, Matrix, ModelShape, TowerShape

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
