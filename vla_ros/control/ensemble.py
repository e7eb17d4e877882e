"""What several chunks together say of the same moments: temporal ensembling (arXiv 2304.13705)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vla_ros import rotation
from vla_ros.action_space import ActionSpace
from vla_ros.core import Floats


def blend(rests: Sequence[Floats], decay: float, space: ActionSpace) -> Floats:
    """The weighted means, float64 [n, D]: of this moment and of all that any chunk still covers.

    ``rests``: what is left of each chunk [n_i, D], the oldest chunk first, first rows due at the
    same moment. Chunk i weighs exp(-``decay`` i). Orientations are averaged on the sphere.
    """
    weights = np.exp(-decay * np.arange(len(rests)))
    rows = []
    for place in range(max(map(len, rests))):
        there = [i for i, rest in enumerate(rests) if place < len(rest)]
        said = np.array([rests[i][place] for i in there])
        rows.append(_mean(said, weights[there], space))
    return np.array(rows)


def _mean(said: Floats, weights: Floats, space: ActionSpace) -> Floats:
    mean: Floats = weights @ said / weights.sum()
    for places in map(list, space.rotations):
        mean[places] = _mean_rotation(said[:, places], weights)
    return mean


def _mean_rotation(said: Floats, weights: Floats) -> Floats:
    """One after the other, each moves the mean by its share of the way."""
    mean, total = said[0].copy(), float(weights[0])
    for vector, weight in zip(said[1:], weights[1:], strict=True):
        total += float(weight)
        mean = rotation.turned(mean, rotation.way(mean, vector) * (float(weight) / total))
    return mean
