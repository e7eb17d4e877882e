"""What a model needs in memory: the one count behind `roofline`, `advise` and `doctor`."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.analysis import stages
from vla_ros.analysis.shapes import DecoderShape, ModelShape, TowerShape
from vla_ros.analysis.work import PARTS, WEIGHT_BYTES, Precision

LONGEST_TEXT = 192  # prompt tokens besides the images that the engine keeps room for
#: bytes of CUDA's context and libraries, captured graphs and what the allocator wastes: assumed
RUNTIME = 1.0e9


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``cache``: keys and values of every frame that is being decoded, at the longest
    prompt. ``activations``: what the largest pass holds at once. ``runtime``: an assumption."""

    weights: float
    cache: float
    activations: float
    runtime: float = RUNTIME

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.activations + self.runtime

    def fits(self, device_bytes: float) -> bool:
        """Whether a device has room for it; 0: nobody knows how much it has, so True."""
        return not device_bytes or self.total <= device_bytes


def memory_of(model: ModelShape, precision: Precision, frames: int = 1) -> Memory:
    """What one policy takes. ``frames`` are decoded at a time: the depth of the pipeline."""
    widths = {part: WEIGHT_BYTES[getattr(precision, part)] for part in PARTS}
    widths["table"] = WEIGHT_BYTES[precision.table]
    longest = model.images * model.vision_tokens + LONGEST_TEXT + model.action_tokens
    entries = 2.0 * model.decoder.layers * model.decoder.kv_heads * model.decoder.head_dim
    held = [_pass(model.decoder, longest, model.action_tokens)]
    held += [_tower(tower, model.images) for tower in model.towers]
    return Memory(
        weights=stages.weight_bytes(model, widths),
        cache=frames * longest * entries * widths["kv"],
        activations=max(held) * WEIGHT_BYTES[precision.activation],
    )


def _pass(decoder: DecoderShape, rows: int, logits: int) -> float:
    """Elements alive in a layer, at its widest: residual, normed rows, gate and up, the gate's
    SiLU, their product; and the logits of the pass."""
    return rows * (2.0 * decoder.hidden + 4.0 * decoder.intermediate) + logits * decoder.vocab


def _tower(tower: TowerShape, images: int) -> float:
    """The same of a vision block: residual, normed rows, the MLP before and after its GELU."""
    return images * (tower.patches + tower.prefix) * (2.0 * tower.width + 2.0 * tower.mlp)
