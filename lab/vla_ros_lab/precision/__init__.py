"""The precision check: a policy in a lower precision against itself in float32, on the same frames.

``frames``: where they come from. ``watch``: traces of one engine at work. ``compare``: errors,
flips, displacements. ``judge``: thresholds and the verdict. ``run``: both engines over the frames.
``report``: a result on the console and as one HTML page.

The method is that of vla.cpp's paper (arXiv 2606.08094, appendix E): a fault of precision hides in
a discrete choice (an index, an argmax, a bin), where rounding moves a whole row and not the last
digit; so each of them is held to the reference, one by one, beside the errors of every stage.
"""
