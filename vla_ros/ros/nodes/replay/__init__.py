"""The replay of a bag into a policy node: its modes, and which frames."""

from __future__ import annotations

from vla_ros.core.errors import UserError

CHUNKS = "chunks"
MODES = ("lockstep", "recorded", "fast", CHUNKS)
AS_IT_IS_ASKED = ("lockstep", CHUNKS)  # the world waits for every answer


def frame_range(text: str | None) -> tuple[int, int | None]:
    """(first, last) of "A:B"; either may be left out. Raises UserError."""
    if text is None:
        return 0, None
    first, colon, last = text.partition(":")
    try:
        if not colon:
            raise ValueError
        found = int(first or 0), int(last) if last else None
    except ValueError:
        raise UserError(f"--frames {text}: write A:B, such as 0:199") from None
    if found[0] < 0 or (found[1] is not None and found[1] < found[0]):
        raise UserError(f"--frames {text}: B must not be before A, and A not below 0")
    return found
