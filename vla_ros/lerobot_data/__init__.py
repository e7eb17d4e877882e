"""Bags and demonstrations as LeRobotDatasets, and the way back.

LeRobot's own code writes and reads them, in LeRobot's own environment: rows go through a pipe.

A bag as rows: ``streams``, ``pairing``, ``bag``, ``bags``. Demonstrations as rows and back:
``shards_out``, ``shards_in`` with ``features``. ``write``, ``read``: rows through the pipe, which
is ``process`` and ``wire``; ``served`` runs at its other end. ``training``: data sets for a run.
"""
