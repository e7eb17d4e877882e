"""Bags as LeRobotDatasets, and such data sets as rows.

LeRobot's own code writes and reads them, in LeRobot's own environment: rows go through a pipe.

``from_bags``: bags as rows. ``dataset``: rows through the pipe, whose messages are ``wire``'s;
``served`` runs at its other end. Demonstrations as rows are the lab's (`vla-ros demonstrations`).
"""
