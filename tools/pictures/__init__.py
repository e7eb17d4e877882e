"""Programs that draw the documentation's pictures."""
