"""SO-101, the arm that most people own: LeRobot's, with six servos and two cameras.

``world``: the tasks, the objects' poses, the scene. ``environment``: it as an ``Environment``.
``expert``: the scripted expert of both tasks.
"""
