"""Demonstrations of the scripted expert, and behaviour cloning of the small policies.

`demonstrate`, `collection`, `rollout` and `check` run the simulation; everything that training
itself needs is torch and the data set (h5py, Pillow). Nothing here imports ROS.
"""

from vla_ros.errors import UserError


class TrainError(UserError):
    """Something the user can put right: one clear line."""
