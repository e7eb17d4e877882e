"""What commands use when nothing is named: the small models that come with the package and the
fastest schedule that changes nothing; and whether a model that is named can be read."""

from collections.abc import Sequence
from typing import Final

from vla_ros.engine.options import SCHEDULES as OF_THE_ENGINE
from vla_ros.errors import UserError

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


def refuse_unreadable(checkpoint: str, tokenizer: str = "") -> None:
    """Raise UserError for a checkpoint that cannot be loaded, before anything is started for it.

    Reads all of it once, in the memory of one tensor at a time, with the ``tokenizer`` that the
    policy will be given, "" for its own; the small ones of this package
    and random weights are known to be whole.
    """
    from vla_ros.engine.inspection import inspect

    if checkpoint.startswith(("random:", "shipped:")):
        return
    try:
        inspect(checkpoint, tokenizer)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error


def actions_of(name: str) -> int:
    """Actions of an answer of a token policy; 1 where it cannot be told yet."""
    from vla_ros.engine.checkpoints.openvla import read_layout, resolve
    from vla_ros.engine.checkpoints.random import PREFIX, PRESETS
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.flow.families import is_flow

    if name.startswith(PREFIX):
        preset = PRESETS.get(name.removeprefix(PREFIX))
        return preset.chunk if preset else 1
    try:
        directory = resolve(name)
        return 1 if is_flow(directory) else read_layout(directory).config.chunk
    except (CheckpointError, OSError):
        return 1  # said in one line where it is loaded
