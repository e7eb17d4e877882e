"""The simulation bridge: a simulated robot's topics."""
