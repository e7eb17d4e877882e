"""Default models of the verbs, which come with the package, and checks of a model that is named,
and of its device."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vla_ros.core.errors import user_errors

CHECKPOINT: Final = "shipped:tabletop"
DRAFT_CHECKPOINT: Final = "shipped:tabletop-draft"
CHUNK_CHECKPOINT: Final = "shipped:tabletop-oft"


def default_checkpoint(decodings: Sequence[str | None]) -> str:
    """The shipped policy that can be decoded by ``decodings``.

    ``parallel`` needs OpenVLA-OFT's architecture, every other one OpenVLA's.
    """
    return CHUNK_CHECKPOINT if list(decodings) == ["parallel"] else CHECKPOINT


def refuse_unreadable(checkpoint: str, tokenizer: str = "") -> None:
    """Raise UserError for a checkpoint that cannot be loaded, before anything is started for it.

    Reads all of it once, in the memory of one tensor at a time, with the ``tokenizer`` that the
    policy will be given, "" for its own; the small ones of this package
    and random weights are known to be whole.
    """
    from vla_ros.engine.load import inspect

    if checkpoint.startswith(("random:", "shipped:")):
        return
    with user_errors(OSError, ValueError):
        inspect(checkpoint, tokenizer)


_GPUS = ("/dev/nvidia0", "/dev/nvmap", "/dev/dxg", "/dev/kfd")  # NVIDIA's, Jetson's, WSL's, AMD's


def refuse_device(name: str) -> None:
    """Raise UserError for a device that torch does not know or find here. Imports torch only where
    that is likely: it takes seconds."""
    if name in ("cpu", "auto"):
        return
    if name in ("cuda", "cuda:0") and any(Path(file).exists() for file in _GPUS):
        return
    try:
        from vla_ros.engine.layers.devices import usable_device
    except ImportError:  # whoever loads the model names it
        return
    usable_device(name)


def actions_of(name: str) -> int:
    """Actions in a chunk of a token policy; 1 where the checkpoint cannot be read."""
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.families.base import LoadOptions
    from vla_ros.engine.families.registry import family_of, source_of
    from vla_ros.engine.options import TOKENS

    try:
        family = family_of(source := source_of(name))
        return family.config(source, LoadOptions()).horizon if family.group == TOKENS else 1
    except (CheckpointError, OSError):
        return 1  # reported in one line where it is loaded
