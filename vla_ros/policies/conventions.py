"""What the people who trained a checkpoint took for granted, told by its action statistics.

The published LIBERO protocol (openvla ``experiments/robot/libero/run_libero_eval.py``, the same
in openvla-oft): statistics under the suite's name, else ``<suite>_no_noops``; actions in the
controller's units; images mirrored, through JPEG, Lanczos-3 and the centre crop; the gripper's
side decides, wherever in 0..1 it is. How far 0..1 is from its middle does not matter to
LIBERO's gripper, which moves at one speed by the sign of 1 - 2 g; so commands carry g as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vla_ros.policies.base import PolicyRefused

POSITION_SCALE, ROTATION_SCALE = 0.05, 0.5  # m and rad of one unit of LIBERO's controller
LIBERO_SUITE = "libero_"  # what the names of LIBERO's data sets begin with
CONTROLLER_UNITS = (POSITION_SCALE,) * 3 + (ROTATION_SCALE,) * 3
PHYSICAL_UNITS = (1.0,) * 6

#: Parameters of the policy node that take its gate out of an evaluation by the published
#: protocol, which has none: the gripper follows every change of side at once, and actions
#: beyond the controller's range are cut to it however many they are.
UNGATED: Final[Mapping[str, float | int]] = {
    "gripper_hysteresis": 0.0,
    "gripper_dwell_s": 0.0,
    "clamp_limit": 1000,
}


@dataclass(frozen=True, slots=True)
class Conventions:
    """Settings of ``PolicySpec`` and of the policy node that follow from a checkpoint.

    ``unnorm_key``: the statistics to use. ``action_scale`` [6]: m and rad of one unit.
    ``cameras``: 2 where the model looks through the wrist camera too.
    """

    unnorm_key: str
    action_scale: tuple[float, float, float, float, float, float]
    preprocessing: str
    center_crop: bool
    cameras: int = 1


def conventions_of(checkpoint: str, suite: str = "", unnorm_key: str = "") -> Conventions:
    """The conventions of a directory, hub id or ``random:<preset>``; looks at all of it.

    ``suite``: the LIBERO suite to be evaluated, or "". ``unnorm_key``: somebody's own choice.
    PolicyRefused: there is no such checkpoint, it could not be loaded, or its statistics fit
    neither.
    """
    if checkpoint.startswith("random:"):
        return Conventions("", CONTROLLER_UNITS, "default", False)
    from vla_ros.engine.checkpoints.openvla import inspect_checkpoint

    try:
        layout = inspect_checkpoint(checkpoint)
    except (ValueError, OSError) as error:
        raise PolicyRefused(str(error)) from error
    return conventions_from(layout.norm_stats, suite, unnorm_key, layout.config.images)


def conventions_from(
    stats: Mapping[str, Any], suite: str = "", unnorm_key: str = "", cameras: int = 1
) -> Conventions:
    """The conventions that go with ``norm_stats``; see :func:`conventions_of`."""
    key = _choose(stats, suite, unnorm_key)
    if key.startswith(LIBERO_SUITE):
        return Conventions(key, CONTROLLER_UNITS, "libero", True, cameras)
    return Conventions(key, PHYSICAL_UNITS, "default", False, cameras)


def _choose(stats: Mapping[str, Any], suite: str, unnorm_key: str) -> str:
    known = ", ".join(sorted(stats)) or "none"
    if unnorm_key:
        if unnorm_key not in stats:
            raise PolicyRefused(f"unnorm_key {unnorm_key!r} is unknown; the checkpoint has {known}")
        return unnorm_key
    for key in (suite, f"{suite}_no_noops") if suite else ():
        if key in stats:
            return key
    others = [key for key in stats if suite and key.startswith(LIBERO_SUITE)]
    if others:
        raise PolicyRefused(
            f"the checkpoint has action statistics of {known} and none of {suite}:"
            " it was trained for another suite; give unnorm_key to use it all the same"
        )
    if len(stats) != 1:
        raise PolicyRefused(f"the checkpoint has action statistics of {known}: give unnorm_key")
    return next(iter(stats))
