"""The check of a data set's statistics that every reader of them shares: ends that are in order.

Ends that are exchanged turn every motion round, and nothing else shows it: values stay within
their range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vla_ros.engine.errors import CheckpointError


def check_ends(low: Any, high: Any, names: Sequence[str], where: str) -> None:
    """Refuse statistics whose first end lies above the second, or a deviation below 0.

    ``low`` and ``high``: numbers [..., n]; ``names``: what the file calls them. CheckpointError:
    one line with ``where`` and the places of the values.
    """
    first, second = np.asarray(low, np.float64), np.asarray(high, np.float64)
    if names[1] == "std":
        wrong, why = second < 0, f"{names[1]} is below 0"
    else:
        wrong, why = first > second, f"{names[0]} is above {names[1]}"
    if wrong.any():
        places = sorted(set(np.argwhere(wrong)[:, -1].tolist()))
        listed = ", ".join(map(str, places))
        raise CheckpointError(
            f"{where}: {why} in value{'s' * (len(places) > 1)} {listed} (counted from 0), which"
            " would turn these round: are they exchanged?"
        )
