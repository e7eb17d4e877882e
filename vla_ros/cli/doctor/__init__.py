"""`vla-ros doctor`: what this machine has, what it lacks, and what to do about it."""

from vla_ros.cli.doctor.verb import add_parser, run

__all__ = ["add_parser", "run"]
