"""Demonstrations and batches: what a training step sees.

``collection``, ``rollout``, ``noise``: who acts, and what of it is kept; ``shards``: where.
``relabel``, ``ahead``: what the expert would have done. ``sentences``, ``wordings``: what it was
told. ``frames``: a set in memory; ``batches``, ``chunk_batches``: what a step sees of it, with
``pictures`` and ``places``. ``seeds``: which states belong to whom.
"""
