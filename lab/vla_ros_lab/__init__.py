"""What a robot does not need: training, benchmarks, roofline, precision studies, reports.

A distribution of its own, `vla-ros-lab`, of the same version as `vla_ros`, which never imports it:
its verbs, its reference decodings and its report come to `vla-ros` by entry points.
"""
