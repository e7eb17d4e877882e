"""The authors' tensors and their shapes, and what each is called in this engine.

The tower is transformers' SigLIP there and timm's here: the same network, Q, K and V in one matrix.
"""

from __future__ import annotations

import re

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.checkpoints.weights import Shapes

TOWER, PROJECTOR = "vision_tower.vision_model.", "multi_modal_projector."
OURS = "vision_backbone.featurizer."
EMBEDDING = "language_model.model.embed_tokens.weight"
LAYERS = "language_model.model.layers."
QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
_LANGUAGE_MATRIX = re.compile(
    r"language_model\.model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight"
)
_TOWER_MATRIX = re.compile(re.escape(TOWER) + r"encoder\.layers\.\d+\.(self_attn|mlp)\.\w+\.weight")
_BLOCK = {
    "self_attn.out_proj": "attn.proj",
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


def is_ternary(name: str, config: ModelConfig) -> bool:
    """Whether a tensor of the authors is multiplied with two bits a weight."""
    if _LANGUAGE_MATRIX.fullmatch(name):
        return True
    return config.towers[0].ternary and _TOWER_MATRIX.fullmatch(name) is not None


def vision_shapes(config: ModelConfig) -> Shapes:
    """The authors' tensors of tower and projector that are read; the last block is never run."""
    (tower,), hidden = config.towers, config.text.hidden_size
    width = tower.width
    shapes: Shapes = {
        f"{TOWER}embeddings.patch_embedding.weight": (width, 3, tower.patch, tower.patch),
        f"{TOWER}embeddings.patch_embedding.bias": (width,),
        f"{TOWER}embeddings.position_embedding.weight": (tower.patches, width),
    }
    for layer in range(tower.depth - 1):
        base = f"{TOWER}encoder.layers.{layer}."
        for name in ("layer_norm1", "layer_norm2"):
            shapes |= {f"{base}{name}.weight": (width,), f"{base}{name}.bias": (width,)}
        for name in (*QKV, "out_proj"):
            shapes[f"{base}self_attn.{name}.weight"] = (width, width)
            shapes[f"{base}self_attn.{name}.bias"] = (width,)
        for name, (rows, columns) in {"fc1": (tower.mlp, width), "fc2": (width, tower.mlp)}.items():
            shapes |= {
                f"{base}mlp.{name}.weight": (rows, columns),
                f"{base}mlp.{name}.bias": (rows,),
            }
    for name, columns in (("linear_1", width), ("linear_2", hidden)):
        shapes[f"{PROJECTOR}{name}.weight"] = (hidden, columns)
        shapes[f"{PROJECTOR}{name}.bias"] = (hidden,)
    return shapes


def vision_unused(config: ModelConfig) -> tuple[str, ...]:
    """What names of the tower's tensors begin with that are never read."""
    last = config.towers[0].depth - 1
    return tuple(TOWER + part for part in ("post_layernorm.", "head.", f"encoder.layers.{last}."))


def own_name(name: str) -> str:
    """The engine's name for a tensor of the authors that stands alone, see :func:`fused`."""
    if name.startswith(PROJECTOR):
        return name.replace(f"{PROJECTOR}linear_", "projector.fc")
    if not name.startswith(TOWER):
        return name
    rest = name.removeprefix(TOWER)
    if rest.startswith("embeddings."):
        rest = rest.removeprefix("embeddings.").replace("patch_embedding", "patch_embed.proj")
        return OURS + rest.replace("position_embedding.weight", "pos_embed")
    _, _, layer, place = rest.split(".", 3)
    place, _, kind = place.rpartition(".")
    return f"{OURS}blocks.{layer}.{_BLOCK[place]}.{kind}"


def fused(name: str) -> tuple[str, int, int] | None:
    """Of a tensor that is multiplied together with others: the engine's name of them all, its place
    among them, their number. None: it stands alone."""
    base, _, kind = name.rpartition(".")
    base, _, own = base.rpartition(".")
    if name.startswith(TOWER) and own in QKV:
        layer = base.removeprefix(f"{TOWER}encoder.layers.").partition(".")[0]
        return f"{OURS}blocks.{layer}.attn.qkv.{kind}", QKV.index(own), len(QKV)
    if name.startswith(LAYERS) and own in QKV:
        return f"{base}.qkv_proj.{kind}", QKV.index(own), len(QKV)
    if name.startswith(LAYERS) and own in GATE_UP:
        return f"{base}.gate_up_proj.{kind}", GATE_UP.index(own), len(GATE_UP)
    return None
