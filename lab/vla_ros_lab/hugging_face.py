"""transformers' own Llama and Qwen2 classes: the reference, and a decoder of the engine.

As a decoder its attention calls ours (``AttentionInterface``), so every decoding runs on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from vla_ros.engine.io.checkpoint import LANGUAGE
from vla_ros.engine.io.config import TextConfig, text_json
from vla_ros.engine.layers.attention import Attention
from vla_ros.engine.layers.linear import LowBit
from vla_ros.engine.models.openvla import VLAModel

_NAME = "vla_ros_packed"


def build_causal_lm(config: TextConfig, tensors: Mapping[str, torch.Tensor]) -> Any:
    """LlamaForCausalLM / Qwen2ForCausalLM that shares the storage of ``tensors``."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    kinds: dict[str, tuple[Any, Any]] = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    }
    config_class, model_class = kinds[config.kind]
    settings = text_json(config)
    settings.pop("model_type")
    hf_config = config_class(**settings, max_position_embeddings=4096)
    hf_config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = model_class(hf_config)
    own = {n.removeprefix(LANGUAGE): t for n, t in tensors.items() if n.startswith(LANGUAGE)}
    model.load_state_dict(own, strict=not config.tied, assign=True)
    if config.tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    device = own["model.norm.weight"].device
    with torch.device(device):  # its buffers are computed, not stored
        model.model.rotary_emb = type(model.model.rotary_emb)(hf_config)
    return model.requires_grad_(False).eval()


def _call_packed(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float = 1.0,
    dropout: float = 0.0,
    packed: Attention | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    assert packed is not None
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return packed(module.layer_idx, q, k, v, scaling)[None], None


class TransformersDecoder:
    """A :class:`~vla_ros.engine.layers.runner.Decoder` of transformers' classes.

    ValueError where weights are quantized: it has none of these.
    """

    def __init__(
        self,
        config: TextConfig,
        tensors: Mapping[str, torch.Tensor],
        quantized: Mapping[str, LowBit],
    ) -> None:
        if quantized:
            raise ValueError("transformers' layers have no quantized weights here")
        from transformers import AttentionInterface

        AttentionInterface.register(_NAME, _call_packed)
        self.causal_lm = build_causal_lm(config, tensors)
        # The name is not among transformers' mask functions, so it makes no mask of its own.
        self.causal_lm.set_attn_implementation(_NAME)
        self.embedding = self.causal_lm.get_input_embeddings().weight

    @property
    def head(self) -> torch.Tensor:
        weight: torch.Tensor = self.causal_lm.lm_head.weight
        return weight

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.embedding)

    def hidden(
        self, x: torch.Tensor, positions: torch.Tensor, attention: Attention, rows: torch.Tensor
    ) -> torch.Tensor:
        out = self.causal_lm.model(
            inputs_embeds=x[None], position_ids=positions[None], use_cache=False, packed=attention
        )
        states: torch.Tensor = out.last_hidden_state[0]
        return states[rows]

    def tapped(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        rows: torch.Tensor,
        layers: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # transformers' own list of hidden states has the last one behind the final norm only
        taps: dict[int, torch.Tensor] = {}

        def keep(number: int) -> Any:
            def hook(module: Any, given: Any, out: Any) -> None:
                states = out[0] if isinstance(out, tuple) else out
                taps[number] = states[0][rows]

            return hook

        with ExitStack() as hooks:
            for number in layers:
                module = self.causal_lm.model.layers[number]
                hooks.enter_context(module.register_forward_hook(keep(number)))
            out = self.hidden(x, positions, attention, rows)
        return out, torch.cat([taps[number] for number in layers], 1) if layers else out[:, :0]


#: OpenVLA's network with transformers' language model in place of the engine's.
transformers_model = partial(VLAModel, make_decoder=TransformersDecoder)
