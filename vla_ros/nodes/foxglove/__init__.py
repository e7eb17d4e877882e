"""The foxglove node: a graph's topics for the Foxglove app, a spectator of the graph."""
