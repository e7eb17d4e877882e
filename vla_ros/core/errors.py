"""The error that every room may raise about what its user gave it."""


class UserError(Exception):
    """Something the user can put right. Printed as one line; the exit status is 2.

    What a room refuses by a name of its own (a checkpoint, a plan) is one of these.
    """
