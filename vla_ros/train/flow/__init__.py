"""Training of small flow policies."""
