"""A run in other people's windows: what Rerun and Foxglove are shown of it. Free of rclpy.

``reading``: messages as ``facts``, in no viewer's words. ``rerun_log``, ``rerun_layout``,
``rerun_bag``: Rerun. ``foxglove_server``: Foxglove. ``scene``, ``frames``: what is where.
"""
