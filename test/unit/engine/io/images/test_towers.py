"""The towers equal transformers' Dinov2WithRegisters and SigLIP on the same weights."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from vla_ros.engine.io.config import TowerConfig
from vla_ros.engine.models.towers import Projector, Tower

SIZE = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 3, "image_size": 32}
LINES = ("norm1", "norm2", "mlp.fc1", "mlp.fc2")


def copy_linear(tower: dict[str, torch.Tensor], target: str, source: torch.nn.Module) -> None:
    tower[target + ".weight"] = source.weight.detach()
    tower[target + ".bias"] = source.bias.detach()


def qkv(tower: dict[str, torch.Tensor], target: str, parts: list[torch.nn.Module]) -> None:
    tower[target + ".weight"] = torch.cat([p.weight.detach() for p in parts])
    tower[target + ".bias"] = torch.cat([p.bias.detach() for p in parts])


def randomize(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)


def test_dinov2_with_registers() -> None:
    torch.manual_seed(0)
    config = Dinov2WithRegistersConfig(
        patch_size=8, num_register_tokens=4, mlp_ratio=2, layerscale_value=1.0, **SIZE
    )
    model = Dinov2WithRegistersModel(config).eval()
    randomize(model)
    named = dict(model.named_modules())
    shape = TowerConfig(48, 4, 3, 96, 32, 8, class_token=True, registers=4, layer_scale=True)
    tower = Tower(shape)
    state: dict[str, torch.Tensor] = {}
    embeddings = model.embeddings
    copy_linear(state, "patch_embed.proj", embeddings.patch_embeddings.projection)
    # timm folds the class token's position into the token itself.
    state["cls_token"] = (embeddings.cls_token + embeddings.position_embeddings[:, :1]).detach()
    state["pos_embed"] = embeddings.position_embeddings[:, 1:].detach()
    state["reg_token"] = embeddings.register_tokens.detach()
    for i, layer in enumerate(
        m for n, m in named.items() if n.endswith(tuple(f"layer.{i}" for i in range(3)))
    ):
        base = f"blocks.{i}."
        attention = layer.attention
        qkv(state, base + "attn.qkv", [attention.q_proj, attention.k_proj, attention.v_proj])
        copy_linear(state, base + "attn.proj", attention.o_proj)
        for name in LINES:
            copy_linear(state, base + name, layer.get_submodule(name))
        state[base + "ls1.scale_factor"] = layer.layer_scale1.lambda1.detach()
        state[base + "ls2.scale_factor"] = layer.layer_scale2.lambda1.detach()
    tower.load_state_dict(state)
    pixels = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        wanted = model(pixels, output_hidden_states=True).hidden_states[-2][:, 5:]
        torch.testing.assert_close(tower(pixels), wanted, atol=2e-4, rtol=1e-4)


def test_siglip() -> None:
    torch.manual_seed(1)
    config = SiglipVisionConfig(
        patch_size=8, intermediate_size=96, hidden_act="gelu", vision_use_head=False, **SIZE
    )
    model = SiglipVisionModel(config).eval()
    randomize(model)
    inner = getattr(model, "vision_model", model)
    tower = Tower(TowerConfig(48, 4, 3, 96, 32, 8))
    state: dict[str, torch.Tensor] = {}
    copy_linear(state, "patch_embed.proj", inner.embeddings.patch_embedding)
    state["pos_embed"] = inner.embeddings.position_embedding.weight.detach()[None]
    for i, layer in enumerate(inner.encoder.layers[:3]):
        base, attention = f"blocks.{i}.", layer.self_attn
        qkv(state, base + "attn.qkv", [attention.q_proj, attention.k_proj, attention.v_proj])
        copy_linear(state, base + "attn.proj", attention.out_proj)
        for name in LINES:
            source = layer.get_submodule(name.replace("norm", "layer_norm"))
            copy_linear(state, base + name, source)
    tower.load_state_dict(state)
    pixels = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        wanted = model(pixels, output_hidden_states=True).hidden_states[-2]
        torch.testing.assert_close(tower(pixels), wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("fused", "middle"), [(True, 40), (False, 6)])
def test_projector_shapes(fused: bool, middle: int) -> None:
    projector = Projector(10, 6, fused)
    assert projector.fc1.out_features == middle
    assert projector(torch.randn(4, 10)).shape == (4, 6)
