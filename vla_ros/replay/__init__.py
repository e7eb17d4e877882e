"""Recorded runs: reading bags, replaying them against a policy, comparing what it said.

Nothing here imports ROS: bags are read with `rosbags`. The part that talks to a policy node
is :mod:`vla_ros.nodes.replay.driver`, the command is `vla-ros replay`.
"""
