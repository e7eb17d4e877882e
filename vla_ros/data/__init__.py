"""Bags, replay, LeRobot data sets, episodes and demonstrations."""
