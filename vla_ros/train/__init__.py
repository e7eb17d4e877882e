"""Demonstrations of the scripted expert, and behaviour cloning of the small policies.

`demonstrate`, `collection`, `rollout` and `check` run the simulation; everything that training
itself needs is torch and the data set (h5py, Pillow). Nothing here imports ROS.
"""


class TrainError(Exception):
    """Something the user can put right: one clear line."""
