"""Drafters: where draft tokens come from.

``base``: what a drafter is. ``temporal``, ``temporal_tree``: from the action before; ``model``: a
small VLA; ``head``, ``recursive``: heads beside the target, whose trees grow in ``growth`` or,
captured, in ``captured_growth``; ``uncertain``, ``uncertain_head``: HeteroSpec's. ``acceptance``,
``verdict``: which tokens stand. ``statistics``: how long a draft pays.
"""
