"""The small GR00T N1.5 and N1.6 of test/golden/groot, built of weights drawn by their names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from golden.flow.seeded import draw
from golden.groot.drawn import weight
from golden.groot.eagle_cases import HEAD, IMAGE_TOKEN, TEXT, VISION
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.flow.groot.config import GrootConfig
from vla_ros.engine.flow.groot.eagle import Eagle, EagleConfig, eagle_expected
from vla_ros.engine.flow.groot.eagle_config import N15, N16, parse_n15, parse_n16
from vla_ros.engine.flow.groot.head import ActionHead
from vla_ros.engine.flow.groot.model import GrootModel, longest_of
from vla_ros.engine.flow.groot.shapes import HeadConfig, head_shapes
from vla_ros.engine.flow.weights import check_shapes
from vla_ros.engine.packed.graphs import Capture

GOLDEN = Path(__file__).resolve().parents[4] / "golden" / "groot"
ROWS = {N15: 31, N16: 2}  # new_embodiment, libero_panda
FOLDERS = {N15: GOLDEN / "n15", N16: GOLDEN / "n16"}
SIDES = {N15: 56, N16: 84}


@dataclass(frozen=True)
class Small:
    """One of them: what is stored, what it was asked, what NVIDIA's code made of it."""

    kind: str
    config: GrootConfig
    model: GrootModel
    golden: dict[str, torch.Tensor]
    left: set[str]
    noise: torch.Tensor


def said(kind: str) -> dict[str, Any]:
    """Its config.json, with the sizes that NVIDIA keeps beside its code."""
    raw = json.loads((FOLDERS[kind] / "config.json").read_text())
    eyes = {**VISION, "num_patches": 25} if kind == N16 else {**VISION, "image_size": SIDES[N15]}
    shapes = {"vision_config": eyes, "text_config": TEXT, "image_token_index": IMAGE_TOKEN}
    return {**raw, "shapes": shapes}


def halves(kind: str) -> tuple[EagleConfig, HeadConfig]:
    fields = Fields(said(kind))
    return parse_n15(fields) if kind == N15 else parse_n16(fields, SIDES[N16])


def stored(kind: str) -> dict[str, tuple[int, ...]]:
    found = json.loads((FOLDERS[kind] / "tensors.json").read_text())
    return {name: tuple(shape) for name, shape in found.items()}


class Drawn:
    """Weights by their names in the checkpoint; ``left``: those that nobody took."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.shapes, self.left = shapes, set(shapes)

    def take(self, name: str) -> torch.Tensor:
        self.left.remove(name)
        return torch.from_numpy(np.array(weight(name, self.shapes[name]), dtype=np.float32))

    def take_row(self, name: str, row: int) -> torch.Tensor:
        return self.take(name)[row]


def small(kind: str, capture: Capture | None = None, dtype: torch.dtype = torch.float32) -> Small:
    eagle, head = halves(kind)
    horizon = 7 if kind == N15 else 5
    config = GrootConfig(kind, eagle, head, "robot", ROWS[kind], horizon, 6, 4, ("a", "b"), 110)
    drawn = Drawn(stored(kind))
    like, longest = torch.empty(0, dtype=dtype), longest_of(config, capture)
    eyes = Eagle(eagle, drawn, like, longest)
    last = ActionHead(head, drawn, ROWS[kind], like, longest, padded=capture is not None)
    model = GrootModel(config, eyes, last, like, capture)
    with np.load(FOLDERS[kind] / "golden.npz") as arrays:
        golden = {n: torch.from_numpy(arrays[n]) for n in arrays.files}
    name = FOLDERS[kind].name
    noise = torch.from_numpy(draw(f"{name}/noise", 1, HEAD["action_horizon"], 11))[0]
    return Small(kind, config, model, golden, drawn.left, noise)


def check_names(kind: str) -> None:
    """CheckpointError where NVIDIA's model has other tensors than are expected here."""
    eagle, head = halves(kind)
    expected = eagle_expected(eagle)
    own = stored(kind)
    check_shapes("n", {n: s for n, s in own.items() if n.startswith("backbone.")}, expected)
    heads = {n for n in own if n.startswith("action_head.")} - {"action_head.mask_token"}
    assert heads == set(head_shapes(head))
