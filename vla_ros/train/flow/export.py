"""From a flow network in training to a folder in LeRobot's layout."""

from __future__ import annotations

from pathlib import Path

import torch

from vla_ros.engine.checkpoints.small_tokenizer import write_tokenizer
from vla_ros.engine.flow.gate import discrete_json
from vla_ros.engine.flow.save import save_folder
from vla_ros.train.flow.network import FlowNetwork


def write_flow(network: FlowNetwork, directory: Path) -> None:
    """Config, bf16 weights, processors, tokenizer and the gate's integers."""
    tensors = {n: t.detach().cpu().to(torch.bfloat16) for n, t in network.tensors().items()}
    config = network.config
    save_folder(directory, config, tensors, network.scaling.processors, discrete_json(config))
    write_tokenizer(directory / "tokenizer.json")
