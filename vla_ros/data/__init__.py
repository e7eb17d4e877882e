"""Bags, replay, LeRobot data sets and episodes."""
