"""From a camera image to patch features."""
