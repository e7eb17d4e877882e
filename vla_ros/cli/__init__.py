"""The command line: one verb a file or a folder, each with `add_parser(subparsers)` and
`run(args) -> int`.

Importing a verb must be cheap and must not need ROS, torch or mujoco: import those inside
`run`. A problem the user can fix is raised as :class:`~vla_ros.core.types.errors.UserError`.
"""
