"""Names that a user mistypes: the one that was meant, perhaps, for the end of the line that refuses
it. Of every kind: parameters, tasks, verbs, presets, policies, graphs, topics."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """End of a line that refuses ``name``, such as ": did you mean 'image'?"; ``otherwise`` where
    none of the ``known`` ones is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    near = near or [one for one in names if name and (one.startswith(name) or name in one)][:1]
    return f": did you mean {near[0]!r}?" if near else otherwise


def known_or_nearest(name: str, known: Iterable[str]) -> str:
    """The same; where none is near, all that there are."""
    names = list(known)
    return nearest(name, names, f"; there are {', '.join(names)}" if names else "; there are none")
