"""Bags and demonstrations as LeRobotDatasets, and the way back.

LeRobot's own code writes and reads them, in LeRobot's own environment: rows go through a pipe.

``from_bags``: bags as rows. ``shards``: demonstrations as rows, and data sets as shards.
``dataset``: rows through the pipe, whose messages are ``wire``'s; ``served`` runs at its other end.
"""
