"""One file an architecture, named as its authors name things, and the towers they share."""
