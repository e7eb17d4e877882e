"""Simulated robots: the environment protocol, the built-in tabletop and its scripted expert.

Nothing here imports ROS or torch. Environments are used from one thread of one process;
:mod:`vla_ros.sim.process` gives them a process of their own.
"""
