"""Units of actions in training, three of them, as pure functions over arrays [..., 7].

* physical: m, rad, gripper 0 closed to 1 open; of policies and of the expert;
* environment: [-1, 1] of the controller's scale, gripper -1 open to +1 closed; what a data set
  stores, as LIBERO's do;
* value: [-1, 1], gripper -1 closed to +1 open; what the action tokens encode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_ros.core.types import ACTION_DIM, GRIPPER, Floats
from vla_ros.sim.env import EnvSpec


def scales(spec: EnvSpec) -> Floats:
    """Physical size [6] of an environment action of 1: m, m, m, rad, rad, rad."""
    return np.array([spec.position_scale] * 3 + [spec.rotation_scale] * 3)


def to_environment(physical: Floats, scale: Floats) -> Floats:
    """Physical -> environment, clipped to [-1, 1]."""
    action = np.array(physical, dtype=np.float64)
    action[..., :GRIPPER] /= scale
    action[..., GRIPPER] = 1.0 - 2.0 * action[..., GRIPPER]
    return np.clip(action, -1.0, 1.0)


def to_physical(environment: Floats, scale: Floats) -> Floats:
    """Environment -> physical, the way back of :func:`to_environment`."""
    action = np.array(environment, dtype=np.float64)
    action[..., :GRIPPER] *= scale
    action[..., GRIPPER] = 0.5 * (1.0 - action[..., GRIPPER])
    return action


def to_values(environment: Floats) -> Floats:
    """Environment -> value: only the gripper changes its sign."""
    values = np.array(environment, dtype=np.float64)
    values[..., GRIPPER] *= -1.0
    return values


def norm_stats(name: str, scale: Floats, frames: int, demonstrations: int) -> dict[str, Any]:
    """``norm_stats`` of a checkpoint whose values de-normalize to physical actions.

    The bounds are the controller's, not the data's quantiles: rotations about x and y hardly
    occur, and quantiles would blow their noise up to the full range.
    """
    action = {
        "q01": [-float(s) for s in scale] + [0.0],
        "q99": [float(s) for s in scale] + [1.0],
        "mask": [True] * ACTION_DIM,
    }
    return {
        name: {
            "action": action,
            "num_transitions": frames,
            "num_trajectories": demonstrations,
        }
    }
