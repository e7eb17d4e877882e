"""Write what :mod:`vla_ros.engine.flow.groot.embodiment` reads, for one robot."""

from __future__ import annotations

import json
from pathlib import Path

from vla_ros.engine.flow.groot.embodiment import PROCESSOR, ROWS, STATISTICS, Embodiment
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


def _said(groups: tuple[Group, ...]) -> dict[str, dict[str, list[float]]]:
    out = {}
    for group in groups:
        middle, quarter = (group.low + group.high) / 2, (group.high - group.low) / 4
        values = {"min": group.low, "max": group.high, "mean": middle, "std": quarter}
        out[group.name] = {name: v.tolist() for name, v in values.items()}
    return out
