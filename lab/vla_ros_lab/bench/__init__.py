"""Measures every decoding and reference on the same model and frames, in one run.

``options``: what is measured. ``measure``: rows, and the one runner of them. ``suite``: rows of
token policies; ``flow``: of policies with an action head, beside ``flow_rivals``; ``fast``: of
pi0-FAST; ``fleet``: several robots. ``passes``: every pass by itself. ``drafters``: oracles and
rivals. ``memory``: what a policy holds. ``apart``: a process of its own. ``report``: tables.
"""
