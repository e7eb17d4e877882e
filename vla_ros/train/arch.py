"""The models that can be trained, by name."""

from __future__ import annotations

from vla_ros.engine.checkpoints.config import ModelConfig, TextConfig, TowerConfig
from vla_ros.engine.checkpoints.random import PRESETS

_SMALL = PRESETS["small"]

#: text tokens 0 to 726, then the actions: other tokens than the target's for the same bins
_DRAFT_VOCAB = 983
_DRAFT_TEXT = TextConfig(
    "qwen2", vocab_size=1024, hidden_size=192, intermediate_size=512, layers=2, heads=3,
    kv_heads=1, head_dim=64, rope_theta=1e6, tied=True,
)  # fmt: skip
_TINY_TOWER = TowerConfig(32, 3, 2, 64, image_size=32, patch=8)
_TINY_TEXT = TextConfig(
    vocab_size=1024, hidden_size=32, intermediate_size=64, layers=2, heads=2, kv_heads=1,
    head_dim=16,
)  # fmt: skip

ARCHITECTURES: dict[str, ModelConfig] = {
    "small": _SMALL,
    # OpenVLA-OFT's: a chunk of 8 actions from one pass; begin it from a trained small one
    "small-oft": PRESETS["small-oft"],
    # the same chunk said token by token: begin it likewise
    "small-chunk": PRESETS["small-chunk"],
    "qwen2-draft": ModelConfig(_DRAFT_TEXT, _SMALL.towers, _DRAFT_VOCAB, prompt_style="qwen"),
    "tiny": ModelConfig(_TINY_TEXT, (_TINY_TOWER,), _SMALL.action_vocab),
    "tiny-oft": ModelConfig(
        _TINY_TEXT, (_TINY_TOWER,), _SMALL.action_vocab, chunk=4, parallel=True
    ),
    "tiny-chunk": ModelConfig(_TINY_TEXT, (_TINY_TOWER,), _SMALL.action_vocab, chunk=3),
    "tiny-draft": ModelConfig(
        TextConfig(
            "qwen2", vocab_size=1024, hidden_size=32, intermediate_size=64, layers=1, heads=2,
            kv_heads=1, head_dim=16, rope_theta=1e6, tied=True,
        ),
        (_TINY_TOWER,),
        _DRAFT_VOCAB,
        prompt_style="qwen",
    ),
}  # fmt: skip
