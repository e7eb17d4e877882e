"""A policy that another machine computes, over openpi's websocket protocol: both ends of it."""
