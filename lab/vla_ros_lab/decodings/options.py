"""Options of the lab's decodings, beside the engine's own: entry points `vla_ros.options`.

Torch is not imported here, as the policy node reads these.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vla_ros.engine.options import TOKENS


@dataclass(frozen=True, slots=True)
class HeteroSpecOptions:
    """Options of decoding heterospec."""

    calibration: str = field(
        default="",
        metadata={
            "text": "decoding heterospec: file of `vla-ros calibrate`; empty: heterospec.json"
            " beside the checkpoint, of drafter head beside the head",
            "of": TOKENS,
        },
    )
