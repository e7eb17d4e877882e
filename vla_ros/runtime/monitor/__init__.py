"""Monitor of a policy from outside, by its topics: free of ROS, with an injected clock."""
