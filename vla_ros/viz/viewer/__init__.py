"""A page in the browser that shows a running policy and commands it.

``window``: viser's widgets behind a guard. ``model``: text, charts and images in them. ``stage``:
the scene. ``guard``: who may see it.
"""
