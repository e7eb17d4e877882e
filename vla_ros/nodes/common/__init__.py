"""What every node of this package is made of."""
