"""Demonstrations and batches: what a training step sees."""
