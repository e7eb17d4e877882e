"""Demonstrations of scripted experts, and training of policies, draft heads and correctors.

`collect`, `run` and the rollouts of heads and correctors run the simulation; what training itself
needs is torch and the data set (h5py, Pillow). Nothing here imports ROS.
"""
