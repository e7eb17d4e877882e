"""Run, take over, train, judge: what came of a robot's generations of checkpoints.

``chain`` reads the records that `vla-ros record`, `train` and `eval` leave and joins them by the
SHA-256 of the checkpoint; ``page`` shows them.
"""
