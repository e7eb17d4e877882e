"""Operational-space control of a simulated arm: a goal pose in, joint torques out.

Khatib, "A unified approach for motion and force control of robot manipulators" (1987), with
a posture task in the null space. The gains are those of robosuite's OSC_POSE (kp 150,
critically damped); unlike there, position and orientation are solved together, so turning
the hand does not push it aside.

As in robosuite and LIBERO, a goal counts from the pose at the time, which lags behind the
goal before it: under constant commands the hand covers about 0.3 of what they add up to.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from vla_ros.core import Floats

STIFFNESS = 150.0  # 1/s^2, position and orientation
POSTURE_STIFFNESS = 10.0  # 1/s^2, null space
_REGULARISER = 1e-6


class OperationalSpaceController:
    """Torques that bring one site of an arm to a goal pose.

    Call :meth:`set_goal` once a control step, :meth:`torques` once a physics step between
    ``mj_step1`` and ``mj_step2``.
    """

    def __init__(
        self, model: mujoco.MjModel, site: int, joints: Sequence[int], posture: Floats
    ) -> None:
        self._model = model
        self._site = site
        self._dofs = model.jnt_dofadr[list(joints)]
        self._qpos = model.jnt_qposadr[list(joints)]
        self._arm = np.ix_(self._dofs, self._dofs)
        self._posture = np.asarray(posture, np.float64)
        self._mass = np.zeros((model.nv, model.nv))
        self._jac_pos = np.zeros((3, model.nv))
        self._jac_rot = np.zeros((3, model.nv))
        self._goal_pos = np.zeros(3)
        self._goal_rot = np.eye(3)

    def set_goal(self, data: mujoco.MjData, translation: Floats, rotation: Floats) -> None:
        """Goal = the site's present pose, moved by ``translation`` [3] m and turned by
        ``rotation`` [3], an axis-angle vector in rad, both in the world frame."""
        self._goal_pos = data.site_xpos[self._site] + translation
        turn = np.zeros(9)
        quaternion = np.zeros(4)
        angle = float(np.linalg.norm(rotation))
        mujoco.mju_axisAngle2Quat(quaternion, rotation / angle if angle else rotation, angle)
        mujoco.mju_quat2Mat(turn, quaternion)
        self._goal_rot = turn.reshape(3, 3) @ data.site_xmat[self._site].reshape(3, 3)

    def torques(self, data: mujoco.MjData) -> Floats:
        """Joint torques [joints], Nm, gravity compensated."""
        mujoco.mj_jacSite(self._model, data, self._jac_pos, self._jac_rot, self._site)
        mujoco.mj_fullM(self._model, self._mass, data.qM)
        mass = self._mass[self._arm]
        velocity = data.qvel[self._dofs]
        jacobian = np.vstack((self._jac_pos, self._jac_rot))[:, self._dofs]
        rotation = data.site_xmat[self._site].reshape(3, 3)
        error = np.concatenate(
            (
                self._goal_pos - data.site_xpos[self._site],
                _rotation_error(rotation, self._goal_rot),
            )
        )
        pull = STIFFNESS * error - 2 * np.sqrt(STIFFNESS) * (jacobian @ velocity)
        posture_error = self._posture - data.qpos[self._qpos]
        relax = POSTURE_STIFFNESS * posture_error - 2 * np.sqrt(POSTURE_STIFFNESS) * velocity
        # tau = J^T Lambda (pull - J relax) + M relax: the posture task acts in the null space only
        weighted = np.linalg.solve(mass, jacobian.T)
        mobility = jacobian @ weighted + _REGULARISER * np.eye(6)
        force = np.linalg.solve(mobility, pull - jacobian @ relax)
        return jacobian.T @ force + mass @ relax + data.qfrc_bias[self._dofs]


def _rotation_error(rotation: Floats, goal: Floats) -> Floats:
    """The axis-angle vector from ``rotation`` to ``goal``, exact to second order."""
    turn = goal @ rotation.T
    skew = (turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1])
    return 0.5 * np.array(skew)
