"""Write what :mod:`vla_ros.engine.flow.groot.embodiment` reads, for one robot, or make one up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from vla_ros.engine.flow.groot.config import GrootConfig
from vla_ros.engine.flow.groot.embodiment import PROCESSOR, ROWS, STATISTICS, Embodiment
from vla_ros.engine.flow.groot.pictures import Framing
from vla_ros.engine.flow.groot.shapes import HeadConfig
from vla_ros.engine.flow.groot.units import Group


def write_embodiment(directory: Path, robot: Embodiment, head: HeadConfig) -> None:
    """The three files for one robot, that :func:`read_embodiment` reads back.

    Its groups are scaled by a range, and its actions are relative to nothing.
    """
    framing = robot.framing
    modality = {
        "video": {"delta_indices": [0], "modality_keys": list(robot.cameras)},
        "state": {"delta_indices": [0], "modality_keys": [g.name for g in robot.state]},
        "action": {
            "delta_indices": list(range(robot.horizon)),
            "modality_keys": [g.name for g in robot.actions],
        },
        "language": {"delta_indices": [0], "modality_keys": ["task"]},
    }
    settings = {
        "modality_configs": {robot.tag: modality},
        "image_target_size": [framing.side] * 2,
        "image_crop_size": [int(framing.side * framing.share)] * 2,
        "shortest_image_edge": framing.side,
        "crop_fraction": framing.share,
        "use_albumentations": True,
        "formalize_language": robot.formal,
        "clip_outliers": robot.clip,
        "max_state_dim": head.state_width,
        "max_action_dim": head.action_width,
        "max_action_horizon": head.horizon,
        "use_percentiles": False,
        "use_relative_action": False,
        "apply_sincos_state_encoding": False,
    }
    statistics = {"state": _said(robot.state), "action": _said(robot.actions)}
    files = {
        PROCESSOR: {"processor_class": "Gr00tProcessor", "processor_kwargs": settings},
        STATISTICS: {robot.tag: statistics},
        ROWS: {robot.tag: robot.row},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def random_robot(config: GrootConfig) -> Embodiment:
    """A robot of the preset's sizes: joints of some radians, actions of a tenth of LIBERO's units,
    the last one a gripper about 0.5."""
    wide = 3.0 * np.ones(config.state_dim)
    spread = np.full(config.action_dim - 1, 0.1)
    return Embodiment(
        tag=config.embodiment,
        row=config.row,
        cameras=config.cameras,
        state=(Group("joints", -wide, wide),),
        actions=(
            Group("motion", -spread, spread),
            Group("gripper", np.array([0.25]), np.array([0.75])),
        ),
        horizon=config.horizon,
        framing=Framing(config.image_size, 230 / 256),
    )


def _said(groups: tuple[Group, ...]) -> dict[str, dict[str, list[float]]]:
    out = {}
    for group in groups:
        middle, quarter = (group.low + group.high) / 2, (group.high - group.low) / 4
        values = {"min": group.low, "max": group.high, "mean": middle, "std": quarter}
        out[group.name] = {name: v.tolist() for name, v in values.items()}
    return out
