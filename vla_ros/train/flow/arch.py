"""The flow policies that can be trained, by name: pi0's architecture at small sizes."""

from __future__ import annotations

from dataclasses import replace

from vla_ros.control.proprio import LIBERO_STATE
from vla_ros.core import ACTION_DIM
from vla_ros.engine.checkpoints.config import TextConfig, TowerConfig
from vla_ros.engine.checkpoints.small_tokenizer import TEXT_VOCAB
from vla_ros.engine.flow.config import FlowConfig, Shapes

#: the tower and the language model are those of ``small``, whose weights they may begin with: a
#: token policy's tower has one block more in its description, which is never run
_TOWER = TowerConfig(192, 6, 3, 768, image_size=128, patch=16)
_TEXT = TextConfig(
    "gemma", TEXT_VOCAB, 256, 704, 4, heads=4, kv_heads=4, head_dim=64, tied=True
)  # fmt: skip
_EXPERT = replace(_TEXT, vocab_size=1, hidden_size=192, intermediate_size=512)
_TINY_TOWER = TowerConfig(32, 2, 2, 64, image_size=32, patch=8)
_TINY_TEXT = TextConfig(
    "gemma", TEXT_VOCAB, 32, 64, 2, heads=2, kv_heads=1, head_dim=16, tied=True
)  # fmt: skip
_TINY_EXPERT = replace(_TINY_TEXT, vocab_size=1, hidden_size=24, intermediate_size=48)


def _flow(shapes: Shapes, horizon: int, steps: int) -> FlowConfig:
    """One camera; the state is LIBERO's pose and fingers. Each action has a time of its own, so
    one network serves plain sampling, guided and trained real-time chunking."""
    return FlowConfig(
        kind="pi0", shapes=shapes, horizon=horizon, steps=steps, state_width=LIBERO_STATE,
        action_width=ACTION_DIM, state_dim=LIBERO_STATE, action_dim=ACTION_DIM,
        cameras=("front",), max_text=48, image_size=shapes.vision.image_size, row_time=True,
    )  # fmt: skip


FLOW_ARCHITECTURES: dict[str, FlowConfig] = {
    "small-flow": _flow(Shapes(_TOWER, _TEXT, _EXPERT), horizon=16, steps=5),
    "tiny-flow": _flow(Shapes(_TINY_TOWER, _TINY_TEXT, _TINY_EXPERT), horizon=6, steps=3),
}
