"""Listening to a running graph from outside: nodes that only read, and what they wrote down."""
