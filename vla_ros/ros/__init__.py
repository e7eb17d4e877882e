"""All that imports rclpy: nodes, bringup, listeners, and what ROS 2 distros differ in."""
