"""`vla-ros gate`: is a policy in a lower precision still the same policy?"""

from vla_ros.cli.gate.verb import add_parser, run

__all__ = ["add_parser", "run"]
