"""Judging a policy from outside: what its topics say, free of ROS, with an injected clock."""
