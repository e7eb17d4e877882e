"""The ROS nodes: thin, they turn messages into nouns and back. The only room that imports rclpy."""
