"""Language models over packed attention."""
