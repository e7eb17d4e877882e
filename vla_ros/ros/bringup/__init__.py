"""Starting, watching and ending nodes as processes, where ros2 launch is not installed.

``graph_file``: what is to run, and what a user gave refused before anything starts. ``graph``:
nodes as processes; ``lifecycle``: configured and activated. ``environment``: what nodes need around
them: variables, a ROS domain, security, shared memory.
"""
