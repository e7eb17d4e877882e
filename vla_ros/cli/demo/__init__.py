"""`vla-ros demo`: one simulated task through the whole graph, headless, summed up at the end."""

from vla_ros.cli.demo.verb import add_parser, run

__all__ = ["add_parser", "run"]
