"""MiniVLA's VQ-VAE: what turns its codes back into actions, out of its ``model.pt``.

    VQ/config.json             {"input_dim_h", "input_dim_w", "vqvae_n_embed", "vqvae_groups", ...}
    VQ/checkpoints/model.pt    {"encoder", "decoder", "vq_embedding", "optimizer"}

Source: vq_bet_official ``vqvae/vqvae.py``, openvla-mini ``vla-scripts/pretrain_vq.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.config import ModelConfig, VqConfig
from vla_ros.engine.checkpoints.convert.unpickle import SEPARATOR, to_safetensors
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import open_tensors, read_json
from vla_ros.engine.errors import CheckpointError

DECODER = {"encoder.0": "0", "encoder.2": "1", "fc": "2"}  # its decoder is an EncoderMLP too


def read_vq(
    directory: Path, scratch: Path, config: ModelConfig
) -> tuple[dict[str, torch.Tensor], ModelConfig]:
    """Codebooks and decoder as ``vq.*``, and ``config`` with their sizes."""
    fields = Fields(read_json(directory / "config.json"), str(directory / "config.json"))
    groups, dim = fields.whole("vqvae_groups", 4), fields.whole("input_dim_w", 9)
    if groups != dim:
        raise fields.wrong("vqvae_groups", f"{dim}, one code for each of the action's dimensions")
    path = directory / "checkpoints" / "model.pt"
    out: dict[str, torch.Tensor] = {}
    with open_tensors(to_safetensors(path, scratch)) as shard:
        names = set(shard.keys())
        books = [f"vq_embedding{SEPARATOR}layers.{i}._codebook.embed" for i in range(groups)]
        linear = {
            f"decoder{SEPARATOR}{old}.{kind}": f"vq.decoder.{new}.{kind}"
            for old, new in DECODER.items()
            for kind in ("weight", "bias")
        }
        lost = sorted({*books, *linear} - names)
        if lost:
            raise CheckpointError(f"{path} lacks {', '.join(lost[:6])}: it is no VQ-VAE of MiniVLA")
        out["vq.codebooks"] = torch.cat([shard.get_tensor(name) for name in books]).float()
        for old, new in linear.items():
            out[new] = shard.get_tensor(old).float()
    vq = VqConfig(
        horizon=fields.whole("input_dim_h", 10),
        latent=fields.whole("n_latent_dims", 512),
        hidden=len(out["vq.decoder.0.bias"]),
        scale=fields.number("act_scale", 1.0),
    )
    codes = fields.whole("vqvae_n_embed", 32, 2)
    return out, replace(config, vq=vq, bins=codes, action_dim=dim)
