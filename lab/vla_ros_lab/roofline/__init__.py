"""What a model can reach on a device: roofline, speculation, decodings.

``shapes``: all that decides a model's arithmetic and traffic, from the engine's families. ``work``:
operators, counted. ``devices``: how fast they run. ``roofline``: stages and memory. ``decodings``:
how often an action comes and how old its observation is; ``speculation``: whether guessing pays;
``advice``: which decoding to take; ``fleet``: how many robots. ``coverage``, ``calibration``: what
drafts a policy's recorded tokens allow.
"""
