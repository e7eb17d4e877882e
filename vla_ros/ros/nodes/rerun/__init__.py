"""The rerun node: a running graph in the Rerun viewer, a spectator of the graph."""
