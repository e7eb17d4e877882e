"""What a model can reach on a device: roofline, speculation, decodings. numpy only; no ROS.

``shapes``: all that decides a model's arithmetic and traffic; ``models``, ``model_files``: shapes
by name and of a checkpoint. ``work``, ``stages``: operators, counted. ``devices``, ``machine``:
how fast they run. ``roofline``: their time. ``decodings``: how often an action comes and how old
its observation is; ``speculation``: whether guessing pays; ``advice``: which decoding to take.
``memory``: what fits. ``coverage``, ``calibration``: what drafts a policy's recorded tokens allow.
"""
