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
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.flow.groot.config import GrootConfig, parse_qwen
from vla_ros.engine.flow.groot.head import ActionHead
from vla_ros.engine.flow.groot.model import GrootModel, longest_of
from vla_ros.engine.flow.groot.qwen_vl import QwenVl, QwenVlConfig, qwen_vl_expected
from vla_ros.engine.flow.groot.shapes import HeadConfig, head_shapes
from vla_ros.engine.packed.graphs import Capture

GOLDEN = Path(__file__).resolve().parents[4] / "golden" / "groot"


def qwen() -> QwenVlConfig:
    said = {"shapes": QWEN, "select_layer": LAYERS, "backbone_embedding_dim": 40}
    return parse_qwen(Fields(said), SIDE)


def config(horizon: int = 7) -> GrootConfig:
    head = HeadConfig(
        horizon=HEADS_ALL["action_horizon"],
        action_width=HEADS_ALL["max_action_dim"],
        state_width=HEADS_ALL["max_state_dim"],
        layers=6,
        heads=HEAD_HEADS,
        head_dim=HEAD_DIM,
        context_width=HEADS_ALL["backbone_embedding_dim"],
        hidden=HEADS_ALL["hidden_size"],
        context_layers=2,
        context_heads=CONTEXT_HEADS,
        positions=HEADS_ALL["max_seq_len"],
        embodiments=HEADS_ALL["max_num_embodiments"],
    )
    return GrootConfig(
        "groot-n1.7", qwen(), head, "robot", EMBODIMENT, horizon, 5, 7, VIEWS, max_text=24
    )


class Drawn:
    """Weights by their names in the checkpoint; ``left``: those that nobody took."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.shapes, self.left = shapes, set(shapes)

    def take(self, name: str) -> torch.Tensor:
        self.left.remove(name)
        return torch.from_numpy(weight(name, self.shapes[name]))

    def take_row(self, name: str, row: int) -> torch.Tensor:
        return self.take(name)[row]


def model(capture: Capture | None = None, horizon: int = 7) -> GrootModel:
    made = config(horizon)
    drawn = Drawn({**qwen_vl_expected(qwen()).must, **head_shapes(made.head)})
    like, longest = torch.empty(0), longest_of(made, capture)
    eyes = QwenVl(qwen(), drawn, like, longest)
    head = ActionHead(made.head, drawn, EMBODIMENT, like, longest, padded=capture is not None)
    return GrootModel(made, eyes, head, like, capture)


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
