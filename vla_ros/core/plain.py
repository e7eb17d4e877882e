"""The types that pass between processes and machines, from the plain values that they travel as.

The way there is ``dataclasses.asdict``. Of a stranger's values expect KeyError, TypeError,
AttributeError, OverflowError and ValueError, and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.assumption import Assumption
from vla_ros.core.types import Executing, Inference, PolicyInfo, Timeline, Uncorrected


def executing_of(values: dict[str, Any] | None) -> Executing | None:
    """The chunk under way, of its plain values; None stays None."""
    return None if values is None else Executing(**{n: int(v) for n, v in values.items()})


def uncorrected_of(values: dict[str, Any] | None) -> Uncorrected | None:
    """Actions to correct, of their plain values; None stays None."""
    if values is None:
        return None
    actions = np.array(values["actions"], np.float64)
    return Uncorrected(int(values["stamp_ns"]), int(values["index"]), actions)


def inference_of(body: dict[str, Any] | None) -> Inference | None:
    """An inference, of its plain values; None stays None. ``body`` is changed."""
    if body is None:
        return None
    timeline = body["timeline"]
    marks = tuple((str(stage), int(end)) for stage, end in timeline["marks"])
    for name in ("stamp_ns", "target_passes", "draft_passes", "conditioning_delay", "captures"):
        body[name] = int(body[name])
    for name in ("tokens", "drafted", "accepted"):
        body[name] = tuple(map(int, body[name]))
    return Inference(
        **body
        | {
            "actions": np.array(body["actions"], np.float64),
            "timeline": Timeline(int(timeline["start_ns"]), marks),
            "continues": executing_of(body["continues"]),
        }
    )


def info_of(body: dict[str, Any]) -> PolicyInfo:
    """A policy's description, of its plain values. ``body`` is changed."""
    space = body["action_space"]
    for name in ("camera_roles", "continues"):
        body[name] = tuple(map(str, body[name]))
    body["state_middle"] = tuple(map(float, body["state_middle"]))
    body["image_sizes"] = tuple(map(int, body.get("image_sizes", ())))
    body["assumptions"] = tuple(Assumption(**one) for one in body.get("assumptions", ()))
    body["action_rate_hz"] = float(body.get("action_rate_hz", 0.0))
    names, units = (tuple(map(str, space[name])) for name in ("names", "units"))
    grippers = tuple(map(int, space["grippers"]))
    body["action_space"] = ActionSpace(ActionKind(space["kind"]), names, units, grippers)
    return PolicyInfo(**body)
