"""Where things appear in an image: poses in the world -> pixels of a camera of the tabletop.

Needs mujoco, for the cameras' places in the scene. The wrist camera moves with the gripper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vla_ros.core import Floats, Pose
from vla_ros.sim.env import AGENTVIEW, WRIST
from vla_ros.sim.gl import choose_renderer
from vla_ros.sim.rotation import matrix
from vla_ros.train.data.shards import Float32

GRIPPER_POSE = "gripper"


class Projection:
    """Pixels of a square image of ``size``; x to the right, y down, the corner at 0, 0."""

    def __init__(self, size: int) -> None:
        choose_renderer()  # mujoco looks at MUJOCO_GL when it is imported
        from vla_ros.sim import scene

        self._size = size
        model = scene.build_model()
        self._fovy = {name: float(model.camera(name).fovy[0]) for name in (AGENTVIEW, WRIST)}
        fixed = model.camera(AGENTVIEW)
        self._fixed = (fixed.pos.copy(), matrix(_xyzw(fixed.quat)))
        hand = model.camera(WRIST)
        self._in_hand = (hand.pos.copy(), matrix(_xyzw(hand.quat)))
        self._grip = model.site(scene.GRIP_SITE).pos.copy()  # in the hand's frame, not turned

    def __call__(self, camera: str, poses: Mapping[str, Pose], names: Sequence[str]) -> Float32:
        """float32 [K, 2], one row a name; NaN for what is behind the camera."""
        place, turn = self._camera(camera, poses)
        points = np.array([poses[name].position for name in names])
        local = (points - place) @ turn  # the camera looks along its -z, y up
        depth = -local[:, 2]
        depth[depth < 1e-3] = np.nan
        focal = self._size / 2 / np.tan(np.radians(self._fovy[camera]) / 2)
        half = self._size / 2
        x, y = half + focal * local[:, 0] / depth, half - focal * local[:, 1] / depth
        return np.stack((x, y), axis=1).astype(np.float32)

    def _camera(self, camera: str, poses: Mapping[str, Pose]) -> tuple[Floats, Floats]:
        if camera == AGENTVIEW:
            return self._fixed
        gripper = poses[GRIPPER_POSE]
        hand = matrix(gripper.quaternion)
        offset, turn = self._in_hand
        return np.array(gripper.position) + hand @ (offset - self._grip), hand @ turn


def _xyzw(wxyz: Floats) -> tuple[float, float, float, float]:
    w, x, y, z = (float(value) for value in wxyz)
    return x, y, z, w
