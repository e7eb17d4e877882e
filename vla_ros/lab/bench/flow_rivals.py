"""transformers' own pi0 with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from vla_ros.benchmark.flow.row import Inputs, Spent, Stopwatch
from vla_ros.engine.checkpoints.config import TextConfig
from vla_ros.engine.flow.config import FlowConfig
from vla_ros.engine.flow.weights import Weights

#: The expert's embedding: nobody reads it.
UNUSED = {"model.dit.embed_tokens.weight"}


def transformers_pi0(
    config: FlowConfig,
    take: Callable[[str], torch.Tensor],
    names: list[str],
    dtype: torch.dtype = torch.float32,
) -> Any:
    """PI0ForConditionalGeneration of these shapes with the tensors ``names``, by ``take(name)``.

    ValueError: a tensor of its own has no counterpart.
    """
    from transformers import PI0Config, PI0ForConditionalGeneration

    tower, text = config.shapes.vision, config.shapes.text
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": tower.width,
        "num_hidden_layers": tower.depth,
        "num_attention_heads": tower.heads,
        "intermediate_size": tower.mlp,
        "image_size": tower.image_size,
        "patch_size": tower.patch,
        "vision_use_head": False,
    }
    vlm = {
        "model_type": "paligemma",
        "text_config": _gemma(text),
        "vision_config": vision,
        "projection_dim": text.hidden_size,
        "image_token_id": text.vocab_size,
    }
    asked = PI0Config(
        vlm_config=vlm,
        dit_config=_gemma(replace(config.shapes.expert, vocab_size=text.vocab_size)),
        chunk_size=config.horizon,
        max_state_dim=config.state_width,
        max_action_dim=config.action_width,
        num_inference_steps=config.steps,
    )
    with torch.device("meta"):
        model = PI0ForConditionalGeneration(asked)
    model = model.to(dtype).to_empty(device="cpu").eval()
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name in names:
            own[_their_name(name)].copy_(take(name))
    filled = {_their_name(name) for name in names}
    left = {name for name, _ in model.named_parameters()} - filled - UNUSED
    if left:
        raise ValueError(f"transformers' pi0 has tensors without a counterpart: {sorted(left)[:3]}")
    return _with_buffers(model, asked)


def _with_buffers(model: Any, config: Any) -> Any:
    """Buffers are computed and stored nowhere: those of a model of one layer are the same."""
    from transformers import PI0ForConditionalGeneration

    fresh = PI0ForConditionalGeneration(_one_layer(config))
    for name, value in fresh.named_buffers():
        holder, _, last = name.rpartition(".")
        model.get_submodule(holder).register_buffer(last, value, persistent=False)
    return model


def _one_layer(config: Any) -> Any:
    from copy import deepcopy

    small = deepcopy(config)
    small.dit_config.num_hidden_layers = small.vlm_config.text_config.num_hidden_layers = 1
    small.vlm_config.vision_config.num_hidden_layers = 1
    return small


class TransformersRow:
    """Its ``sample_actions``, with the clock around its parts."""

    def __init__(self, config: FlowConfig, model: Any, device: torch.device) -> None:
        self._config, self._model, self._device = config, model.to(device), device

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, Spent]:
        model, config, noise = self._model, self._config, inputs.noise
        assert noise is not None, "pi0 starts from noise"
        watch, dtype = Stopwatch(self._device), model.dtype
        slots = len(inputs.pixels) * config.view_tokens
        image = torch.full((slots,), config.shapes.text.vocab_size)
        ids = torch.cat([image, inputs.ids.cpu()])[None].to(self._device)
        see, forward = model.model.vlm.get_image_features, type(model).forward

        def step(*args: Any, **kwargs: Any) -> Any:
            return watch.time("decode", lambda: forward(model, *args, **kwargs))

        model.model.vlm.get_image_features = lambda *a: watch.time("vision", lambda: see(*a))
        model.forward = step

        def sample() -> torch.Tensor:
            found: torch.Tensor = model.sample_actions(
                inputs.state[None].to(self._device, dtype),
                ids,
                inputs.pixels[None].to(self._device, dtype),
                noise[None].to(self._device, dtype),
                attention_mask=torch.ones_like(ids),
                pixel_attention_mask=torch.ones(
                    1, len(inputs.pixels), dtype=torch.bool, device=self._device
                ),
            )
            return found

        try:
            with torch.inference_mode():
                out = watch.time("whole", sample)
        finally:
            del model.forward, model.model.vlm.get_image_features
        watch.rest("prefill", "whole")
        return out[0].float().cpu(), watch.spent


def of_weights(config: FlowConfig, weights: Weights, names: list[str], dtype: torch.dtype) -> Any:
    """The model with a checkpoint's weights, each read once."""
    return transformers_pi0(config, weights.take, names, dtype)


def _gemma(text: TextConfig) -> dict[str, Any]:
    return {
        "model_type": "gemma",
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": text.layers,
        "num_attention_heads": text.heads,
        "num_key_value_heads": text.kv_heads,
        "head_dim": text.head_dim,
        "rms_norm_eps": text.rms_eps,
    }


def _their_name(name: str) -> str:
    name = name.replace("paligemma_with_expert.paligemma.model.", "model.vlm.")
    name = name.replace("paligemma_with_expert.gemma_expert.model.", "model.dit.")
    if name.startswith(("state_proj", "action_in_proj", "action_time_mlp")):
        return f"embed_action_time.{name}"
    return name
