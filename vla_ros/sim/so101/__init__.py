"""SO-101, the arm that most people own: LeRobot's, with six servos and two cameras.

``world``: the tasks, where things lie, the scene. ``environment``: it as an ``Environment``.
``expert``: a scripted teacher of both tasks.
"""
