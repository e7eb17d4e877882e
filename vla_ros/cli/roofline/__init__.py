"""`vla-ros roofline`: what a model can reach on a device, and whether a schedule can pay."""

from vla_ros.cli.roofline.verb import add_parser, run

__all__ = ["add_parser", "run"]
