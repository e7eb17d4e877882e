"""Two ways to the same place: the hand swings out to the left or to the right on its way there.

An expert with one way has taught a policy whose chunks cannot disagree, so it does not matter how
they are joined. With two ways that are equally good, the chunk that comes next may want the other
one. Which way is under way is seen from where the hand is; only near the line itself, as at the
start, nothing tells, and chance does.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vla_ros.core import Floats

HOME: Final = (-0.036, 0.0)  # m, where the hand is at the start, from above
_WIDE, _SHARE = 0.06, 0.4  # m aside at the most; of the way to go
_LOOK = 0.05  # m ahead on the arc that the hand is sent to
_DOUBT = 0.008  # m off the line within which nothing tells which way it is


def around(hand: Floats, place: Floats, side: Floats) -> Floats:
    """Where to head for, from above, float64 [N, 2], m: on the arc to ``place`` [N, 2].

    ``hand`` [N, 2]; ``side`` [N]: 1 left of the way, -1 right of it, where nothing tells; 0:
    straight ahead, always.
    """
    start = np.array(HOME)
    way, off = place - start, hand - start
    length = np.maximum(np.hypot(way[:, 0], way[:, 1]), 1e-6)
    along = way / length[:, None]
    left = np.stack((-along[:, 1], along[:, 0]), 1)
    gone, aside = (off * along).sum(1), (off * left).sum(1)
    side = np.where((np.abs(aside) > _DOUBT) & (side != 0), np.sign(aside), side)
    ahead = np.clip((gone + _LOOK) / length, 0.0, 1.0)
    bend = side * np.minimum(_WIDE, _SHARE * length) * np.sin(np.pi * ahead)
    out: Floats = start + (ahead * length)[:, None] * along + bend[:, None] * left
    return np.where(side[:, None] == 0, place, out)
