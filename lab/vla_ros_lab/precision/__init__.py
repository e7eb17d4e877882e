"""The precision check: a policy in a lower precision against itself in float32, on the same frames.

``observed``: the nouns. ``tokens`` and ``flow``: watching one engine at work. ``tables``: which
index stands behind a row that was used. ``compare``: errors, flips, displacements. ``judge``:
thresholds and the verdict. ``run``: both engines over the frames. ``store``: verdicts kept with
the hash of a checkpoint. ``page``: a result as one HTML page.

The method is that of vla.cpp's paper (arXiv 2606.08094, appendix E): a fault of precision hides in
a discrete choice (an index, an argmax, a bin), where rounding moves a whole row and not the last
digit; so each of them is held to the reference, one by one, beside the errors of every stage.
"""
