"""Starting, watching and ending nodes as processes, where ros2 launch is not installed.

``graph_file``, ``shipped_graphs``: what is to run. ``process``: one node; ``graph``: all of them;
``lifecycle``: configured and activated. ``environment``, ``domain``, ``security``,
``shared_memory``: what nodes need around them. ``names``, ``typed``, ``yaml_files``: what a user
gave, refused before anything starts.
"""
