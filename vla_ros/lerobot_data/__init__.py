"""Bags and demonstrations as LeRobotDatasets, and the way back.

LeRobot's own code writes and reads them, in LeRobot's own environment: rows go through a pipe.
"""
