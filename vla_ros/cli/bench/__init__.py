"""`vla-ros bench`: the inference engine measured against its references. Needs no ROS."""

from vla_ros.cli.bench.verb import add_parser, run

__all__ = ["add_parser", "run"]
