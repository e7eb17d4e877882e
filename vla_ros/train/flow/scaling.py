"""Units <-> model space of a flow policy in training: mean and deviation of its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vla_ros.control.proprio import LIBERO_STATE, libero_oft
from vla_ros.core import ACTION_DIM, GRIPPER, Pose
from vla_ros.engine.flow.processors import Processors, Scaler
from vla_ros.train.data.frames import Frames
from vla_ros.train.data.shards import BODIES

#: least deviation: what hardly ever changes would otherwise fill the model space with its noise
_LEAST_STATE = (0.02,) * 3 + (0.1,) * 3 + (0.005,) * 2  # m, rad, m
_LEAST_ACTION = 0.25  # of the controller's range
_HAND = BODIES.index("gripper")


@dataclass(frozen=True, slots=True)
class Scaling:
    """Of the state [8], LIBERO's pose and fingers, and of an action [7] in m, rad and 0 to 1."""

    state: Scaler
    action: Scaler

    def of_values(self, values: torch.Tensor, scale: Sequence[float]) -> torch.Tensor:
        """Values (see units) [..., 7] -> model space."""
        physical = values * torch.tensor([*scale, 0.5])
        physical[..., GRIPPER] += 0.5
        return self.action.normalise(physical)

    @property
    def processors(self) -> Processors:
        """What a checkpoint says about it."""
        return Processors(self.state, self.action, "")

    def tensor(self) -> torch.Tensor:
        """All of it as float32 [2, 15], for a run's state."""
        parts = (self.state, self.action)
        return torch.stack([torch.cat([getattr(p, n) for p in parts]) for n in ("low", "high")])


def scaling_from(tensor: torch.Tensor) -> Scaling:
    """What :meth:`Scaling.tensor` gave."""
    means, deviations = tensor.cpu().float()
    cut = LIBERO_STATE
    return Scaling(
        Scaler("MEAN_STD", means[:cut], deviations[:cut]),
        Scaler("MEAN_STD", means[cut:], deviations[cut:]),
    )


def scaling_of(frames: Frames) -> Scaling:
    """Of a data set. The mean of a motion is taken as none: standing still is the middle."""
    states, scale = states_of(frames), torch.tensor([*frames.info.scale, 0.5])
    spread = states.std(0).maximum(torch.tensor(_LEAST_STATE))
    moved = frames.chunks[:, 0].float().std(0).clamp(min=_LEAST_ACTION) * scale
    mean = torch.zeros(ACTION_DIM)
    mean[GRIPPER], moved[GRIPPER] = 0.5, 0.5
    return Scaling(Scaler("MEAN_STD", states.mean(0), spread), Scaler("MEAN_STD", mean, moved))


def states_of(frames: Frames) -> torch.Tensor:
    """The robot's own state at every frame, float32 [N, 8], as the policy node makes it."""
    rows = []
    for hand, fingers in zip(frames.poses[:, _HAND].tolist(), frames.fingers.numpy(), strict=True):
        pose = Pose(tuple(hand[:3]), tuple(hand[3:]))
        rows.append(libero_oft({"end_effector_pose": pose, "joint_states": fingers}))
    return torch.from_numpy(np.array(rows, np.float32).reshape(-1, LIBERO_STATE))
