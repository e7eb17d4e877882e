"""The command line: one verb a file, each with `add_parser(subparsers)` and `run(args) -> int`.

Importing a verb's file must be cheap and must not need ROS, torch or mujoco: import those
inside `run`. A problem the user can fix is raised as :class:`UserError`.
"""


class UserError(Exception):
    """Something the user can put right. Printed as one line; the exit status is 2."""
