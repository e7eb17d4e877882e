"""Measures every decoding and reference on the same model and frames, in one run.

``suite``: from options to a result. ``rows``: what is measured; ``measure``: how, frame by frame
in turn; ``report``: how it is shown. ``passes``: every pass by itself. ``split``, ``margins``:
where the time goes, and how close a differing choice was. ``oracle``, ``rivals``: drafters to
compare with. ``apart``: in a process of its own. ``flow``: the same of what has an action head.
"""
