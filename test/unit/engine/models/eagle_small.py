"""The small GR00T N1.5 and N1.6 of test/golden/groot, built of weights drawn by their names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from golden.flow.seeded import draw
from golden.groot.eagle_cases import HEAD, IMAGE_TOKEN, TEXT, VISION
from unit.engine.models.groot_small import GOLDEN, Drawn
from vla_ros.engine.families.groot import VERSIONS
from vla_ros.engine.io.embodiment import Embodiment
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.images.framing import Framing
from vla_ros.engine.io.tensors import shapes
from vla_ros.engine.io.weights import Stored, check_tensors
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.models.eagle import EagleConfig
from vla_ros.engine.models.groot import N15, N16, GrootConfig, GrootModel
from vla_ros.engine.models.groot_head import BASE, HeadConfig, head_table

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
    version = next(v for v in VERSIONS if v.kind == kind)
    robot = Embodiment("robot", ROWS[kind], (), (), (), 1, Framing(SIDES[kind]))
    return version.parse(Fields(said(kind)), robot)  # type: ignore[return-value]


def stored(kind: str) -> dict[str, tuple[int, ...]]:
    found = json.loads((FOLDERS[kind] / "tensors.json").read_text())
    return {name: tuple(shape) for name, shape in found.items()}


def small(kind: str, capture: Capture | None = None, dtype: torch.dtype = torch.float32) -> Small:
    eagle, head = halves(kind)
    horizon = 7 if kind == N15 else 5
    config = GrootConfig(kind, eagle, head, "robot", ROWS[kind], horizon, 6, 4, ("a", "b"), 110)
    drawn = Drawn(stored(kind))
    model = GrootModel(config, drawn, torch.empty(0, dtype=dtype), capture)
    with np.load(FOLDERS[kind] / "golden.npz") as arrays:
        golden = {n: torch.from_numpy(arrays[n]) for n in arrays.files}
    name = FOLDERS[kind].name
    noise = torch.from_numpy(draw(f"{name}/noise", 1, HEAD["action_horizon"], 11))[0]
    return Small(kind, config, model, golden, drawn.left, noise)


def check_names(kind: str) -> None:
    """CheckpointError where NVIDIA's model has other tensors than are expected here."""
    eagle, head = halves(kind)
    expected = eagle.expected()
    own = stored(kind)
    backbone = {n: s for n, s in own.items() if n.startswith("backbone.")}
    check_tensors("n", {n: Stored(Path("n"), s, "F32") for n, s in backbone.items()}, expected)
    heads = {n for n in own if n.startswith("action_head.")} - {"action_head.mask_token"}
    assert heads == set(shapes(head_table(head), BASE))
