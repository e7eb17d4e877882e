"""The one discrete choice of an action: which side of its middle a gripper is on."""

from __future__ import annotations

import torch

from vla_ros.action_space import ActionSpace
from vla_ros.core import Floats
from vla_ros.precision.observed import Choices

SIDE = "side of the gripper"


def gripper_choices(actions: Floats, space: ActionSpace) -> list[Choices]:
    """Open or closed, of every action of a chunk [C, D]; none where nothing is a gripper."""
    if not space.grippers:
        return []
    values = torch.from_numpy(actions[:, list(space.grippers)].copy()).flatten()
    return [Choices(SIDE, (values >= 0.5).long(), values=values)]
