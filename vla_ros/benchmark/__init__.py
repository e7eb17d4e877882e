"""Measures every schedule and reference on the same model and frames, in one run."""
