"""Many episodes as `vla-ros eval` follows them through the ROS graph."""
