"""A robot of another make: its nodes know the public topics and nothing of vla_ros."""
