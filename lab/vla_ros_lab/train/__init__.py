"""Demonstrations of the scripted expert, and behavior cloning of the small policies.

``data``, below everything else here, makes and reads demonstrations; of it `collection` and
`rollout`, and `check` here, run the simulation. What training itself needs is torch and the data
set (h5py, Pillow). Nothing here imports ROS.
"""
