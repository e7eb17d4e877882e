"""What commands use when nothing is named: the small models that come with the package, and the
fastest schedule that changes nothing for a checkpoint."""

from collections.abc import Sequence
from typing import Final

from vla_ros.engine.options import SCHEDULES as OF_THE_ENGINE

SCHEDULE: Final = "auto"
SCHEDULES: Final = tuple(dict.fromkeys((SCHEDULE, *OF_THE_ENGINE)))
CHECKPOINT: Final = "shipped:tabletop"
DRAFT_CHECKPOINT: Final = "shipped:tabletop-draft"
CHUNK_CHECKPOINT: Final = "shipped:tabletop-oft"


def default_checkpoint(schedules: Sequence[str | None]) -> str:
    """The shipped policy that can be decoded by ``schedules``.

    ``parallel`` needs OpenVLA-OFT's architecture, every other one OpenVLA's.
    """
    return CHUNK_CHECKPOINT if list(schedules) == ["parallel"] else CHECKPOINT
