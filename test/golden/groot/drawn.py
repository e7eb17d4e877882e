"""Weights that two programs draw alike by their names; see golden/flow/seeded.py."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from golden.flow.seeded import draw
except ImportError:  # make.py runs by itself
    from seeded import draw


def weight(name: str, shape: tuple[int, ...]) -> Any:
    """A tensor of GR00T, float32: every part of it must move what the model says.

    ``name`` is that of the checkpoint.
    """
    plain = draw(name, *shape)
    if name.endswith((".b", "bias")):
        return 0.1 * plain
    if len(shape) == 1:
        return 0.2 * plain + 1.0
    if name.endswith(".W"):  # a row for each embodiment, [in, out]
        return (plain * shape[1] ** -0.5).astype(np.float32)
    if "embed" in name.rsplit(".", 2)[-2] or "future_tokens" in name:
        return plain * 0.5
    fan_in = int(np.prod(shape[1:]))
    gain = (
        2.0
        if name.endswith(("to_q.weight", "to_k.weight", "q_proj.weight", "k_proj.weight"))
        else 1.0
    )
    return (plain * gain * fan_in**-0.5).astype(np.float32)
