"""Checkpoints: reading, checking, converting and making them."""
