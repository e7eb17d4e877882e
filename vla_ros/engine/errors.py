"""The errors an engine raises on purpose. Each message is one line that says what to do."""

from __future__ import annotations

from vla_ros.core.errors import UserError


class CheckpointError(UserError, ValueError):
    """A checkpoint cannot be used: missing, extra or wrong tensors, unknown key, wrong size.

    The message names the file, the fault and what to do. A verb that does not catch it ends with
    that line and status 2.
    """


class InvalidOption(UserError, ValueError):
    """An option of the engine has a value that cannot be, or that does not go with the others."""


class InvalidAction(RuntimeError):
    """The model's output is no action: a non-action token, a non-finite logit, too few tokens."""
