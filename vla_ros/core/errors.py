"""The error that every room may raise about what its user gave it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class UserError(Exception):
    """Something the user can put right. Printed as one line; the exit status is 2.

    What a room refuses by a name of its own (a checkpoint, a plan) is one of these.
    """


@contextlib.contextmanager
def user_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these ``kinds`` in the block become a UserError with the same text."""
    try:
        yield
    except kinds as error:
        raise UserError(str(error)) from error
