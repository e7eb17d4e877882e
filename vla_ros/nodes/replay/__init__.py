"""The ROS side of a replay: a bag's frames into a policy node."""
