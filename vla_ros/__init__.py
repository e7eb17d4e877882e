"""The ROS 2 runtime for vision-language-action policies."""

__version__ = "0.1.0"
