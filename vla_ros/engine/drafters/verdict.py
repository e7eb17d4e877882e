"""What a verified pass adds to an action, and the way down a draft tree that leads there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vla_ros.engine.trees.shape import ROOT, children

#: would this draft token stand, given the target's own choice, at this position?
Close = Callable[[int, int, int], bool]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verified pass adds to the action.

    ``tokens`` are the accepted drafts and then one token of the target's; ``own`` the target's
    choices at the same places; ``draft`` the whole draft; ``accepted`` how many of it stood.
    Of a tree ``draft`` is the path that stood and, where it could have gone on, the first child
    there; ``path`` names the nodes of the path.
    """

    tokens: tuple[int, ...]
    own: tuple[int, ...]
    draft: tuple[int, ...]
    accepted: int
    finite: bool
    path: tuple[int, ...] = ()


def follow(
    own: Sequence[int],
    drafted: Sequence[int],
    parents: Sequence[int],
    start: int,
    close: Close,
    finite: bool,
) -> Verdict:
    """The verdict on a draft tree whose first level stands for the position ``start``.

    ``own`` [d + 1] are the target's choices behind the root and every node. From the root down,
    of the children that stand the target's own choice is followed first, then the nearest.
    """
    below, path, node = children(parents), list[int](), ROOT
    while True:
        wanted, position = own[node + 1], start + len(path)
        offered = below.get(node, [])
        standing = [child for child in offered if close(drafted[child], wanted, position)]
        if not standing:
            break
        node = min(standing, key=lambda child: abs(drafted[child] - wanted))
        path.append(node)
    stood = [drafted[step] for step in path]
    return Verdict(
        tokens=(*stood, wanted),
        own=tuple(own[step + 1] for step in (ROOT, *path)),
        draft=(*stood, *(drafted[child] for child in offered[:1])),
        accepted=len(path),
        finite=finite,
        path=tuple(path),
    )
