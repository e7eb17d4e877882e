"""A run in other people's windows: what Rerun and Foxglove are shown of it. Free of rclpy."""
