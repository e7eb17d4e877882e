"""The models that commands use when none is named: the small ones that come with the package."""

from collections.abc import Sequence
from typing import Final

CHECKPOINT: Final = "shipped:tabletop"
DRAFT_CHECKPOINT: Final = "shipped:tabletop-draft"
CHUNK_CHECKPOINT: Final = "shipped:tabletop-oft"


def default_checkpoint(schedules: Sequence[str | None]) -> str:
    """The shipped policy that can be decoded by ``schedules``.

    ``parallel`` needs OpenVLA-OFT's architecture, every other one OpenVLA's.
    """
    return CHUNK_CHECKPOINT if list(schedules) == ["parallel"] else CHECKPOINT
