"""The view node: a page in the browser, a spectator of the graph."""
