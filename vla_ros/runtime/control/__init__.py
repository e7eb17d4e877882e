"""The control loop: from observations and inferences to gated commands. ROS-free.

``observation`` joins messages to observations and refuses what cannot be used, ``queue`` holds
what is to be executed, ``gate`` is the one way out. ``control`` ties them together; ``drivers`` are
its two ways to run.
"""
