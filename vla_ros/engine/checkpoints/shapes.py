"""Which tensors a checkpoint in OpenVLA's layout must have, by name and shape, and which it may."""

from __future__ import annotations

from pathlib import Path

import torch

from vla_ros.engine.checkpoints.bitvla.names import vision_shapes, vision_unused
from vla_ros.engine.checkpoints.config import ModelConfig, TextConfig
from vla_ros.engine.checkpoints.weights import Shapes, Stored, check_shapes

Tensors = dict[str, torch.Tensor]
LANGUAGE, VQ = "language_model.", "vq."


def unused_names(config: ModelConfig) -> tuple[str, ...]:
    """What names of tensors begin with that the family's checkpoints carry and never read."""
    if config.text.ternary:  # all BitVLA says is what its action head makes of states
        return (*vision_unused(config), LANGUAGE + "lm_head.weight")
    out: list[str] = []
    for name, tower in zip(("featurizer", "fused_featurizer"), config.towers, strict=False):
        base = f"vision_backbone.{name}."
        out += [base + part for part in ("attn_pool.", "norm.", "head.", "fc_norm.")]
        out.append(f"{base}blocks.{tower.depth - 1}.")
    if config.text.tied:
        out.append(LANGUAGE + "lm_head.weight")  # a second copy of the embedding
    return tuple(out)


def expected_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every tensor the engine reads for ``config``."""
    if config.text.ternary:
        shapes = vision_shapes(config)
    else:
        from vla_ros.engine.vision.towers import Vision

        with torch.device("meta"):
            vision = Vision(config)
        shapes = {n: tuple(t.shape) for n, t in vision.state_dict().items()}
    shapes.update({LANGUAGE + n: s for n, s in text_shapes(config.text).items()})
    if config.parallel:
        from vla_ros.engine.heads import head_shapes

        shapes.update(head_shapes(config))
    if config.vq is not None:
        from vla_ros.engine.codes import vq_shapes

        shapes.update(vq_shapes(config))
    return shapes


def text_shapes(text: TextConfig) -> Shapes:
    """Tensors of LlamaForCausalLM / Qwen2ForCausalLM, with transformers' names; of BitNet's without
    its head."""
    hidden, middle = text.hidden_size, text.intermediate_size
    wide, narrow = text.heads * text.head_dim, text.kv_heads * text.head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (text.vocab_size, hidden)}
    for layer in range(text.layers):
        base = f"model.layers.{layer}."
        shapes[base + "input_layernorm.weight"] = (hidden,)
        shapes[base + "post_attention_layernorm.weight"] = (hidden,)
        for name, rows in (("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow)):
            shapes[f"{base}self_attn.{name}.weight"] = (rows, hidden)
            if text.qkv_bias:
                shapes[f"{base}self_attn.{name}.bias"] = (rows,)
        shapes[base + "self_attn.o_proj.weight"] = (hidden, wide)
        shapes[base + "mlp.gate_proj.weight"] = (middle, hidden)
        shapes[base + "mlp.up_proj.weight"] = (middle, hidden)
        shapes[base + "mlp.down_proj.weight"] = (hidden, middle)
        if text.ternary:
            shapes[base + "self_attn.attn_sub_norm.weight"] = (hidden,)
            shapes[base + "mlp.ffn_sub_norm.weight"] = (middle,)
    shapes["model.norm.weight"] = (hidden,)
    if not text.tied and not text.ternary:
        shapes["lm_head.weight"] = (text.vocab_size, hidden)
    return shapes


_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}


def check_tensors(
    where: Path, tensors: Tensors, config: ModelConfig, unused: tuple[str, ...] = ()
) -> None:
    """Raise CheckpointError where they are not those of ``config``; ``where`` they come from."""
    described = {
        name: Stored(where, tuple(tensor.shape), _NAMES.get(tensor.dtype, str(tensor.dtype)))
        for name, tensor in tensors.items()
    }
    check_shapes(where, described, expected_shapes(config), unused)
