"""`vla-ros calibrate`: the bins of uncertainty that schedule heterospec goes by."""

from vla_ros.cli.calibrate.verb import add_parser, run

__all__ = ["add_parser", "run"]
