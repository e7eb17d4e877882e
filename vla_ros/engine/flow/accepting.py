"""Whether the weights of a flow policy can be in some formats, asked before any is read."""

from __future__ import annotations

from pathlib import Path

import torch

from vla_ros.engine.checkpoints.openvla import already, refuse_unless_fast
from vla_ros.engine.checkpoints.quantised import read_origin
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.primitive import Continuing
from vla_ros.engine.quantised.formats import STORED, Formats


def refuse_formats(
    source: Path | str, formats: Formats, device: torch.device, dtype: torch.dtype, rtc: str = ""
) -> None:
    """CheckpointError in one line where weights cannot be in these formats, or those of a folder
    that was quantised ahead of time cannot be here."""
    origin = read_origin(source) if isinstance(source, Path) else None
    what = f"weights {formats}"
    if origin is not None:
        if formats:
            raise CheckpointError(already(Path(source)))
        formats, what = origin.formats, f"{source} has {origin.formats}"
    if not formats:
        return
    refuse_unless_fast(device, dtype, what)
    if rtc == Continuing.TRUE and formats.head != STORED:
        raise CheckpointError(
            "rtc 'true' follows gradients through the action expert, and products in"
            f" {formats.head} have none: give rtc 'identity', or head=bf16"
        )
