"""Starting, watching and ending nodes as processes, where ros2 launch is not installed."""
