"""Start, supervision and end of nodes as processes, where ros2 launch is not installed.

``graph_file``: the nodes of a graph; wrong options are refused before anything starts. ``graph``:
nodes as processes; ``lifecycle``: configured and activated. ``environment``: variables, a ROS
domain, security, shared memory. ``view``: the page in the browser beside a graph.
"""
