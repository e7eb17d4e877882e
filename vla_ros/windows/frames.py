"""The tree of transforms, as far as it was heard: where each frame is in its root.

What tf2 does without its buffer in time: the newest transform of each frame counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vla_ros.core import Floats


class Frames:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._above: dict[str, tuple[str, Floats]] = {}

    def hear(self, parent: str, child: str, at: Floats) -> None:
        """``at``: float64 [4, 4], the child in its parent. What would close a ring is left out."""
        if parent != child and child not in self._way(parent):
            self._above[child] = (parent, at)

    def __contains__(self, frame: str) -> bool:
        return frame in self._above

    def place(self, frame: str) -> Floats:
        """Float64 [4, 4] in the root of its tree; a frame that nobody places is a root."""
        at: Floats = np.eye(4)
        for name in self._way(frame):
            if name in self._above:
                at = self._above[name][1] @ at
        return at

    def below(self, frame: str) -> Iterator[str]:
        """The frame, where it was heard, and all that hang on it."""
        for name in self._above:
            if frame in self._way(name):
                yield name

    def _way(self, frame: str) -> tuple[str, ...]:
        """From a frame up to its root."""
        way = [frame]
        while way[-1] in self._above:
            way.append(self._above[way[-1]][0])
        return tuple(way)
