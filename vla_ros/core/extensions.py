"""Entry points: what other distributions bring to `vla-ros` and to the engine.

``vla_ros.verbs``: packages with a table ``VERBS`` (verb -> one line) and a module for each verb;
``vla_ros.decodings``: decodings, references among them, and the drafter ``model``;
``vla_ros.options``: dataclasses of the options that such decodings have beside the engine's, read
without torch; ``vla_ros.reports``: who writes an evaluation's page.
``vla_ros.policies``: policies, of which a name that two packages claim is refused alone.
The lab (`pip install ./lab`) brings some of all but the last.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from vla_ros.core.errors import UserError

VERBS, DECODINGS, REPORTS = "vla_ros.verbs", "vla_ros.decodings", "vla_ros.reports"
POLICIES, DECODING_OPTIONS = "vla_ros.policies", "vla_ros.options"
FAMILIES = "vla_ros.families"
LAB = "pip install ./lab in the checkout, or vla-ros-lab"


def extensions(group: str) -> dict[str, EntryPoint]:
    """The entry points of ``group`` by name, of what this interpreter can import. Imports none.

    UserError: two distributions claim a name.
    """
    found = claims(group)
    for name, (point, *others) in found.items():
        if others:
            raise UserError(f"{group}: {name!r} is both {point.value} and {others[0].value}")
    return {name: point for name, (point, *_) in found.items()}


def claims(group: str) -> dict[str, list[EntryPoint]]:
    """The entry points of ``group`` by name, each with all that claim the name. Imports none."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        claimed = found.setdefault(point.name, [])
        if all(other.value != point.value for other in claimed):  # a folder on the path twice
            claimed.append(point)
    return found


def imported(point: EntryPoint) -> Any:
    """The object that an entry point names. UserError: its package is damaged, or gone in part."""
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"{point.group}: {point.name!r} ({point.value}) cannot be imported: {error};"
            " install its package anew, or uninstall it"
        ) from error


def extension(group: str, name: str) -> Any | None:
    """The object offered under this name, imported; None: there is none. UserError as above."""
    point = extensions(group).get(name)
    return imported(point) if point is not None else None
