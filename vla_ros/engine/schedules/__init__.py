"""Decoding schedules: each file is one way of filling packed passes."""
