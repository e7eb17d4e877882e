"""The discrete choices of GR00T N1.5 and N1.6, as integers, and what they are for the published.

The rows of the table of positions that a patch reads and their weights in steps of 2 ** -15, and
the integer times of the solver's steps. They are compared when a checkpoint is loaded (see
:mod:`vla_ros.engine.flow.gate`): with those of its ``discrete.json``, and at N1.6's published size
with those that torch's ``interpolate`` gives.
"""

from __future__ import annotations

from vla_ros.engine.flow.gate import same_integers
from vla_ros.engine.flow.groot.eagle import EagleConfig
from vla_ros.engine.flow.groot.interpolation import Taps, taps
from vla_ros.engine.flow.groot.shapes import HeadConfig

#: N1.6's pictures of 252 pixels: 18 patches a side of a table of 16; the other half mirrors this.
_HALF = ((32768,), (5461, 27307), (9102, 23666), (12743, 20025), (16384, 16384), (20025, 12743),
         (23666, 9102), (27307, 5461), (30948, 1820))  # fmt: skip
N16_TAPS = Taps(
    (0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (*_HALF, *(row[::-1] for row in reversed(_HALF))),
)


def eagle_integers(eagle: EagleConfig, head: HeadConfig) -> dict[str, list[int]]:
    """What ``discrete.json`` holds. CheckpointError where the published table is not its own."""
    patches = eagle.vision.image_size // eagle.vision.patch
    found = _flat(taps(eagle.table, patches))
    if (eagle.table, patches) == (16, 18):
        for name, values in _flat(N16_TAPS).items():
            same_integers("GR00T N1.6", name.replace("_", " "), values, found[name])
    return {"times": list(head.times), **found}


def _flat(known: Taps) -> dict[str, list[int]]:
    return {
        "position_rows": list(known.first),
        "position_weights": [weight for row in known.weights for weight in row],
    }
