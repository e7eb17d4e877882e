"""A robot's generations of checkpoints: run, take over, train, judge.

``chain`` reads the records that `vla-ros record`, `train` and `eval` leave and joins them by the
SHA-256 of the checkpoint; ``page`` shows them.
"""
