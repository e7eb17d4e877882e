"""LeRobot's own policies behind the project's protocol; run in LeRobot's own interpreter."""
