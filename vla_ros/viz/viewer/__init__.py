"""A page in the browser that shows a running policy and speaks to it: what it says, and viser.

``window``: viser's widgets. ``page``, ``strips``, ``pictures``: what is said, drawn and shown in
them. ``stage``: the scene of ``space`` and ``robot``. ``server``, ``guard``: who may see it.
"""
