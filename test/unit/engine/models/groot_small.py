"""The small GR00T N1.7 of test/golden/groot, built of weights that are drawn by their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from golden.flow.seeded import draw, image
from golden.groot.cases import (
    CONTEXT_HEADS,
    EMBODIMENT,
    HEAD_DIM,
    HEAD_HEADS,
    HEADS_ALL,
    LAYERS,
    PROMPT,
    QWEN,
    SIDE,
    VIEWS,
)
from golden.groot.drawn import weight
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.weights import Weights
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.models.groot import GrootConfig, GrootModel
from vla_ros.engine.models.groot_head import HeadConfig
from vla_ros.engine.models.qwen3_vl import Qwen3VLConfig, parse_qwen3_vl

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "groot"


def qwen() -> Qwen3VLConfig:
    said = {"shapes": QWEN, "select_layer": LAYERS, "backbone_embedding_dim": 40}
    return parse_qwen3_vl(Fields(said), SIDE)


def config(horizon: int = 7) -> GrootConfig:
    head = HeadConfig(
        action_horizon=HEADS_ALL["action_horizon"],
        max_action_dim=HEADS_ALL["max_action_dim"],
        max_state_dim=HEADS_ALL["max_state_dim"],
        num_layers=6,
        num_attention_heads=HEAD_HEADS,
        attention_head_dim=HEAD_DIM,
        backbone_embedding_dim=HEADS_ALL["backbone_embedding_dim"],
        hidden_size=HEADS_ALL["hidden_size"],
        vl_layers=2,
        vl_heads=CONTEXT_HEADS,
        max_seq_len=HEADS_ALL["max_seq_len"],
        max_num_embodiments=HEADS_ALL["max_num_embodiments"],
    )
    return GrootConfig(
        "groot-n1.7", qwen(), head, "robot", EMBODIMENT, horizon, 5, 7, VIEWS, max_text=24
    )


class Drawn(Weights):
    """Weights by their names in the checkpoint behind ``case``; ``left``: those that nobody took,
    ``rows``: those of stacks that were."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], case: str = "") -> None:
        self.shapes, self.left, self.rows = shapes, set(shapes), set[int]()
        self._case = case

    def take(self, name: str) -> torch.Tensor:
        self.left.remove(name)
        return torch.from_numpy(np.float32(weight(self._case + name, self.shapes[name])))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]

    def take_row(self, name: str, row: int) -> torch.Tensor:
        self.rows.add(row)
        return self.take(name)[row]


def model(capture: Capture | None = None, horizon: int = 7) -> GrootModel:
    made = config(horizon)
    drawn = Drawn(dict(made.expected().must))
    return GrootModel(made, drawn, torch.empty(0), capture)


def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "n17.npz") as arrays:
        return {n: arrays[n] for n in arrays.files}


def pixels() -> torch.Tensor:
    seen = np.stack([image(f"n17/{view}", SIDE, SIDE) for view in VIEWS])
    return torch.from_numpy(seen).permute(0, 3, 1, 2).float() / 255.0 * 2.0 - 1.0


def ids() -> torch.Tensor:
    return torch.tensor(PROMPT)


def state() -> torch.Tensor:
    return torch.from_numpy(draw("n17/state", 1, 1, HEADS_ALL["max_state_dim"]))[0, 0]


def noise() -> torch.Tensor:
    return torch.from_numpy(draw("n17/noise", 1, 7, HEADS_ALL["max_action_dim"]))[0]


def off(ours: torch.Tensor, theirs: np.ndarray) -> float:
    assert tuple(ours.shape) == theirs.shape
    return float(np.abs(ours.numpy() - theirs).max())
